"""Confluent's schema registry API, as its clients call it; the registry itself is broker/schemas.

    /subjects[/{subject}[/versions[/{version}[/schema | /referencedby]]]]
    /schemas · /schemas/types · /schemas/ids/{id}[/schema | /subjects | /versions] · /schemas/guids/{guid}
    /compatibility/subjects/{subject}/versions[/{version}]
    /config[/{subject}] · /mode[/{subject}] · /contexts

Errors are `{"error_code", "message"}` with the original's codes. Who may do what with a subject is said by the rules of the
topic it is about (broker/schemas/subjects.py); `?namespace=` is an admin's. Subjects are percent-encoded in a path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainstem.admin.bodies import body_of, json_of
from mainstem.admin.calls import audit
from mainstem.admin.problems import status_of
from mainstem.admin.rights import admit, require
from mainstem.admin.running import Running
from mainstem.admin.schema_rights import sees
from mainstem.broker.rights.access import Principal
from mainstem.broker.rights.operations import NEEDS
from mainstem.broker.schemas import faults
from mainstem.broker.schemas.faults import SchemaFault
from mainstem.broker.schemas.records import AVRO, TYPES, Schema, Version
from mainstem.broker.schemas.registry import reference_of
from mainstem.broker.schemas.state import number_of
from mainstem.broker.schemas.subjects import topic_of_subject
from mainstem.model.errors import MainstemError
from mainstem.model.whole_numbers import whole_number

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
ROOTS = ("subjects", "schemas", "compatibility", "config", "mode", "contexts", "associations")
Handler = Callable[..., Awaitable[Any]]


class Call:
    """One request: who asks, in which namespace, the query and the body."""

    def __init__(self, running: Running, request: Request, body: Any) -> None:
        self.running = running
        self.principal: Principal = request.scope["state"].get("principal") or Principal("anonymous")
        self._query = request.query_params
        self.body: dict[str, Any] = body if isinstance(body, dict) else {}
        asked = self._query.get("namespace", "")
        self.namespace = admit(running.broker, self.principal, NEEDS["schema.list"], asked)
        self.registry = running.broker.schemas.of(self.namespace)
        self.state = self.registry.state

    def flag(self, name: str) -> bool:
        return self._query.get(name, "").lower() in ("true", "1")

    def text(self, name: str) -> str:
        return self._query.get(name, "")

    def require(self, subject: str, operation: str) -> None:
        require(self.running, self.principal, NEEDS[operation], self.namespace, topic_of_subject(subject))

    def require_all(self) -> None:
        """What concerns all subjects of the namespace."""
        admit(self.running.broker, self.principal, NEEDS["schema.configure-all"], self.namespace.name)

    def sees(self, subject: str) -> bool:
        return sees(self.running, self.principal, self.namespace, subject)

    def require_sight(self, subject: str) -> None:
        if not self.sees(subject):
            self.require(subject, "schema.describe")

    def require_level_of(self, subject: str | None) -> None:
        if subject is None:
            self.require_all()
        else:
            self.require(subject, "schema.register")

    def schema(self) -> Schema:
        text = self.body.get("schema")
        if not isinstance(text, str):
            raise faults.invalid_schema("the body has no schema")
        references = self.body.get("references") or []
        if not isinstance(references, list):
            raise faults.invalid_schema("references are a list")
        kind = str(self.body.get("schemaType") or AVRO).upper()
        found = tuple(reference_of(one) for one in references)
        return Schema(kind, text, found, "", self.body.get("metadata"), self.body.get("ruleSet"))

    def number(self, name: str) -> int:
        value = self.body.get(name) or 0
        if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value < 1 << 31:
            raise faults.invalid_schema(f"{name} is a whole number")
        return max(value, 0)


# -- subjects ----------------------------------------------------------------------------------------------------------


async def list_subjects(call: Call) -> Any:
    state, prefix = call.state, call.text("subjectPrefix")
    names = state.names(deleted=call.flag("deleted") or call.flag("deletedOnly"))
    if call.flag("deletedOnly"):
        names = [name for name in names if not state.versions(name)]
    prefix = "" if prefix == ":*:" else prefix
    return [name for name in names if name.startswith(prefix) and call.sees(name)]


async def list_versions(call: Call, subject: str) -> Any:
    call.require_sight(subject)
    only = call.flag("deletedOnly")
    found = call.state.require(subject, deleted=call.flag("deleted") or only)
    return [one.version for one in found if one.deleted or not only]


async def get_version(call: Call, subject: str, number: str) -> Any:
    call.require_sight(subject)
    found = call.state.version(subject, number_of(number), deleted=call.flag("deleted"))
    return (await _formatted(call, found)).to_document()


async def get_version_schema(call: Call, subject: str, number: str) -> Any:
    call.require_sight(subject)
    found = call.state.version(subject, number_of(number), deleted=call.flag("deleted"))
    return _raw((await _formatted(call, found)).schema.text)


async def _formatted(call: Call, version: Version) -> Version:
    return replace(version, schema=await call.registry.formatted(version.schema, call.text("format")))


async def referenced_by(call: Call, subject: str, number: str) -> Any:
    call.require_sight(subject)
    found = call.state.version(subject, number_of(number))
    return sorted({one.id for one in call.state.live_referrers(found.subject, found.version)})


async def register(call: Call, subject: str) -> Any:
    """A caller that may only see the subject gets the id of what is registered already, as by a look-up."""
    schema, normalize = call.schema(), call.flag("normalize")
    try:
        call.require(subject, "schema.register")
    except MainstemError as refusal:
        if not call.sees(subject):
            raise
        try:
            found = await call.registry.look_up(subject, schema, normalize=normalize, deleted=False)
        except SchemaFault:
            raise refusal from None
    else:
        found = await call.registry.register(
            subject, schema, normalize=normalize, schema_id=call.number("id"), number=call.number("version")
        )
    return found.to_document()


async def look_up(call: Call, subject: str) -> Any:
    call.require_sight(subject)
    found = await call.registry.look_up(
        subject, call.schema(), normalize=call.flag("normalize"), deleted=call.flag("deleted")
    )
    return (await _formatted(call, found)).to_document()


async def delete_subject(call: Call, subject: str) -> Any:
    call.require(subject, "schema.delete")
    return await call.registry.delete_subject(subject, permanent=call.flag("permanent"))


async def delete_version(call: Call, subject: str, number: str) -> Any:
    call.require(subject, "schema.delete")
    return await call.registry.delete_version(subject, number_of(number), permanent=call.flag("permanent"))


# -- schemas by id -----------------------------------------------------------------------------------------------------


async def list_schemas(call: Call) -> Any:
    latest, prefix = call.flag("latestOnly"), call.text("subjectPrefix")
    found = [one for one in call.state.all_versions(prefix, deleted=call.flag("deleted")) if call.sees(one.subject)]
    if latest:
        found = list({one.subject: one for one in found}.values())
    return [one.to_document() for one in found]


async def list_types(call: Call) -> Any:
    return list(TYPES[::-1])


async def get_by_id(call: Call, schema_id: str) -> Any:
    schema = await call.registry.formatted(_seen(call, schema_id), call.text("format"))
    document = {**schema.to_document(), "guid": schema.guid}
    return {**document, "maxId": call.state.id_highest} if call.flag("fetchMaxId") else document


async def get_text_by_id(call: Call, schema_id: str) -> Any:
    return _raw((await call.registry.formatted(_seen(call, schema_id), call.text("format"))).text)


async def get_by_guid(call: Call, guid: str) -> Any:
    for schema_id, schema in call.state.ids.items():
        if schema.guid == guid:
            found = await call.registry.formatted(_seen(call, str(schema_id)), call.text("format"))
            return {**found.to_document(), "id": schema_id, "guid": guid}
    raise faults.schema_not_found(guid[:64])


async def subjects_of_id(call: Call, schema_id: str) -> Any:
    _seen(call, schema_id)
    found = call.state.users(int(schema_id), deleted=call.flag("deleted"))
    return sorted({one.subject for one in found if call.sees(one.subject)})


async def versions_of_id(call: Call, schema_id: str) -> Any:
    _seen(call, schema_id)
    found = call.state.users(int(schema_id), deleted=call.flag("deleted"))
    return [{"subject": one.subject, "version": one.version} for one in found if call.sees(one.subject)]


def _seen(call: Call, schema_id: str) -> Schema:
    """Whoever may see one of its subjects; others learn nothing of it, not even that it exists."""
    if whole_number(schema_id, 10) is None:
        raise faults.schema_not_found(schema_id[:32])
    schema = call.state.schema(int(schema_id))
    if not any(call.sees(one.subject) for one in call.state.users(int(schema_id), deleted=True)):
        raise faults.schema_not_found(schema_id)
    return schema


# -- compatibility, levels, modes --------------------------------------------------------------------------------------


async def check(call: Call, subject: str, number: str | None = None) -> Any:
    call.require_sight(subject)
    wanted = None if number is None else number_of(number)
    messages = await call.registry.compatibility(subject, wanted, call.schema(), normalize=call.flag("normalize"))
    return {"is_compatible": not messages, **({"messages": messages} if call.flag("verbose") else {})}


async def get_level(call: Call, subject: str | None = None) -> Any:
    if subject is None:
        return {"compatibilityLevel": call.state.level("")}
    call.require_sight(subject)
    if subject not in call.state.levels and not call.flag("defaultToGlobal"):
        raise faults.no_level(subject)
    return {"compatibilityLevel": call.state.level(subject)}


async def set_level(call: Call, subject: str | None = None) -> Any:
    call.require_level_of(subject)
    level = call.body.get("compatibility")
    if not isinstance(level, str):
        raise faults.invalid_level()
    await call.registry.set_level(subject, level.upper())
    return {"compatibility": level.upper()}


async def reset_level(call: Call, subject: str | None = None) -> Any:
    call.require_level_of(subject)
    if subject is not None and subject not in call.state.levels:
        raise faults.no_level(subject)
    before = call.state.level(subject or "")
    await call.registry.set_level(subject, None)
    return {"compatibilityLevel": before}


async def get_mode(call: Call, subject: str | None = None) -> Any:
    if subject is None:
        return {"mode": call.state.mode(None)}
    call.require_sight(subject)
    if subject not in call.state.modes and not call.flag("defaultToGlobal"):
        raise faults.no_mode(subject)
    return {"mode": call.state.mode(subject)}


async def set_mode(call: Call, subject: str | None = None) -> Any:
    call.require_level_of(subject)
    mode = call.body.get("mode")
    if not isinstance(mode, str):
        raise faults.invalid_mode()
    await call.registry.set_mode(subject, mode.upper(), force=call.flag("force"))
    return {"mode": mode.upper()}


async def reset_mode(call: Call, subject: str | None = None) -> Any:
    call.require_level_of(subject)
    if subject is not None and subject not in call.state.modes:
        raise faults.no_mode(subject)
    before = call.state.mode(subject)
    await call.registry.set_mode(subject, None)
    return {"mode": before}


async def list_contexts(call: Call) -> Any:
    return ["."]


# -- routes ------------------------------------------------------------------------------------------------------------

_VERSIONS = "/subjects/{}/versions"
ROUTES: tuple[tuple[str, str, str, Handler], ...] = (  # the table's lines are checked by the handlers, by subject
    ("GET", "/subjects", "schema.list", list_subjects),
    ("POST", "/subjects/{}", "schema.describe", look_up),
    ("DELETE", "/subjects/{}", "schema.delete", delete_subject),
    ("GET", _VERSIONS, "schema.describe", list_versions),
    ("POST", _VERSIONS, "schema.register", register),
    ("GET", f"{_VERSIONS}/{{}}", "schema.describe", get_version),
    ("DELETE", f"{_VERSIONS}/{{}}", "schema.delete", delete_version),
    ("GET", f"{_VERSIONS}/{{}}/schema", "schema.describe", get_version_schema),
    ("GET", f"{_VERSIONS}/{{}}/referencedby", "schema.describe", referenced_by),
    ("GET", "/schemas", "schema.list", list_schemas),
    ("GET", "/schemas/types", "schema.list", list_types),
    ("GET", "/schemas/ids/{}", "schema.describe", get_by_id),
    ("GET", "/schemas/ids/{}/schema", "schema.describe", get_text_by_id),
    ("GET", "/schemas/ids/{}/subjects", "schema.describe", subjects_of_id),
    ("GET", "/schemas/ids/{}/versions", "schema.describe", versions_of_id),
    ("GET", "/schemas/guids/{}", "schema.describe", get_by_guid),
    ("POST", "/compatibility/subjects/{}/versions", "schema.describe", check),
    ("POST", "/compatibility/subjects/{}/versions/{}", "schema.describe", check),
    *(
        (method, path, needs, handler)
        for root, read, change, reset in (
            ("/config", get_level, set_level, reset_level),
            ("/mode", get_mode, set_mode, reset_mode),
        )
        for path, reads, needs in (
            (root, "schema.list", "schema.configure-all"),
            (f"{root}/{{}}", "schema.describe", "schema.register"),
        )
        for method, needs, handler in (("GET", reads, read), ("PUT", needs, change), ("DELETE", needs, reset))
    ),
    ("GET", "/contexts", "schema.list", list_contexts),
)
_PATTERNS = [(method, path.strip("/").split("/"), handler) for method, path, _, handler in ROUTES]


def schema_routes(running: Running) -> list[Route]:
    async def answer(request: Request) -> Response:
        raw = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1").partition("?")[0]
        path = [unquote(part) for part in raw.strip("/").split("/")]
        try:
            handler, arguments = _found(request.method, path)
            result = await handler(Call(running, request, await _body(request)), *arguments)
        except MainstemError as error:
            if request.method != "GET":
                audit(running.broker, request, f"schema {request.method}", error)
            return _problem(error)
        if request.method != "GET":
            audit(running.broker, request, f"schema {request.method}", None)
        return result if isinstance(result, Response) else _answer(200, result)

    methods = ["GET", "POST", "PUT", "DELETE"]
    paths = [f"/{root}{rest}" for root in ROOTS for rest in ("", "/{path:path}")]
    return [Route(path, answer, methods=methods, name="schema.list") for path in paths]


def _found(method: str, path: list[str]) -> tuple[Handler, list[str]]:
    known = False
    for wanted, pattern, handler in _PATTERNS:
        if len(pattern) != len(path) or any(
            part not in ("{}", given) for part, given in zip(pattern, path, strict=True)
        ):
            continue
        known = True
        if wanted == method:
            return handler, [given for part, given in zip(pattern, path, strict=True) if part == "{}"]
    raise SchemaFault(405 if known else 404, "HTTP 405 Method Not Allowed" if known else "HTTP 404 Not Found")


async def _body(request: Request) -> Any:
    if request.method not in ("POST", "PUT"):
        return None
    data = await body_of(request)
    return json_of(data) if data else {}


def _raw(text: str) -> Response:
    return Response(text, media_type=CONTENT_TYPE)


def _answer(status: int, document: Any) -> Response:
    return Response(msgspec.json.encode(document), status, media_type=CONTENT_TYPE)


def _problem(error: MainstemError) -> Response:
    if isinstance(error, SchemaFault):
        return _answer(error.status, {"error_code": error.error_code, "message": error.message})
    status = status_of(error)
    return _answer(status, {"error_code": status * 100 + 1 if status == 403 else status, "message": error.message})
