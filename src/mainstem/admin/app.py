"""The HTTP application: the API's routes, health, metrics, the console, behind the guard."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from mainstem.admin.api import OPERATIONS
from mainstem.admin.asking import Asking
from mainstem.admin.bodies import body_ended
from mainstem.admin.calls import endpoint, json_response
from mainstem.admin.console.login import LoginPage
from mainstem.admin.console.rendering import NUMBERS, Console
from mainstem.admin.guard import Guard
from mainstem.admin.iceberg_api import iceberg_routes
from mainstem.admin.live_answers import LiveAnswers
from mainstem.admin.metrics.collecting import metrics_text
from mainstem.admin.metrics.exposition import CONTENT_TYPE, OPEN_METRICS, OPEN_METRICS_TYPE
from mainstem.admin.nats_monitoring import nats_routes
from mainstem.admin.oidc import Oidc
from mainstem.admin.openapi import openapi_document
from mainstem.admin.problems import problem, problem_of
from mainstem.admin.rabbit_api import rabbit_routes
from mainstem.admin.running import Running
from mainstem.admin.scan_api import spark_routes
from mainstem.admin.schema_api import schema_routes
from mainstem.admin.sessions import Sessions
from mainstem.admin.tokens import Tokens
from mainstem.model.errors import MainstemError, NotAuthorized

LIVE = {NUMBERS, *(one.path for one in OPERATIONS if one.streams and one.method == "GET")}  # answers without an end


def make_application(running: Running) -> Starlette:
    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        return PlainTextResponse("ok\n" if running.ready else "not ready\n", 200 if running.ready else 503)

    async def metrics(request: Request) -> Response:
        per_object = request.url.path == "/metrics/per-object"
        principal = request.scope["state"].get("principal")
        if request.url.path != "/metrics" and not (principal is not None and principal.admin):
            return problem_of(NotAuthorized("only an admin may see the metrics of single objects"))
        wanted = request.query_params.getlist("family") if request.url.path == "/metrics/detailed" else []
        as_open = OPEN_METRICS in request.headers.get("accept", "")
        try:
            text = await metrics_text(running, per_object=per_object, wanted=wanted, open_metrics=as_open)
        except MainstemError as error:
            return problem_of(error)
        return PlainTextResponse(text, media_type=OPEN_METRICS_TYPE if as_open else CONTENT_TYPE)

    async def openapi(request: Request) -> Response:
        return json_response(openapi_document())

    async def not_found(request: Request, error: Exception) -> Response:
        if console is not None and "text/html" in request.headers.get("accept", ""):
            return await console.nothing_there(request)
        return problem(404, "MS-1001", f"there is nothing at {request.url.path}", fix="see /v1/openapi.json")

    async def not_allowed(request: Request, error: Exception) -> Response:
        allow = getattr(error, "headers", None)  # the route's own: which methods are
        return problem(405, "MS-1004", f"{request.method} is not possible at {request.url.path}", headers=allow)

    async def failed(request: Request, error: Exception) -> Response:
        return problem(
            500,
            "MS-0000",
            f"a mistake in Mainstem: {type(error).__name__}",
            fix="report it, with what the broker's log says",
        )

    answered = [Route(one.path, endpoint(running, one), methods=[one.method], name=one.needs) for one in OPERATIONS]
    scans = spark_routes(running.broker)
    running.live, running.tokens = LiveAnswers(running.broker.access), Tokens(running.broker.access)
    running.sessions = sessions = Sessions(running)
    oidc = Oidc(running, running.broker.options.identity.tokens, sessions) if running.config.oidc.issuer else None
    running.asking = Asking(running, [*scans, *answered])
    routes: list[BaseRoute] = [
        Route("/livez", livez, name="health.read"),
        Route("/readyz", readyz, name="health.read"),
        Route("/metrics", metrics, name="metrics.read"),
        Route("/metrics/per-object", metrics, name="metrics.per-object"),
        Route("/metrics/detailed", metrics, name="metrics.per-object"),
        *nats_routes(running),
        Route("/v1/openapi.json", openapi, name="self.read"),
        *answered,
        *scans,
        *schema_routes(running),
        *iceberg_routes(running),
        *(rabbit_routes(running) if running.config.http.rabbit_api else ()),
        *sessions.routes(),
        *(oidc.routes() if oidc is not None else ()),
    ]
    console = Console(running) if running.config.http.console else None
    if console is not None:
        routes += [*LoginPage(running, sessions, console.templates).routes(), *console.routes()]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, running=running, live=LIVE)],
        exception_handlers={404: not_found, 405: not_allowed, ClientDisconnect: _cut_off, Exception: failed},
    )


async def _cut_off(request: Request, error: Exception) -> Response:
    """The client is gone, or sent more than it may."""
    return problem_of(body_ended())
