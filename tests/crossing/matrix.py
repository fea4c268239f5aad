"""The conformance matrix: what was observed for each field and pair, and the page that shows it.

.venv/bin/python -m tests.crossing.matrix      writes docs/crossing.md from what a broker answers
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mainstem.testing import BrokerProcess
from mainstem.testing.broker import Endpoints
from tests.crossing.judging import foreign, is_long, own
from tests.crossing.message import NOT_EXPRESSIBLE, CannotSay, Ear, Heard, Message, Speaker, with_topic
from tests.crossing.probes import PROBES, Probe
from tests.crossing.speakers import PROTOCOLS, WITH_HISTORY, speakers_of

PAGE = Path(__file__).parents[2] / "docs" / "crossing.md"
PRIMER = b"primer"  # said first, so that the topic exists; by MQTT where Kafka and AMQP must cut its name
TITLES = {"mqtt": "MQTT", "kafka": "Kafka", "amqp": "AMQP", "nats": "NATS"}

Pair = tuple[str, str]


class Lost(AssertionError):
    """Something did not arrive as it should."""


@dataclass(slots=True)
class Said:
    probe: Probe
    writer: str
    message: Message


class Run:
    """All probes said by all, each on a topic of its own, heard by all: live first, then from history."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._speakers: dict[str, Speaker] = speakers_of(endpoints)
        self._name = f"x{uuid.uuid4().hex[:10]}"
        self._unsayable: set[tuple[str, str]] = set()
        self._said: list[Said] = []
        self._heard: dict[tuple[str, str, str, str], Heard | AssertionError] = {}  # when, writer, row, reader
        self.surplus: dict[tuple[str, str], list[Heard]] = {}  # when, reader: heard beyond what was said
        try:
            self._observe()
        finally:
            for speaker in self._speakers.values():
                speaker.close()

    def _topic(self, writer: str, number: int, probe: Probe) -> str:
        return f"{self._name}/{writer}/{number}/{probe.levels}"

    def _observe(self) -> None:
        all_said = [
            Said(probe, writer, with_topic(probe.message, self._topic(writer, number, probe)))
            for writer in PROTOCOLS
            for number, probe in enumerate(PROBES)
        ]
        topics = [said.message.topic for said in all_said]
        for said in all_said:
            primer = "mqtt" if is_long(said.message.topic) else said.writer
            self._speakers[primer].say(Message(said.message.topic, PRIMER))
        with self._speakers["kafka"].history(*topics) as ear:
            for topic in topics:  # until they are stable, for there Kafka's live reader begins; NATS has no acks
                assert ear.hear(topic).message.value == PRIMER
        ears = {reader: self._speakers[reader].listen(*topics) for reader in PROTOCOLS}
        for said in all_said:
            try:
                self._speakers[said.writer].say(said.message)
                self._said.append(said)
            except CannotSay:
                self._unsayable.add((said.writer, said.probe.row))
        self._hear("live", ears)
        stored = [said.message.topic for said in self._said]
        self._hear("history", {reader: self._speakers[reader].history(*stored) for reader in WITH_HISTORY})

    def _hear(self, when: str, ears: dict[str, Ear]) -> None:
        for reader, ear in ears.items():
            with ear:
                for said in self._said:
                    key = (when, said.writer, said.probe.row, reader)
                    try:
                        if when == "history":
                            assert ear.hear(said.message.topic).message.value == PRIMER, "the primer was said first"
                        self._heard[key] = ear.hear(said.message.topic)
                    except AssertionError as failure:
                        self._heard[key] = failure
                self.surplus[when, reader] = ear.waiting()

    def cell(self, when: str, probe: Probe, writer: str, reader: str) -> str:
        """exact, mapped or not expressible; raises Lost if it is none of them."""
        if (writer, probe.row) in self._unsayable:
            return NOT_EXPRESSIBLE
        said = next(said for said in self._said if said.probe is probe and said.writer == writer)
        heard = self._heard[when, writer, probe.row, reader]
        if isinstance(heard, AssertionError):
            raise Lost(f"{probe.row}: {heard}") from heard
        try:
            if writer == reader:
                return own(said.message, heard, self._speakers[writer])
            return foreign(said.message, heard, writer, reader, probe.elsewhere)
        except AssertionError as failure:
            raise Lost(f"{probe.row}, {writer} to {reader}: {failure}") from failure


# -- the page


_HEAD = """\
# What crosses, and how

<!-- made by `.venv/bin/python -m tests.crossing.matrix`; tests/crossing compares it with what it observes -->

Each cell was observed: a client (paho, confluent-kafka, pika; NATS's bytes by hand) said the field, another heard it, live
and (but by core NATS, which has none) from history, on every engine and layout. Not one is written by hand.

- **exact**: in the reader's own place for it and equal. To the protocol that wrote it: everything it sent, nothing added.
- **mapped**: equal, under a name or form of [the mapping](mapping.md): a user property, a header, a mark.
- **–**: not expressible: the writer has no words for it, or the reader has none (a header that does not fit is then named in
  `ms-left-out`).

"""


def table(cells: dict[tuple[str, Pair], str]) -> Iterator[str]:
    pairs = [(writer, reader) for writer in PROTOCOLS for reader in PROTOCOLS]
    yield "| | " + " | ".join(f"{TITLES[writer]} → {TITLES[reader]}" for writer, reader in pairs) + " |"
    yield "|---|" + "---|" * len(pairs)
    for probe in PROBES:
        row = [cells[probe.row, pair] for pair in pairs]
        yield f"| {probe.row} | " + " | ".join("–" if cell == NOT_EXPRESSIBLE else cell for cell in row) + " |"


def page(run: Run) -> str:
    cells = {
        (probe.row, (writer, reader)): run.cell("live", probe, writer, reader)
        for probe in PROBES
        for writer in PROTOCOLS
        for reader in PROTOCOLS
    }
    return _HEAD + "\n".join(table(cells)) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory) / "data") as broker:
        PAGE.write_text(page(Run(broker)))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
