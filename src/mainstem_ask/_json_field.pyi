from typing import Any

def find_fields(
    data: Any, offsets: Any, rows: int, path: tuple[bytes | int, ...], kinds: Any, starts: Any, sizes: Any
) -> None: ...
def take_texts(
    data: Any, offsets: Any, rows: int, path: tuple[bytes | int, ...], kinds: Any, ends: Any, valid: Any, made: Any
) -> int:
    """While a row is at hand: its field is copied, which is what a scan over all rows afterwards would wait for."""

def numbers(data: Any, kinds: Any, starts: Any, sizes: Any, made: Any) -> None: ...
def gather(data: Any, starts: Any, offsets: Any, made: Any) -> None: ...
