"""One request of the API, understood: who asks, about what, with which arguments; and how the table describes them."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mainstem.admin.problems import problem_of
from mainstem.admin.running import Running
from mainstem.broker.access import Action, Principal
from mainstem.broker.namespace import Namespace
from mainstem.model.errors import InvalidArgument, MainstemError, MessageTooLarge, NotAuthorized

logger = logging.getLogger("mainstem.audit")

Handler = Callable[["Call"], Awaitable[Any]]
PUBLIC, ANY, ADMIN = "public", "any", "admin"  # who may call; "any": whoever is logged in, checked per topic


@dataclass(frozen=True, slots=True)
class Field:
    """A query parameter or a field of a body."""

    name: str
    kind: str  # string | integer | boolean | object | array
    doc: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of the API: the route, its documentation and its permission all come from here."""

    method: str
    path: str
    handler: Handler
    summary: str
    permission: str = ANY
    query: tuple[Field, ...] = ()
    body: tuple[Field, ...] = ()
    streams: bool = False  # answers with server-sent events


LIMIT = Field("limit", "integer", "Rows to answer, at most [http] page_rows_max.")
AFTER = Field("after", "string", "Go on after this row: `next` of the answer before.")


@dataclass(slots=True)
class Call:
    running: Running
    principal: Principal
    query: dict[str, str]
    path: dict[str, str]
    body: dict[str, Any] = field(default_factory=dict)
    login: tuple[str, str] = ("", "")  # name and password of this request

    @property
    def namespace(self) -> Namespace:
        name = self.query.get("namespace", self.principal.namespace)
        if name != self.principal.namespace and not self.principal.admin:
            raise NotAuthorized(f"user {self.principal.name} belongs to namespace {self.principal.namespace}")
        return self.running.broker.namespace(name)

    def require(self, action: Action, topic: bytes) -> None:
        self.running.broker.access.require(self.principal, action, topic)

    def allows(self, action: Action, topic: bytes) -> bool:
        return self.running.broker.access.allows(self.principal, action, topic)

    @property
    def limit(self) -> int:
        most: int = self.running.config.http.page_rows_max
        asked = self.number("limit", min(100, most))
        if asked < 1:
            raise InvalidArgument(f"limit must be at least 1, not {asked}")
        return min(asked, most)

    def number(self, name: str, default: int) -> int:
        text = self.query.get(name)
        if text is None or text == "":
            return default
        try:
            return int(text)
        except ValueError:
            raise InvalidArgument(f"{name} must be a whole number, not {text!r}") from None

    def flag(self, name: str) -> bool:
        return self.query.get(name, "") in ("1", "true", "yes", "on")


def page(items: list[Any], next_row: str | None = None, **facts: Any) -> dict[str, Any]:
    return {"items": items, "next": next_row, **facts}


def check_ordinary(name: bytes) -> None:
    if name.startswith(b"$"):
        raise InvalidArgument("topics that begin with $ are the broker's own")


def endpoint(running: Running, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            call = await _call_of(running, operation, request)
            result = await operation.handler(call)
        except MainstemError as error:
            if operation.method != "GET":
                audit(request, f"refused: {error.code}")
            return problem_of(error)
        if operation.method != "GET":
            audit(request, "done")
        return result if isinstance(result, Response) else json_response(result)

    return answer


def audit(request: Request, outcome: str) -> None:
    """Who changed what from where, and how it ended; line breaks cannot forge another entry."""
    principal = request.scope["state"].get("principal")
    address = request.client.host if request.client is not None else ""
    name = principal.name if principal is not None else "-"
    logger.info("%r from %s: %s %r %s", name, address, request.method, request.url.path, outcome)


def json_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _call_of(running: Running, operation: Operation, request: Request) -> Call:
    principal = request.scope["state"].get("principal") or Principal("anonymous")
    if operation.permission == ADMIN and not principal.admin:
        raise NotAuthorized(f"only an admin may do this; {principal.name} is none")
    call = Call(running, principal, _known(dict(request.query_params), operation), dict(request.path_params))
    call.login = request.scope["state"].get("login", ("", ""))
    if request.method in ("POST", "PUT", "PATCH"):
        call.body = _checked(await _json(request), operation)
    return call


async def _json(request: Request) -> dict[str, Any]:
    try:
        data = await request.body()
        value = msgspec.json.decode(data) if data else {}
    except ClientDisconnect:
        raise MessageTooLarge("the body is longer than [http] body_bytes_max allows") from None
    except RecursionError:
        raise InvalidArgument("the body is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArgument("the body must be a JSON object")
    return value


_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "any": (object,),
}


def _known(query: dict[str, str], operation: Operation) -> dict[str, str]:
    """A parameter nobody reads would be a promise not kept."""
    known = (*(one.name for one in operation.query), "namespace")
    for name in query:
        if name not in known:
            raise InvalidArgument(f"unknown parameter {name!r}; {_hint(name, known)}")
    return query


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known) or 'none'}"


def _checked(body: dict[str, Any], operation: Operation) -> dict[str, Any]:
    """Nor a field of a body."""
    known = {one.name: one for one in operation.body}
    for name, value in body.items():
        if name not in known:
            raise InvalidArgument(f"unknown field {name!r}; {_hint(name, known)}")
        kinds = _KINDS[known[name].kind]
        if value is not None and (not isinstance(value, kinds) or (kinds == (int,) and isinstance(value, bool))):
            raise InvalidArgument(f"{name!r} must be of type {known[name].kind}, not {type(value).__name__}")
    missing = [one.name for one in operation.body if one.required and body.get(one.name) is None]
    if missing:
        raise InvalidArgument(f"missing: {', '.join(missing)}")
    return body
