"""What of a wait a bench counts: nothing of a moment in which the whole machine stood still."""

from __future__ import annotations

from bench.standstill import Standstill, Wait, together


def test_the_machine_stood_still_where_every_core_did() -> None:
    first = [(1.0, 2.0), (3.0, 5.0), (7.0, 8.0)]
    second = [(1.5, 3.5), (4.0, 4.5), (9.0, 9.5)]
    assert together([first]) == first
    assert together([first, second]) == [(1.5, 2.0), (3.0, 3.5), (4.0, 4.5)]
    assert together([first, second, [(4.2, 4.3)]]) == [(4.2, 4.3)]
    assert together([first, []]) == []


def test_what_stood_still_is_no_part_of_a_wait_and_the_rest_of_it_is() -> None:
    standstill = Standstill([(10.0, 10.5), (20.0, 20.1)], watched_s=30.0)
    before, into, within, long = Wait(9.0, 500.0), Wait(9.9, 200.0), Wait(10.1, 300.0), Wait(9.0, 20_000.0)
    counted = standstill.counted([before, into, within, long, Wait(20.2, 1.0)])
    assert [round(ms, 6) for ms in counted] == [500.0, 100.0, 0.0, 19_400.0, 1.0]
    assert round(standstill.share, 6) == 0.02
    assert Standstill().counted([into]) == [200.0]
    assert Standstill().share == 0.0
