"""Which cell of a cluster holds a namespace. A broker that is alone is cell 1 and holds them all.

A namespace that has no place of its own is in cell 1, whose owner also keeps users and roles for all cells.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from mainstem.broker.rights.access import Principal

FIRST_CELL = 1
AGAIN = "again"  # what a transport tells of a client that another cell has let in: an `Again`


class Placement(Container[str]):
    """`places` is replaced as the cluster's tables change. It contains the names of all namespaces of the cluster."""

    def __init__(self, own: Container[str], cell: int = FIRST_CELL) -> None:
        self._own = own  # namespaces of this broker
        self.cell = cell
        self.places: Mapping[str, int] = {}

    def cell_of(self, namespace: str) -> int:
        return self.places.get(namespace, FIRST_CELL)

    def elsewhere(self, namespace: str) -> int | None:
        """The cell that holds it, if that is not this one."""
        cell = self.places.get(namespace, FIRST_CELL)
        return cell if cell != self.cell else None

    def __contains__(self, namespace: object) -> bool:
        return namespace in self._own or namespace in self.places


class Again:
    """A client that another cell has let in, and handed on."""

    __slots__ = ("_principal",)

    def __init__(self, principal: Principal) -> None:
        self._principal: Principal | None = principal

    def take(self) -> Principal | None:
        """As whom; told once: what it says later it says to us."""
        principal, self._principal = self._principal, None
        return principal
