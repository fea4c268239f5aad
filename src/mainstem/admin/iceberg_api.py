"""The lake as an Iceberg REST catalog at /iceberg/v1; a process of its own (mainstem_pipeline.lake.rest) answers.

It serves the warehouse of `[lake]`, which belongs to the namespace `/`: who may read everything there may load tables, who
may publish everything may commit. Errors are `{"error": {"message", "type", "code"}}`, as the specification says. A client
without HTTP Basic gets a bearer token for its name and password (OAuth's client credentials, /iceberg/v1/oauth/tokens).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainstem.admin.bodies import body_of, json_of
from mainstem.admin.calls import audit
from mainstem.admin.problems import status_of
from mainstem.admin.rights import admit
from mainstem.admin.running import Running
from mainstem.admin.tokens import TOKEN_S, TOKENS_PATH
from mainstem.broker.identity.login import Shown
from mainstem.broker.line_process import Ended, Late, LineProcess
from mainstem.broker.rights.access import Principal
from mainstem.broker.rights.operations import NEEDS
from mainstem.model.errors import ClientFault, MainstemError, NotAuthorized

ROOT = "/iceberg/v1"
NAMESPACE = "/"
ANSWER_S_MAX = 60.0
READS = ("GET", "HEAD")
ASKED = (
    "parent",
)  # of a query; pages are not made: `pageToken` is answered with everything, as the specification allows


def iceberg_routes(running: Running) -> list[Route]:
    lake = running.config.lake
    process = LineProcess("mainstem_pipeline.lake.rest", ANSWER_S_MAX, lake.warehouse, lake.catalog)
    running.broker.closing.append(process.close)

    async def answer(request: Request) -> Response:
        try:
            _admit(running, request)
            if not lake.warehouse:
                return _problem(404, "NoSuchWarehouseException", "no lake is served here: set [lake] warehouse")
            status, body = await _asked(process, request, keys=_gives_keys(running, request, lake.share_keys))
        except MainstemError as error:
            if request.method not in READS:
                audit(running.broker, request, f"catalog {request.method}", error)
            kind = "ForbiddenException" if isinstance(error, NotAuthorized) else "BadRequestException"
            return _problem(status_of(error), kind, error.message)
        if request.method not in READS:
            failure = None if status < 400 else MainstemError(str(body), code=f"HTTP {status}")
            audit(running.broker, request, f"catalog {request.method}", failure)
        if body is None or request.method == "HEAD":
            return Response(status_code=status if body is None or status >= 400 else 204)
        return Response(msgspec.json.encode(body), status, media_type="application/json")

    async def token(request: Request) -> Response:
        return await _token(running, request)

    return [
        Route(TOKENS_PATH, token, methods=["POST"], name="self.read"),
        Route(f"{ROOT}/{{path:path}}", answer, methods=["GET", "HEAD"], name="catalog.read"),
        Route(f"{ROOT}/{{path:path}}", answer, methods=["POST", "DELETE"], name="catalog.write"),
    ]


def _admit(running: Running, request: Request) -> None:
    principal = request.scope["state"].get("principal") or Principal("anonymous")
    reads = request.method in READS or request.url.path.endswith("/metrics")
    admit(running.broker, principal, NEEDS["catalog.read" if reads else "catalog.write"], NAMESPACE)


def _gives_keys(running: Running, request: Request, shared: str) -> bool:
    """Whether a caller who asks for them gets the bucket's keys. They open all of it, whatever is loaded."""
    if shared == "none" or "vended-credentials" not in request.headers.get("x-iceberg-access-delegation", ""):
        return False
    principal = request.scope["state"].get("principal") or Principal("anonymous")
    try:
        admit(running.broker, principal, NEEDS["catalog.read" if shared == "readers" else "catalog.write"], NAMESPACE)
    except NotAuthorized:
        return False
    return True


async def _asked(process: LineProcess, request: Request, *, keys: bool) -> tuple[int, Any]:
    raw = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1").partition("?")[0]
    path = [unquote(part) for part in raw.removeprefix(ROOT).strip("/").split("/")]
    try:
        data = await body_of(request) if request.method == "POST" else b""
        body = json_of(data) if data else _query(request)
    except ClientFault as error:
        return status_of(error), _error(status_of(error), "BadRequestException", error.message)
    if not isinstance(body, dict):
        return 400, _error(400, "BadRequestException", "the body must be a JSON object")
    try:
        found = await process.ask({"method": request.method, "path": path, "body": body, "keys": keys})
    except (Late, Ended) as why:  # whether a commit happened is not known: 409 would have it tried again
        kind = "CommitStateUnknownException" if request.method == "POST" else "ServiceUnavailableException"
        status = 500 if request.method == "POST" else 503
        hint = "" if isinstance(why, Late) else "; is mainstem[lake] installed, and can [lake] warehouse be opened?"
        return status, _error(status, kind, f"the catalog's process did not answer: {why}{hint}")
    return int(found["status"]), found["body"]


def _query(request: Request) -> dict[str, str]:
    return {name: request.query_params[name] for name in ASKED if name in request.query_params}


async def _token(running: Running, request: Request) -> Response:
    form = await request.form()
    name, password = str(form.get("client_id", "")), str(form.get("client_secret", ""))
    address = request.client.host if request.client is not None else ""
    try:
        principal = await running.broker.identity.login(
            Shown(name, password.encode(), address=address, protocol="http")
        )
    except MainstemError as error:
        body = {"error": "invalid_client", "error_description": error.message}
        return Response(msgspec.json.encode(body), 401, media_type="application/json")
    made = {
        "access_token": running.tokens.issue(principal.name),
        "token_type": "bearer",
        "expires_in": TOKEN_S,
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }
    return Response(msgspec.json.encode(made), media_type="application/json")


def _error(status: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": status}}


def _problem(status: int, kind: str, message: str) -> Response:
    return Response(msgspec.json.encode(_error(status, kind, message)), status, media_type="application/json")
