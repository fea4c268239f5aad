"""FORMAT.md is enough to write a reader: this one knows nothing but its tables. And the page's example runs."""

from __future__ import annotations

import re
import struct
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FORMAT = (ROOT / "src/mainstem/codec/FORMAT.md").read_text()
FORMS = {"u8": "B", "i8": "b", "i16": "h", "u32": "I", "i32": "i", "i64": "q", "4 bytes": "4s"}


def table(title: str) -> dict[str, tuple[int, str]]:
    """Field name → (position, struct form) of the table under a heading."""
    section = re.split(r"^#+ ", FORMAT[FORMAT.index(f"## {title}\n") + 3 :], flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|", section, flags=re.MULTILINE)
    return {name.strip(): (int(at), FORMS[form.strip()]) for at, form, name in rows if form.strip()}


def read(data: bytes, fields: dict[str, tuple[int, str]]) -> dict[str, object]:
    return {name: struct.unpack_from(">" + form, data, at)[0] for name, (at, form) in fields.items()}


def crc(data: bytes, seed: int = 0) -> int:
    """Bit by bit, from the polynomial on the page."""
    polynomial = int(re.search(r"polynomial `(0x[0-9A-F]+)`", FORMAT)[1], 16)
    value = seed ^ 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_a_reader_made_of_the_pages_tables_reads_what_we_write(codec):
    builder = codec.BatchBuilder()
    for number in range(3):
        builder.add(b"k", b"v%d" % number, (), 1000 - number)
    place = {"log_id": 77, "base_offset": 12, "stamp": 13, "durable_offset": 11, "kind": 2, "origin": 3, "topic_id": 4}
    frame = bytes(
        builder.seal_frame(**place, leader_epoch=0x0A0B0C0D, producer_id=5, producer_epoch=6, base_sequence=7)
    )

    head = read(frame, table("Frame head"))
    assert head["magic"] == b"MSF1"
    assert head["head CRC"] == crc(frame[:44], crc(struct.pack(">Qq", 77, 12)))
    assert head["epoch check"] == 0x0A ^ 0x0B ^ 0x0C ^ 0x0D
    assert [head[name] for name in ("version", "kind", "origin", "topic id")] == [1, 2, 3, 4]
    assert [head[name] for name in ("base offset", "stamp", "durable offset", "count")] == [12, 13, 11, 3]
    assert head["payload size"] == len(frame) - 48

    batch = read(frame[48:], table("RecordBatch v2"))
    assert batch["CRC"] == crc(frame[48 + 21 :])
    assert batch["length"] + 12 == head["payload size"]
    assert [batch[name] for name in ("base offset", "leader epoch", "magic")] == [12, 0x0A0B0C0D, 2]
    assert [batch[name] for name in ("last offset delta", "record count", "attributes")] == [2, 3, 0]
    assert [batch[name] for name in ("first time", "max time")] == [1000, 1000]
    assert [batch[name] for name in ("producer id", "producer epoch", "base sequence")] == [5, 6, 7]


def test_the_example_on_the_docs_page_runs(capsys):
    page = (ROOT / "docs/format.md").read_text()
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], {})
    assert "0 b'factory/line-3' b'21.5'" in capsys.readouterr().out
