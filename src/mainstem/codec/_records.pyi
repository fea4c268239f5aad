from array import array
from collections.abc import Callable

from mainstem.codec._batch import Buffer
from mainstem.model.errors import MainstemError
from mainstem.model.record import Record

def decode_batch(buf: Buffer, pos: int = 0, *, inflated_bytes_max: int, verify: bool = True) -> list[Record]:
    """The records of the batch at `pos`. Those of a control batch carry CONTROL_FLAG in `flags`."""

def decode_values(buf: Buffer, *, inflated_bytes_max: int) -> list[bytes | None]:
    """The values of a batch whose checksum is known to fit."""

def decode_chosen(
    buf: Buffer,
    log_id: int,
    offsets: array[int] | memoryview,
    *,
    data_only: bool = True,
    inflated_bytes_max: int,
    topic_of: dict[int, bytes] | None = None,
    verify: bool = True,
    bad: list[tuple[int, MainstemError]] | None = None,
    inflate: Callable[[int, bytes, int], bytes] | None = None,
) -> list[Record]:
    """The records at `offsets` (sorted int64, an array('q') or a view of one); all others are stepped over."""

def decode_frames(
    buf: Buffer,
    log_id: int,
    *,
    start_offset: int = 0,
    end_offset: int | None = None,
    data_only: bool = True,
    inflated_bytes_max: int,
    topic_of: dict[int, bytes] | None = None,
    verify: bool = True,
    bad: list[tuple[int, MainstemError]] | None = None,
    inflate: Callable[[int, bytes, int], bytes] | None = None,
) -> list[Record]:
    """The records from `start_offset` to before `end_offset` of a buffer of whole frames, each told where it lies."""

def note_topics(
    buf: Buffer,
    log_id: int,
    numbers: array[int],
    known: dict[bytes, int],
    *,
    inflated_bytes_max: int,
    topic_of: dict[int, bytes] | None = None,
) -> None:
    """Of one frame: into `numbers` (array('I'), one for each offset) what `known` says of its topic, which new ones join."""

def check_records(records: bytes, count: int, last_delta: int) -> None:
    """Whether a client's records decode to their end. What a checksum covers may still be nonsense."""

def keyless_records(records: Buffer, count: int, last_delta: int, places_max: int) -> tuple[int, list[int]]:
    """How many of a client's records have no key, and the places of the first. They decode to their end."""
