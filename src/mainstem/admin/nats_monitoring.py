"""nats-server's own endpoints (`/varz`, `/connz`, `/subsz`, `/jsz`, `/healthz`), told by the NATS listener."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mainstem.admin.calls import json_response
from mainstem.admin.problems import problem, problem_of
from mainstem.admin.running import Running
from mainstem.model.errors import NotAuthorized

PUBLIC = "healthz"
FOR_ADMINS = ("varz", "connz", "subsz", "subscriptionsz", "jsz")


def nats_routes(running: Running) -> list[BaseRoute]:
    async def tell(request: Request) -> Response:
        path, principal = request.url.path.strip("/"), request.scope["state"].get("principal")
        if path != PUBLIC and not (principal is not None and principal.admin):
            return problem_of(NotAuthorized(f"only an admin may see /{path}"))
        server = running.servers.get("nats")
        told = server.monitoring.document(path, dict(request.query_params)) if server is not None else None
        if told is None:
            return problem(404, "MS-1001", "the NATS listener is off", fix="set listeners.nats_port")
        return json_response(told)

    routes: list[BaseRoute] = [Route(f"/{PUBLIC}", tell, name="health.read")]
    return routes + [Route(f"/{name}", tell, name="overview.rates") for name in FOR_ADMINS]
