KEPT_BYTES_MAX: int
PAGED_BYTES_MIN: int

class Block:
    """Memory for a large message, writable: once nobody has it, it is the next one's."""

    def __init__(self, size: int) -> None: ...
    def __len__(self) -> int: ...
    def view(self) -> memoryview:
        """Whoever has it, or a part of it, keeps the memory."""

    def kept(self, filled: int) -> int:
        """So much memory it takes once so many bytes of it are filled."""

    def spoil(self) -> None:
        """What it was for did not become whole: it is given back to the system."""

def kept_bytes() -> int:
    """For the next messages."""

def release_idle() -> int:
    """Give back what was not used since the last call; returns how many bytes. For a thread: it takes milliseconds."""
