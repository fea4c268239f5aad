"""One request of the API, understood: who asks, about what, with which arguments; and how the table describes them."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mainstem.admin.answers import Page
from mainstem.admin.bodies import body_of, json_of
from mainstem.admin.problems import problem_of
from mainstem.admin.rights import admit, may, require
from mainstem.admin.running import Running
from mainstem.admin.schema_rights import shown_to
from mainstem.broker.broker import Broker
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.rights.access import Action, Principal
from mainstem.broker.rights.audit import DONE, FAILED, REFUSED
from mainstem.broker.rights.operations import NEEDS, Need
from mainstem.broker.rights.refusals import Client
from mainstem.broker.schemas.enforcement import Shown
from mainstem.log.away import RUNS_MAX, brought
from mainstem.model.errors import InvalidArgument, MainstemError, NotAuthorized, Overloaded
from mainstem.storage.engine import NotLocal

logger = logging.getLogger("mainstem.audit")

T = TypeVar("T")
Handler = Callable[["Call"], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Field:
    """A query parameter or a field of a body."""

    name: str
    kind: str  # string | integer | boolean | object | array
    doc: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of the API: the route, its documentation and its rights all come from here."""

    method: str
    path: str
    handler: Handler
    summary: str
    needs: str  # its line in the table of operations
    query: tuple[Field, ...] = ()
    body: tuple[Field, ...] = ()
    streams: bool = False  # answers with server-sent events
    strict: bool = True  # whether a field that nobody reads is refused; other tools' bodies have many
    names: str = ""  # the field (of path, query or body) that names the object; without, the handler asks

    @property
    def need(self) -> Need:
        return NEEDS[self.needs]

    @property
    def answer(self) -> Any:
        """The type of what it answers: its handler says it."""
        return get_type_hints(self.handler, include_extras=True)["return"]

    @property
    def group(self) -> str:
        """What its documentation is filed under."""
        return self.path.removeprefix("/v1").split("/")[1]


LIMIT = Field("limit", "integer", "Rows to answer, at most [http] page_rows_max.")
AFTER = Field("after", "string", "Go on after this row: `next` of the answer before.")


@dataclass(slots=True)
class Call:
    running: Running
    principal: Principal
    query: dict[str, str]
    path: dict[str, str]
    need: Need
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def namespace(self) -> Namespace:
        return admit(self.running.broker, self.principal, self.need, self.query.get("namespace", ""))

    def may(self, name: str, operation: str = "") -> bool:
        """Whether the caller has the right on this object that this operation (or another) needs."""
        need = NEEDS[operation] if operation else self.need
        return may(self.running, self.principal, need, self.namespace, name)

    def require_object(self, name: str, operation: str = "") -> None:
        need = NEEDS[operation] if operation else self.need
        require(self.running, self.principal, need, self.namespace, name)

    def require(self, action: Action, topic: bytes) -> None:
        self.running.broker.access.require(self.principal, action, topic)

    def allows(self, action: Action, topic: bytes) -> bool:
        return self.running.broker.access.allows(self.principal, action, topic)

    def may_describe(self, name: bytes) -> bool:
        return self.allows(Action.DESCRIBE, name)

    def counted(self, total: int) -> int | None:
        """How many there are of all topics or views is for who may describe all of them."""
        everything = self.running.broker.access.allows_all(self.principal, Action.DESCRIBE, b"#")
        return total if everything else None

    def shown(self) -> Callable[[bytes], Shown | None]:
        """Makes JSON of values whose schema the caller may see."""
        return shown_to(self.running.broker, self.principal, self.namespace)

    def denied(self) -> tuple[bytes, ...]:
        """What rules deny the caller to read."""
        return self.running.broker.access.denied_filters(self.principal, Action.CONSUME)

    @property
    def limit(self) -> int:
        most: int = self.running.config.http.page_rows_max
        asked = self.number("limit", min(100, most))
        if asked < 1:
            raise InvalidArgument(f"limit must be at least 1, not {asked}")
        return min(asked, most)

    @property
    def begin(self) -> int:
        """Of lists whose `after` is a place."""
        return max(0, self.number("after", 0))

    def number(self, name: str, default: int) -> int:
        text = self.query.get(name)
        if text is None or text == "":
            return default
        try:
            found = int(text)
        except ValueError:
            raise InvalidArgument(f"{name} must be a whole number, not {text[:100]!r}") from None
        if abs(found) >= 1 << 63:
            raise InvalidArgument(f"{name} must have 64 bits, not as many as {text[:100]!r}")
        return found

    def flag(self, name: str) -> bool:
        return self.query.get(name, "") in ("1", "true", "yes", "on")


def page(items: list[T], next_row: str | None = None) -> Page[T]:
    return {"items": items, "next": next_row}


def check_ordinary(name: bytes) -> None:
    if name.startswith(b"$"):
        raise InvalidArgument("topics that begin with $ are the broker's own")


def endpoint(running: Running, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        call: Call | None = None
        try:
            call = await _call_of(running, operation, request)
            result = await _answered(operation, call)
        except MainstemError as error:
            if operation.method != "GET":
                audit(running.broker, request, operation.needs, error, call.body if call is not None else {})
            if isinstance(error, NotAuthorized) and (operation.method == "GET" or operation.needs in READING):
                _tell_refused(running.broker, request, operation.needs, error)
            return problem_of(error)
        if operation.method != "GET":
            audit(running.broker, request, operation.needs, None, call.body)
        return result if isinstance(result, Response) else json_response(result)

    return answer


async def _answered(operation: Operation, call: Call) -> Any:
    """A handler that only reads runs again when what it missed, which lay elsewhere, is here."""
    for _ in range(RUNS_MAX):
        try:
            return await operation.handler(call)
        except NotLocal as missing:
            if operation.method != "GET":
                raise Overloaded("it reads what lies in the object store: try again") from None
            await brought(missing)
    raise Overloaded("it reads too much that lies in the object store", fix="ask for less: ?limit=")


TOLD = (
    "name",
    "filter",
    "allow",
    "actions",
    "kind",
    "match",
    "roles",
    "rules",
    "namespace",
    "also",
    "quota",
    "to",
    "settings",
    "durability",
)
READING = ("topic.publish", "query.run", "search.run")  # by a POST, and no change that an admin makes


def audit(
    broker: Broker, request: Request, operation: str, error: MainstemError | None, body: Mapping[str, Any] | None = None
) -> None:
    """Who changed what from where, and how it ended; line breaks cannot forge another entry."""
    principal = request.scope["state"].get("principal")
    address = request.client.host if request.client is not None else ""
    name = principal.name if principal is not None else "-"
    outcome = "done" if error is None else f"refused: {error.code}"
    logger.info("%r from %s: %s %r %s", name, address, request.method, request.url.path, outcome)
    if operation in READING:
        return
    said = {key: value for key, value in (body or {}).items() if key in TOLD and value is not None}
    asked = request.query_params.get("namespace", "")
    filters = request.query_params.get("filter", "")
    broker.audit.note(
        principal,
        operation,
        " ".join(filter(None, (request.url.path, filters, json.dumps(said) if said else ""))),
        outcome=DONE if error is None else REFUSED if isinstance(error, NotAuthorized) else FAILED,
        why="" if error is None else error.message,
        address=address,
        protocol="http",
        namespace=asked if asked in broker.namespaces else "",
    )


def _tell_refused(broker: Broker, request: Request, operation: str, error: MainstemError) -> None:
    """A publish or a read: these come often, so the audit tells them together (`broker/rights/refusals.py`)."""
    principal = request.scope["state"].get("principal")
    if principal is None:
        return  # nobody yet: failed logins are told by themselves
    asked = request.query_params.get("namespace", "")
    address = request.client.host if request.client is not None else ""
    client = Client(principal, address, "http", asked if asked in broker.namespaces else "")
    words = (request.url.path, request.query_params.get("topic"), request.query_params.get("filter"))
    broker.audit.refused(client, lambda: client, operation, " ".join(filter(None, words)), error.message)


def json_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _call_of(running: Running, operation: Operation, request: Request) -> Call:
    principal = request.scope["state"].get("principal") or Principal("anonymous")
    query, path = _known(dict(request.query_params), operation), dict(request.path_params)
    principal = running.broker.access.within(principal, query.get("namespace", ""))
    call = Call(running, principal, query, path, operation.need)
    admit(running.broker, principal, operation.need, query.get("namespace", ""))
    if request.method in ("POST", "PUT", "PATCH"):
        call.body = _checked(await _json(request), operation)
    if operation.names:
        given = {**call.query, **call.body, **call.path}.get(operation.names, "")
        call.require_object(given)
    return call


async def _json(request: Request) -> dict[str, Any]:
    data = await body_of(request)
    value = json_of(data) if data else {}
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
            if not operation.strict:
                continue
            raise InvalidArgument(f"unknown field {name!r}; {_hint(name, known)}")
        kinds = _KINDS[known[name].kind]
        if value is not None and (not isinstance(value, kinds) or (kinds == (int,) and isinstance(value, bool))):
            raise InvalidArgument(f"{name!r} must be of type {known[name].kind}, not {type(value).__name__}")
    missing = [one.name for one in operation.body if one.required and body.get(one.name) is None]
    if missing:
        raise InvalidArgument(f"missing: {', '.join(missing)}")
    return body
