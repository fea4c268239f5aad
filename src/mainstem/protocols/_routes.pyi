from collections.abc import Callable

from mainstem.broker.delivery._live import Route

Resolve = Callable[[bytes], tuple[Route | None, int, int, int]]

ROUTES_MAX = 1 << 18

class RouteTable:
    """Topic bytes to Route; an unknown topic is resolved, which may raise."""

    count_max: int
    generation: int
    def __init__(self, resolve: Resolve, count_max: int = ROUTES_MAX) -> None: ...
    @property
    def count(self) -> int: ...
    def clear(self) -> None:
        """Forget all: rights, filters or routes changed."""
