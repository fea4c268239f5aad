"""Removing a namespace: refused while it holds something, for good when it is meant, whatever crash comes between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.broker.broker import Broker
from mainstem.broker.groups.registry import Commit
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.namespaces.removal import REMOVING
from mainstem.broker.namespaces.settings import NamespaceSettings
from mainstem.broker.queues.settings import QueueSettings
from mainstem.broker.topics.policy import Policy
from mainstem.model.errors import InvalidArgument, NotFound, Overloaded
from mainstem.model.origin import RecordFlag
from tests.unit.broker.kit import durable, everything, opened, reader_of, running, until, values


async def fill(broker: Broker, namespace: Namespace) -> None:
    """Something of every kind: topics of both layouts, a view, a queue, a session, a retained message, a group."""
    name = namespace.name
    await broker.declare_topic(namespace, b"own", Policy(layout="dedicated"))
    for topic in (b"own", b"shared"):
        await durable(namespace.publish(topic, b"of " + name.encode(), flags=RecordFlag.RETAIN))
    await broker.begin_view(namespace, b"seen", b"shared/#")
    queue, _ = broker.queues.of(namespace).declare("work", QueueSettings())
    assert queue.settings.durable
    keeper = broker.session_keeper
    await durable(keeper.sessions.save(keeper.sessions.begin(name.encode() + b"\0client", 60, broker.stamps.next)))
    key = "workers" if name == "/" else f"{name}\x01workers"
    ticket = broker.coordinator.groups.commit(key, {("own", 0): Commit(1)})
    assert ticket is not None
    await durable(ticket)
    broker.delayed.add(namespace, b"later", b"x", due_ms=broker.clock.now_ns() // 10**6 + 3_600_000)


def traces(broker: Broker, name: str) -> dict[str, int]:
    keeper, coordinator = broker.session_keeper, broker.coordinator
    prefix = f"{name}\x01"
    return {
        "sessions": keeper.session_count(name),
        "groups": coordinator.group_count(name),
        "offsets": sum(key.startswith(prefix) for key in coordinator.groups.offsets),
        "queues": sum(queue.namespace.name == name for queue in broker.queues.by_id.values()),
        "retained": sum(key.startswith(name.encode() + b"\0") for key, _ in keeper._dump_retained()),
        "delayed": len(broker.delayed),
    }


def directories(path: Path) -> set[str]:
    return {one.name for one in (path / "logs").iterdir() if one.is_dir()}


NOTHING = {"sessions": 0, "groups": 0, "offsets": 0, "queues": 0, "retained": 0, "delayed": 0}


@pytest.mark.parametrize("engine", ["segment", "memory"])
async def test_everything_of_it_goes_and_nothing_of_its_neighbours(tmp_path: Path, engine: str) -> None:
    async with running(tmp_path, engine=engine) as broker:
        left, right = await broker.declare_namespace("left"), await broker.declare_namespace("right")
        await fill(broker, right)
        before = directories(tmp_path)
        await fill(broker, left)
        assert broker.removal.contents(left).keys() == broker.removal.contents(right).keys()
        held = await broker.removal.remove(left, with_data=True)
        assert (held["queues"], held["sessions"], held["groups"], held["views"]) == (1, 1, 1, 1)
        assert directories(tmp_path) <= before
        assert traces(broker, "left") == {**NOTHING, "delayed": 1}
        assert traces(broker, "right") == dict.fromkeys(NOTHING, 1) | {"retained": 2}
        with pytest.raises(NotFound):
            broker.namespace("left")
        with pytest.raises(NotFound):
            left.publish(b"own", b"too late")
        with pytest.raises(NotFound):
            await broker.declare_topic(left, b"new", Policy())
        assert values(everything(reader_of(right, b"own"))) == [b"of right"]
        again = await broker.declare_namespace("left")
        assert broker.removal.contents(again) == {}
        await durable(again.publish(b"shared", b"new"))
        assert values(everything(reader_of(again, b"shared"))) == [b"new"]
        assert not broker.session_keeper.retained(again).find(b"#")
    async with running(tmp_path, engine=engine) as broker:
        assert set(broker.namespaces) == {"/", "left", "right"}
        assert traces(broker, "left") == {**NOTHING, "delayed": traces(broker, "left")["delayed"]}
        assert broker.removal.contents(broker.namespace("right"))["queues"] == 1


async def test_one_that_holds_something_is_refused_and_says_what_would_be_lost(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        left = await broker.declare_namespace("left")
        await fill(broker, left)
        with pytest.raises(InvalidArgument, match=r"1 view, 1 queue, 1 session, 2 retained messages, 1 group") as found:
            await broker.removal.remove(left)
        assert found.value.fix.startswith("mainstem namespace rm left --with-data")
        assert broker.namespace("left") is left
        empty = await broker.declare_namespace("empty")
        assert await broker.removal.remove(empty) == {}
        with pytest.raises(InvalidArgument, match="stays"):
            await broker.removal.remove(broker.namespace("/"), with_data=True)


async def test_its_users_go_with_it_but_never_an_admin(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        left = await broker.declare_namespace("left")
        await broker.access.add_user("root", "secret", admin=True)
        await broker.access.add_user("ann", "pass", namespace="left")
        with pytest.raises(InvalidArgument, match="1 user"):
            await broker.removal.remove(left)
        await broker.removal.remove(left, with_data=True)
        await broker.declare_namespace("left")
        assert list(broker.access.users) == ["root"]
        left = await broker.declare_namespace("left")
        await broker.access.add_user("boss", "secret", admin=True, namespace="left")
        with pytest.raises(InvalidArgument, match="boss, an admin"):
            await broker.removal.remove(left, with_data=True)
    async with running(tmp_path) as broker:
        assert sorted(broker.access.users) == ["boss", "root"]


class Stopped(Exception):
    pass


async def test_a_crash_after_the_commit_is_finished_by_the_next_start(tmp_path: Path) -> None:
    """Two crashes in a row: neither the state nor the files of a removed namespace outlive the third start."""
    broker = await opened(tmp_path)
    left = await broker.declare_namespace("left")
    before = directories(tmp_path)
    await fill(broker, left)

    def crash(name: str) -> Iterator[None]:
        raise Stopped

    broker.removal._traces = crash  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        await broker.removal.remove(left, with_data=True)
    await broker.close()
    for _ in range(2):
        broker = Broker(broker.options)
        await broker.open()
        assert REMOVING + "left" in broker.store.load().kv
        broker.recover_journal()
        assert "left" not in broker.namespaces
        with pytest.raises(Overloaded, match="is being removed"):
            await broker.declare_namespace("left")
        await broker.close()
    async with running(tmp_path) as broker:
        await until(lambda: not broker.removal._under_way)
        assert REMOVING + "left" not in broker.store.load().kv
        assert traces(broker, "left") == {**NOTHING, "delayed": len(broker.delayed)}
        assert directories(tmp_path) <= before
        assert broker.removal.contents(await broker.declare_namespace("left")) == {}


async def test_defaults_of_a_namespace_are_its_topics_and_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        left = await broker.declare_namespace("left")
        await durable(left.publish(b"a", b"1"))
        settings = NamespaceSettings().changed({"policy": {"retention_ms": 5000, "engine": "memory"}}, left.defaults)
        await broker.alter_namespace(left, settings)
        await durable(left.publish(b"a", b"2"))
        assert left.policy(b"a").engine == "memory" and left.policy(b"a").retention_ms == 5000
        assert values(everything(reader_of(left, b"a"))) == [b"1", b"2"]
        assert broker.namespace("/").defaults.retention_ms != 5000
        with pytest.raises(InvalidArgument, match="from the configuration"):
            await broker.alter_namespace(broker.namespace("/"), settings)
        with pytest.raises(InvalidArgument, match="unknown topic setting"):
            settings.changed({"policy": {"retention": 3}}, left.defaults)
        with pytest.raises(InvalidArgument, match="whole number"):
            settings.changed({"policy": {"retention_ms": "soon"}}, left.defaults)
    async with running(tmp_path) as broker:
        left = broker.namespace("left")
        assert left.defaults.retention_ms == 5000 and left.defaults.engine == "memory"
        await broker.alter_namespace(
            left, left.settings.changed({"policy": {"retention_ms": None, "engine": None}}, left.defaults)
        )
        assert left.defaults == broker.options.defaults
