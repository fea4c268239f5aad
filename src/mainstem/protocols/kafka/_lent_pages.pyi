from typing import Any

def send_lent(fd: int, parts: list[Any]) -> int:
    """How many bytes of the parts the socket took at once."""
