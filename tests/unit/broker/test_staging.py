"""Staged batches become visible all of them and once, or the commit says that they did not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainstem.broker.schemas.records import Schema
from mainstem.broker.staging.staging import Attempt, BatchId
from mainstem.broker.topics.policy import Policy
from mainstem.codec.staged import StagedBatch, encode_staged
from mainstem.model.errors import InvalidRecord, Overloaded
from mainstem.storage.memory import MemoryEngine
from tests.unit.broker.kit import everything, kafka_batch, reader_of, running, values

LARGE = 1_200_000  # more than one tick appends


async def test_a_commit_fails_if_a_full_log_refused_any_of_its_batches(tmp_path: Path) -> None:
    rows = [b"a" * LARGE, b"b" * LARGE, b"c"]
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        topic = broker.create_topic(namespace, b"t", Policy(engine="memory", layout="dedicated"))
        engine = topic.partitions[0].log.engine
        assert isinstance(engine, MemoryEngine)
        engine._bytes_max = 2 * LARGE - 1000  # the second row does not fit, the third would
        staged = [StagedBatch(b"t", 0, False, kafka_batch([(None, row)])) for row in rows]
        batch, attempt = BatchId("/", "query", "sink", 0), Attempt(0, 0)
        await broker.staging.stage(batch, "run", attempt, encode_staged(staged))
        with pytest.raises(Overloaded):
            await broker.staging.commit(namespace, batch, "run", [attempt])
        engine._bytes_max = 10 * LARGE
        await broker.staging.commit(namespace, batch, "run", [attempt])
        assert sorted(values(everything(reader_of(namespace, b"t")))) == rows


async def test_tasks_that_declare_one_topic_at_once_all_learn_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        asked = (broker.staging.topics(namespace, ["new"], declare=True) for _ in range(4))
        told = await asyncio.gather(*asked)
        assert told == [told[0]] * 4
        assert told[0]["new"]["names_topic"] is False


@pytest.mark.parametrize("mode", ["refuse", "dead-letter"])
async def test_a_task_whose_rows_do_not_match_the_topics_schema_fails_and_nothing_is_staged(
    tmp_path: Path, mode: str
) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        shape = '{"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}'
        await broker.schemas.of(namespace).register("shape", Schema("JSON", shape))
        broker.create_topic(namespace, b"t", Policy(layout="dedicated", schema="shape", schema_mode=mode))

        async def stage(*values: bytes | None) -> None:
            staged = [StagedBatch(b"t", 0, False, kafka_batch([(None, value) for value in values]))]
            await broker.staging.stage(BatchId("/", "query", "sink", 0), "run", Attempt(0, 0), encode_staged(staged))

        with pytest.raises(InvalidRecord, match="does not match schema shape of t"):
            await stage(b'{"n": 1}', b'{"n": "one"}')
        assert broker.staging.staged_bytes == 0
        await stage(b'{"n": 1}', None, b'{"n": 2.0}')
        await broker.staging.commit(namespace, BatchId("/", "query", "sink", 0), "run", [Attempt(0, 0)])
        assert values(everything(reader_of(namespace, b"t"))) == [b'{"n": 1}', None, b'{"n": 2.0}']
