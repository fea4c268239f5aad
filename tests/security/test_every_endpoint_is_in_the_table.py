"""No HTTP endpoint without a line in the table of operations, and no line that the documentation does not tell."""

from __future__ import annotations

from typing import Any

from mainstem.admin.api import OPERATIONS
from mainstem.admin.api_reference import reference_page
from mainstem.admin.rabbit_api import ROUTES
from mainstem.broker.rights.operations import NEEDS, TABLE, Scope
from mainstem.testing import Broker


async def test_every_route_names_its_line() -> None:
    async with Broker() as broker:
        assert broker.app is not None
        application: Any = broker.app.servers["http"].application
        unknown = [
            route.path for route in application.routes if route.name not in NEEDS and route.path != "/api/{path:path}"
        ]
    assert not unknown
    assert not [path for _, path, needs, _ in ROUTES if needs not in NEEDS]


def test_the_table_names_each_operation_once_and_completely() -> None:
    assert len(NEEDS) == len(TABLE)
    for need in TABLE:
        named = need.scope in (Scope.OBJECT, Scope.EACH, Scope.WHOLE, Scope.NAMESPACE)
        assert (need.action is not None and need.kind is not None) == named, need.operation


def test_the_documentation_tells_what_each_endpoint_needs() -> None:
    page = reference_page()
    for one in OPERATIONS:
        assert f"{one.summary} Needs {one.need}." in page
