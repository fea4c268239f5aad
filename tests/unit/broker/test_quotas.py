"""Quotas without sockets: buckets, limits as they are given, and what an account makes of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mainstem.broker.namespaces.quotas import NAMESPACE, USER, WAIT_S_MAX, Bucket, Limits
from mainstem.broker.namespaces.settings import NamespaceSettings
from mainstem.broker.queues.settings import QueueSettings
from mainstem.model.errors import InvalidArgument, QuotaExceeded
from tests.unit.broker.kit import durable, running


def test_who_waits_as_long_as_told_never_gets_more_than_the_rate_and_one_seconds_worth() -> None:
    generator = random.Random(7)
    for _ in range(200):
        rate = generator.choice((1, 100, 1e6))
        bucket, now, taken = Bucket(rate, 0.0), 0.0, 0
        for _ in range(100):
            amount = generator.randrange(1, int(rate * 2) + 2)
            now += bucket.take(amount, now)
            taken += amount
            assert taken <= rate * (now + 1) + 1e-3
            now += generator.random() * generator.choice((0, 0.01, 3))


def test_a_debt_is_never_more_than_a_client_can_wait_for() -> None:
    bucket = Bucket(1, 0.0)
    assert bucket.take(10**9, 0.0) == WAIT_S_MAX
    assert bucket.take(0, WAIT_S_MAX) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topics": 3}, "did you mean topics_max"),
        ({"connections_max": 0}, "must be 1 to"),
        ({"connections_max": -1}, "must be 1 to"),
        ({"connections_max": True}, "whole number"),
        ({"connections_max": "3"}, "whole number"),
        ({"over_rate": "drop"}, "delay or refuse"),
    ],
)
def test_limits_that_cannot_be_are_told(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Limits().changed(given, NAMESPACE)


def test_limits_are_set_one_by_one_kept_and_taken_away() -> None:
    limits = Limits().changed({"connections_max": 3, "over_rate": "refuse"}, USER)
    limits = limits.changed({"publish_bytes_per_s": 10}, USER)
    assert Limits.of_document(limits.to_document()) == limits
    assert limits.changed({"connections_max": None, "over_rate": None, "publish_bytes_per_s": None}, USER) == Limits()
    with pytest.raises(InvalidArgument, match="unknown quota of a user"):
        limits.changed({"topics_max": 3}, USER)


async def test_levels_refuse_what_would_exceed_them_and_only_there(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        left, right = await broker.declare_namespace("left"), await broker.declare_namespace("right")
        quota = {"quota": {"topics_max": 2, "queues_max": 1}}
        await broker.alter_namespace(left, NamespaceSettings().changed(quota, left.defaults))
        for namespace in (left, right):
            for name in (b"a", b"b"):
                await durable(namespace.publish(name, b"1"))
            broker.queues.of(namespace).declare("one", QueueSettings())
        with pytest.raises(QuotaExceeded, match="namespace left has used up its topics_max of 2"):
            left.publish(b"c", b"1")
        with pytest.raises(QuotaExceeded, match="queues_max of 1"):
            broker.queues.of(left).declare("two", QueueSettings())
        await durable(left.publish(b"a", b"2"))
        right.publish(b"c", b"1")
        broker.queues.of(right).declare("two", QueueSettings())
        assert broker.quotas.shown(NAMESPACE, "left")["topics_max"] == {
            "used": 2,
            "limit": 2,
            "left": 0,
            "near": True,
        }
    async with running(tmp_path) as broker:
        with pytest.raises(QuotaExceeded):
            broker.namespace("left").publish(b"c", b"1")


async def test_stored_bytes_refuse_publishes_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as broker:
        left, right = await broker.declare_namespace("left"), await broker.declare_namespace("right")
        await durable(left.publish(b"a", bytes(90_000)))
        give = {"quota": {"stored_bytes_max": 100_000}}
        await broker.alter_namespace(left, left.settings.changed(give, left.defaults))
        await broker.quotas.review()
        assert "uses 90 % of its stored_bytes_max" in caplog.text
        await durable(left.publish(b"a", bytes(20_000)))
        await broker.quotas.review()
        refused = await durable(left.publish(b"a", b"more"))
        assert isinstance(refused.error, QuotaExceeded)
        broker.maintenance.space_low = True  # the disk was almost full, and is no longer
        broker.maintenance.watch_space()
        assert isinstance((await durable(left.publish(b"b", b"more"))).error, QuotaExceeded)
        assert (await durable(right.publish(b"a", b"more"))).error is None
        await broker.alter_namespace(left, left.settings.changed({"quota": {"stored_bytes_max": None}}, left.defaults))
        assert (await durable(left.publish(b"a", b"more"))).error is None
