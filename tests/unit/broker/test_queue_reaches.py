"""Ways into a queue: each from stamp to stamp, forgotten once the queue has read beyond its end."""

from __future__ import annotations

from mainstem.broker.queues.bindings import ANYTHING, DEFAULT, EXCHANGE, PLAIN, Reach, Reaches


def test_a_record_enters_by_what_was_bound_when_it_was_written() -> None:
    reaches = Reaches()
    first, second = Reach(PLAIN, b"a/#", start=10), Reach(EXCHANGE, b"a/b", "x", start=20)
    reaches.add(first)
    reaches.add(second)
    assert reaches.entry_of(b"a/b", 9) is None
    early = reaches.entry_of(b"a/b", 15)
    assert early is not None
    assert (early.plain, early.exchanges) == (True, frozenset())
    both = reaches.entry_of(b"a/b", 25)
    assert both is not None
    assert (both.plain, both.exchanges) == (True, frozenset({b"x"}))
    reaches.close(first, 30)
    late = reaches.entry_of(b"a/b", 30)
    assert late is not None
    assert (late.plain, late.exchanges) == (False, frozenset({b"x"}))
    assert reaches.entry_of(b"a/c", 30) is None
    assert reaches.constant_from == 30


def test_what_ended_is_forgotten_once_the_queue_is_beyond_it() -> None:
    reaches = Reaches()
    for start in range(0, 100, 10):
        reach = Reach(DEFAULT, b"q", start=start)
        reaches.add(reach)
        reaches.close(reach, start + 5)
    reaches.add(Reach(ANYTHING, b"#", start=100))
    assert not reaches.forget_before(4)
    assert reaches.forget_before(50)
    assert len(reaches.all) == 6
    assert reaches.filters() == [b"q", b"#"]
