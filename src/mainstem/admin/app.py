"""The HTTP application: routes, guards, errors."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mainstem.admin.running import Running


def make_application(running: Running) -> Starlette:
    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        return PlainTextResponse("ok\n" if running.ready else "starting\n", status_code=200 if running.ready else 503)

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz)])
