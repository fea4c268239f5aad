"""Views: made in one step over all history, read at the log's own offsets, following what comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainstem.broker.broker import Broker
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.topics.policy import Policy
from mainstem.broker.topics.views import View, ViewSlot
from mainstem.log.log import Log
from mainstem.model.errors import AlreadyExists, InvalidArgument, InvalidName
from tests.unit.broker.kit import durable, everything, kafka_batch, opened, produce, running, values


@pytest.fixture(params=["segment", "rocksdb", "memory"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    broker = await opened(tmp_path, engine=request.param)
    yield broker
    await broker.close()


@pytest.fixture
def namespace(broker: Broker) -> Namespace:
    return broker.namespace("/")


async def publish(namespace: Namespace, *topics: bytes) -> list[int]:
    """One record each, its value the number; returns their offsets."""
    tickets = []
    for n, topic in enumerate(topics):
        tickets.append(namespace.publish(topic, b"%d" % n, time_ms=1_000 + n))
        namespace.broker.ticker.tick()
    for ticket in tickets:
        await durable(ticket)
    return [ticket.base_offset for ticket in tickets]


def stem_slot(view: View) -> ViewSlot:
    slot = view.slot(0)
    assert slot is not None
    return slot


async def test_a_view_made_today_reads_yesterdays_messages(broker: Broker, namespace: Namespace) -> None:
    offsets = await publish(namespace, b"a/1", b"b/1", b"a/2", b"b/2", b"a/1")
    view = broker.create_view(namespace, b"v", b"a/#")
    records = everything(stem_slot(view))
    assert values(records) == [b"0", b"2", b"4"]
    assert [record.offset for record in records] == [offsets[0], offsets[2], offsets[4]], "the log's own offsets"
    assert [record.topic for record in records] == [b"a/1", b"a/2", b"a/1"]


async def test_making_a_view_reads_nothing(
    broker: Broker, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(namespace, *[b"a/%d" % n for n in range(50)])

    def never(self: Log, *args: object) -> None:
        raise AssertionError("a view is made without reading")

    with monkeypatch.context() as patch:
        patch.setattr(Log, "read_now", never)
        for n in range(100):
            broker.create_view(namespace, b"view-%d" % n, b"a/#")


async def test_a_view_follows_what_comes_and_topics_that_are_new(broker: Broker, namespace: Namespace) -> None:
    view = broker.create_view(namespace, b"v", b"a/+/temperature")
    slot = stem_slot(view)
    await publish(namespace, b"a/1/temperature", b"a/1/humidity")
    records, after = slot.records(0, 1 << 20)
    assert values(records) == [b"0"]
    await publish(namespace, b"a/new/temperature")
    records, after = slot.records(after, 1 << 20)
    assert [record.topic for record in records] == [b"a/new/temperature"]
    assert after == slot.stable_offset


async def test_reading_at_an_offset_the_view_does_not_contain_returns_the_next_it_does(
    broker: Broker, namespace: Namespace
) -> None:
    offsets = await publish(namespace, b"a", b"x", b"x", b"x", b"a", b"x")
    slot = stem_slot(broker.create_view(namespace, b"v", b"a"))
    for asked in range(offsets[1], offsets[4] + 1):
        assert [record.offset for record in slot.records(asked, 1 << 20)[0]] == [offsets[4]]
        assert slot.read(asked, 1 << 20).parts


async def test_a_read_without_a_match_still_moves_on(broker: Broker, namespace: Namespace) -> None:
    await publish(namespace, *[b"x"] * 20)
    slot = stem_slot(broker.create_view(namespace, b"v", b"a"))
    fetched = slot.read(0, 1 << 20)
    assert not fetched.parts
    assert fetched.next_offset == slot.stable_offset


async def test_matching_records_between_offsets_are_counted(broker: Broker, namespace: Namespace) -> None:
    offsets = await publish(namespace, *[b"a" if n % 3 == 0 else b"x" for n in range(30)])
    slot = stem_slot(broker.create_view(namespace, b"v", b"a"))
    assert slot.count(0, slot.stable_offset) == 10
    assert slot.count(offsets[1], offsets[7]) == 2
    assert slot.count(offsets[7], offsets[1]) == 0


async def test_the_record_at_or_after_a_time_is_found(broker: Broker, namespace: Namespace) -> None:
    offsets = await publish(namespace, *[b"a" if n % 3 == 0 else b"x" for n in range(30)])
    slot = stem_slot(broker.create_view(namespace, b"v", b"a"))
    assert slot.find_time(1_000) == (offsets[0], 1_000)
    assert slot.find_time(1_004) == (offsets[6], 1_006)
    assert slot.find_time(1_028) is None


async def test_conditions_on_key_and_headers(broker: Broker, namespace: Namespace) -> None:
    for key, region in ((b"dev-1", b"eu"), (b"dev-2", b"us"), (b"app-1", b"eu"), (b"dev-3", b"eu")):
        ticket = namespace.publish(b"t", key, key=key, headers=[(b"region", region)])
    await durable(ticket)
    view = broker.create_view(namespace, b"v", b"t", where="key ^= 'dev-' and header.region = 'eu'")
    slot = stem_slot(view)
    assert values(everything(slot)) == [b"dev-1", b"dev-3"]
    assert slot.count(0, slot.stable_offset) == 2
    with pytest.raises(InvalidArgument):
        broker.create_view(namespace, b"w", b"t", where="key ~ 'x'")


async def test_dedicated_topics_get_slots_of_their_own_for_ever(broker: Broker, namespace: Namespace) -> None:
    engine = namespace.defaults.engine
    broker.create_topic(namespace, b"a/own", Policy(engine=engine, layout="dedicated", partitions=2))
    view = broker.create_view(namespace, b"v", b"a/#")
    assert len(view.slots) == 3
    broker.create_topic(namespace, b"a/later", Policy(engine=engine, layout="dedicated"))
    broker.create_topic(namespace, b"b/other", Policy(engine=engine, layout="dedicated"))
    assert len(view.slots) == 4
    before = list(view.slots)
    await durable(produce(namespace, b"a/later", kafka_batch([(b"k", b"v")])))
    later = view.slot(3)
    assert later is not None
    assert [(r.topic, r.value) for r in everything(later)] == [(b"a/later", b"v")]
    await broker.delete_topic(namespace, b"a/own")
    assert view.slots == before, "never renumbered"
    assert view.slot(1) is None and view.slot(2) is None, "empty for ever"
    broker.create_topic(namespace, b"a/own", Policy(engine=engine, layout="dedicated"))
    assert view.slots[: len(before)] == before
    assert len(view.slots) == 5


async def test_slots_are_the_same_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        broker.create_topic(namespace, b"a/1", Policy(layout="dedicated"))
        view = broker.create_view(namespace, b"v", b"a/#", where="header.x exists")
        broker.create_topic(namespace, b"a/2", Policy(layout="dedicated"))
        await broker.delete_topic(namespace, b"a/1")
        slots = list(view.slots)
    async with running(tmp_path) as broker:
        again = broker.namespace("/").views[b"v"]
        assert again.slots == slots
        assert again.condition == view.condition
        assert again.slot(1) is None


async def test_views_and_topics_share_their_names(broker: Broker, namespace: Namespace) -> None:
    await publish(namespace, b"taken")
    with pytest.raises(InvalidName):
        broker.create_view(namespace, b"taken", b"#")
    broker.create_view(namespace, b"v", b"#")
    with pytest.raises(AlreadyExists):
        broker.create_view(namespace, b"v", b"a/#")
    with pytest.raises(AlreadyExists):
        broker.create_topic(namespace, b"v", Policy())
    with pytest.raises(InvalidName):
        namespace.publish(b"v", b"a view is read-only")


async def test_a_dropped_view_frees_its_name(broker: Broker, namespace: Namespace) -> None:
    broker.create_view(namespace, b"v", b"#")
    await broker.drop_view(namespace, b"v")
    await publish(namespace, b"v")


async def test_a_view_ends_where_everything_is_durable(broker: Broker, namespace: Namespace) -> None:
    view = broker.create_view(namespace, b"v", b"#")
    slot = stem_slot(view)
    before = slot.stable_offset
    namespace.publish(b"a", b"not yet")
    broker.ticker.tick()
    if slot.log.durability.acks_wait:
        assert slot.stable_offset == before
        assert slot.records(before, 1 << 20) == ([], before)
