"""A reader of a topic by offset, which commits how far it has got as a consumer group, and judges what it reads."""

from __future__ import annotations

import random

from mainstem.admin.cursors import offset_rows
from mainstem.broker.groups.registry import Commit, Groups
from mainstem.broker.topics.reading import PartitionReader
from mainstem.log.gather import Ticket
from tests.simulation.machine import Machine

GROUP = "readers"
READ_BYTES = 1 << 16


class Asked:
    """The commits that one life of the broker was asked for. It may say that one is kept when its cell is another's: then
    whoever took the cell must have found it."""

    def __init__(self, start: int) -> None:
        self.commits = [start]  # in order
        self.kept = 0  # which of them the broker said last that it is kept
        self.found: int | None = None  # where the next life stood when it began

    def check(self) -> None:
        allowed = self.commits[self.kept :]
        assert self.found is None or self.found in allowed, (
            f"the group stands at {self.found}; since the last that was kept it committed {allowed[:5]}"
        )


class GroupReader:
    def __init__(self, machine: Machine, rng: random.Random, topic: bytes) -> None:
        self.machine, self.rng, self.topic = machine, rng, topic
        self.seen: dict[int, bytes] = {}  # what each offset was ever seen to hold
        self.position = 0
        self.asked = Asked(0)

    @property
    def _groups(self) -> Groups:
        assert self.machine.broker is not None
        return self.machine.broker.coordinator.groups

    def _reader(self) -> PartitionReader | None:
        assert self.machine.broker is not None
        namespace = self.machine.broker.namespace("/")
        topic = namespace.find_topic(self.topic)
        return PartitionReader(topic.partitions[0], namespace.topic_of) if topic is not None else None

    def act(self) -> None:
        """Read on, then commit where it stands, now and then a little before."""
        self.read()
        if self.position and self.rng.random() < 0.6:
            commits = self.asked.commits
            offset = self.rng.choice(commits) if self.rng.random() < 0.1 else self.position
            commits.append(offset)
            ticket = self._groups.commit(GROUP, {(self.topic.decode().replace("/", "."), 0): Commit(offset)})
            if ticket is not None:
                ticket.wait(_Kept(self, self.asked, len(commits) - 1))

    def read(self) -> None:
        reader = self._reader()
        while reader is not None and self.position < reader.stable_offset:
            records, after = reader.records(max(self.position, reader.start_offset), READ_BYTES)
            for record in records:
                before = self.seen.setdefault(record.offset, record.value or b"")
                assert before == (record.value or b""), f"offset {record.offset} held {before!r}, now {record.value!r}"
            self.position = after

    def keep(self, asked: Asked, number: int) -> None:
        if not self.machine.is_cut:
            asked.kept = max(asked.kept, number)
            asked.check()

    def restarted(self) -> None:
        """It goes on where it committed, or later if a commit of which it was not told was kept."""
        found = self._groups.offset(GROUP, (self.topic.decode().replace("/", "."), 0))
        offset = found.offset if found is not None else 0
        self.asked.found = offset
        self.asked.check()
        self.asked, self.position = Asked(offset), offset

    def check(self) -> None:
        """The lag that is shown is what is there to be read."""
        self.read()
        assert self.machine.broker is not None
        reader = self._reader()
        start = reader.start_offset if reader is not None else 0  # retention may have taken some
        for row in offset_rows(self.machine.broker.namespace("/"), self._groups, GROUP):
            behind = sum(offset >= max(row["offset"] or 0, start) for offset in self.seen)
            assert row["lag"] == behind, f"lag {row['lag']} is shown, {behind} records lie ahead"


class _Kept:
    def __init__(self, reader: GroupReader, asked: Asked, number: int) -> None:
        self._reader, self._asked, self._number = reader, asked, number

    def released(self, ticket: Ticket) -> None:
        if ticket.stable:
            self._reader.keep(self._asked, self._number)
