"""RabbitMQ's management API, as far as its tools read it: Flower, KEDA, rabbitmqadmin, and definitions files.

    /api/overview · nodes · whoami · vhosts · users · permissions · extensions
    /api/exchanges[/vhost[/name[/publish | /bindings/source | /bindings/destination]]]
    /api/queues[/vhost[/name[/get | /contents | /bindings]]]
    /api/bindings[/vhost[/e/source/(q|e)/destination[/properties]]]
    /api/policies[/vhost[/name]]
    /api/connections · channels · consumers · definitions[/vhost]
    /api/aliveness-test/vhost · healthchecks/node · health/checks/...

A vhost is a namespace; `/` is written `%2F` in a path. Objects have the fields those tools use, with their names. Each route
names its line in the table of operations; who is not an admin sees and changes only their own vhost, as far as they may.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainstem.admin import rabbit_changes as changes
from mainstem.admin import rabbit_objects as objects
from mainstem.admin import rabbit_policies as policies
from mainstem.admin import rabbit_users as users
from mainstem.admin.bodies import body_of, json_of
from mainstem.admin.calls import audit
from mainstem.admin.rights import admit, may
from mainstem.admin.running import Running
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.queues.registry import Queues
from mainstem.broker.rights.access import Principal
from mainstem.broker.rights.operations import NEEDS, Need
from mainstem.model.errors import ClientFault, InvalidArgument, MainstemError, NotAuthorized, NotFound
from mainstem.model.pattern import Pattern

PAGE_SIZE_MAX = 500
Answer = tuple[int, Any]
Handler = Callable[..., Any]


class Call:
    """One request: who asks, the decoded path, the query and the body."""

    need: Need

    def __init__(self, running: Running, request: Request, path: Sequence[str], body: Any) -> None:
        self.running = running
        self.method = request.method
        self.broker = running.broker
        self.path = path
        self.query = request.query_params
        self.body = body
        self.principal: Principal = getattr(request.state, "principal", None) or Principal("anonymous")

    def namespaces(self) -> list[Namespace]:
        """All that the principal may see."""
        found = self.broker.namespaces.values()
        return [n for n in found if self.principal.admin or n.name == self.principal.namespace]

    def seen(self) -> set[str]:
        return {namespace.name for namespace in self.namespaces()}

    def may(self, queues: Queues, name: str, operation: str = "") -> bool:
        """Whether the caller has the right on this queue or exchange that this operation, or another, needs."""
        need = NEEDS[operation] if operation else self.need
        return may(self.running, self.principal, need, queues.namespace, name)

    def vhost(self, name: str) -> Queues:
        """The queues (and exchanges) of a vhost."""
        return self.broker.queues.of(admit(self.broker, self.principal, self.need, name))

    def vhosts(self, name: str | None = None) -> list[Queues]:
        return [self.vhost(name)] if name is not None else [self.broker.queues.of(n) for n in self.namespaces()]


def rabbit_routes(running: Running) -> list[Route]:
    async def answer(request: Request) -> Response:
        raw = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1").partition("?")[0]
        path = [unquote(part) for part in raw.removeprefix("/api/").strip("/").split("/")]
        failure: MainstemError | None = None
        try:
            body = json_of(await body_of(request) or b"null")
            status, document = await _dispatch(Call(running, request, path, body), request.method)
        except ClientFault as error:
            failure = error
            status = 404 if isinstance(error, NotFound) else 401 if isinstance(error, NotAuthorized) else 400
            names = {404: "Object Not Found", 401: "not_authorised", 400: "bad_request"}
            document = {"error": names[status], "reason": error.message}
        if request.method != "GET":
            if failure is None and status >= 400:
                failure = InvalidArgument(str(status))
            audit(running.broker, request, f"api {request.method}", failure)
        content = b"" if document is None else json.dumps(document, default=str).encode()
        return Response(content, status, media_type="application/json")

    return [Route("/api/{path:path}", answer, methods=["GET", "PUT", "POST", "DELETE"])]


async def _dispatch(call: Call, method: str) -> Answer:
    for wanted, pattern, needs, handler in ROUTES:
        if wanted != method or len(pattern) != len(call.path):
            continue
        arguments = []
        for part, given in zip(pattern, call.path, strict=True):
            if part.startswith("{"):
                arguments.append(given)
            elif part != given:
                break
        else:
            call.need = NEEDS[needs]
            admit(call.broker, call.principal, call.need)
            result = handler(call, *arguments)
            if hasattr(result, "__await__"):
                result = await result
            return result if isinstance(result, tuple) else (200, _listed(call, result))
    raise NotFound(f"nothing at /api/{'/'.join(call.path)}")


def _listed(call: Call, document: Any) -> Any:
    """Lists may be asked for by name, by page and by column."""
    if not isinstance(document, list):
        return _columns(call, document)
    rows = document
    if (name := call.query.get("name")) and rows and isinstance(rows[0], dict) and "name" in rows[0]:
        if call.query.get("use_regex") == "true":
            pattern = Pattern(name, anywhere=True)
            rows = [row for row in rows if pattern.matches(row["name"])]
        else:
            rows = [row for row in rows if name in row["name"]]
    rows = [_columns(call, row) for row in _sorted(call, rows)]
    if "page" not in call.query:
        return rows
    page, size = _number(call, "page", 1), min(_number(call, "page_size", 100), PAGE_SIZE_MAX)
    if page > max(1, -(-len(rows) // size)):
        raise InvalidArgument(f"Page out of range, page: {page} page size: {size}, len: {len(rows)}")
    items = rows[(page - 1) * size : page * size]
    return {
        "filtered_count": len(rows),
        "item_count": len(items),
        "items": items,
        "page": page,
        "page_count": max(1, -(-len(rows) // size)),
        "page_size": size,
        "total_count": len(document),
    }


def _sorted(call: Call, rows: list[Any]) -> list[Any]:
    """By a field, `message_stats.publish` for one inside another; what has none comes first, as numbers before text."""
    wanted = call.query.get("sort")
    if not wanted:
        return rows

    def place(row: Any) -> tuple[int, float, str]:
        for name in wanted.split("."):
            row = row.get(name) if isinstance(row, dict) else None
        if row is None:
            return 0, 0, ""
        return (1, row, "") if isinstance(row, int | float) else (2, 0, str(row))

    return sorted(rows, key=place, reverse=call.query.get("sort_reverse") == "true")


def _number(call: Call, name: str, default: int) -> int:
    text = call.query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 18 or not int(text):
        raise InvalidArgument(f"{name} must be a positive number, not {text!r}")
    return int(text)


def _columns(call: Call, row: Any) -> Any:
    wanted = call.query.get("columns")
    if not wanted or not isinstance(row, dict):
        return row
    return {name: row[name] for name in (w.partition(".")[0] for w in wanted.split(",")) if name in row}


# -- reading


def _queues(call: Call, vhost: str | None = None) -> list[Any]:
    return [
        objects.queue(queue, call.running)
        for queues in call.vhosts(vhost)
        for queue in queues
        if call.may(queues, queue.name)
    ]


def _queue(call: Call, vhost: str, name: str) -> Any:
    queues = call.vhost(vhost)
    changes.require(call, queues, name)
    return objects.queue(queues.get(name), call.running, detailed=True)


def _exchanges(call: Call, vhost: str | None = None) -> list[Any]:
    return [
        objects.exchange(queues, one)
        for queues in call.vhosts(vhost)
        for one in queues.exchanges.by_name.values()
        if call.may(queues, one.name)
    ]


def _exchange(call: Call, vhost: str, name: str) -> Any:
    queues = call.vhost(vhost)
    changes.require(call, queues, name)
    return objects.exchange(queues, queues.exchanges.get(changes.exchange_name(name)))


def _bindings(call: Call, vhost: str | None = None) -> list[Any]:
    return [row for queues in call.vhosts(vhost) for row in _seen_bindings(call, queues)]


def _seen_bindings(call: Call, queues: Queues) -> Iterator[dict[str, Any]]:
    """Those whose destination the caller may describe."""
    for row in objects.bindings(queues):
        kind = "queue.describe" if row["destination_type"] == "queue" else "exchange.describe"
        if call.may(queues, row["destination"], kind):
            yield row


def _source_bindings(call: Call, vhost: str, name: str) -> list[Any]:
    queues = call.vhost(vhost)
    queues.exchanges.get(changes.exchange_name(name))
    return [row for row in _seen_bindings(call, queues) if row["source"] == changes.exchange_name(name)]


def _destination_bindings(call: Call, vhost: str, name: str, kind: str = "exchange") -> list[Any]:
    rows = _seen_bindings(call, call.vhost(vhost))
    return [row for row in rows if row["destination"] == name and row["destination_type"] == kind]


def _pair_bindings(call: Call, vhost: str, source: str, letter: str, destination: str) -> list[Any]:
    kind = "queue" if letter == "q" else "exchange"
    rows = _destination_bindings(call, vhost, destination, kind)
    return [row for row in rows if row["source"] == changes.exchange_name(source)]


def _one_binding(call: Call, vhost: str, source: str, letter: str, destination: str, key: str) -> Any:
    for row in _pair_bindings(call, vhost, source, letter, destination):
        if key in (row["properties_key"], unquote(row["properties_key"])):
            return row
    raise NotFound(f"no binding {key!r} from {source!r} to {destination!r}")


ROUTES: list[tuple[str, tuple[str, ...], str, Handler]] = [
    (method, tuple(path.split("/")), needs, handler)
    for method, path, needs, handler in (
        ("GET", "overview", "overview.read", lambda call: objects.overview(call.running, call.namespaces())),
        ("GET", "nodes", "node.read", lambda call: [objects.node(call.running)]),
        ("GET", "nodes/{name}", "node.read", lambda call, name: objects.node(call.running)),
        (
            "GET",
            "whoami",
            "self.read",
            lambda call: {"name": call.principal.name, "tags": objects.tags(call.principal.admin)},
        ),
        ("GET", "extensions", "self.read", lambda call: [{"javascript": "dispatcher.js"}]),
        ("GET", "cluster-name", "self.read", lambda call: {"name": "mainstem"}),
        ("GET", "users", "user.list", users.listed),
        ("GET", "users/{name}", "user.describe", users.described),
        ("PUT", "users/{name}", "user.add", users.put),
        ("DELETE", "users/{name}", "user.remove", users.remove),
        ("GET", "users/{name}/permissions", "user.describe", users.permissions),
        ("GET", "permissions", "user.list", users.permissions),
        ("GET", "permissions/{vhost}/{name}", "user.describe", users.permission),
        ("PUT", "permissions/{vhost}/{name}", "rule.add", users.permit),
        ("DELETE", "permissions/{vhost}/{name}", "rule.remove", users.forbid),
        ("GET", "topic-permissions", "user.list", lambda call: []),
        (
            "GET",
            "vhosts",
            "self.read",
            lambda call: [objects.vhost(call.broker.queues.of(n), call.running) for n in call.namespaces()],
        ),
        ("GET", "vhosts/{name}", "self.read", lambda call, name: objects.vhost(call.vhost(name), call.running)),
        ("PUT", "vhosts/{name}", "namespace.add", changes.put_vhost),
        ("DELETE", "vhosts/{name}", "namespace.remove", changes.delete_vhost),
        ("GET", "queues", "queue.list", _queues),
        ("GET", "queues/{vhost}", "queue.list", _queues),
        ("GET", "queues/{vhost}/{name}", "queue.describe", _queue),
        ("PUT", "queues/{vhost}/{name}", "queue.create", changes.put_queue),
        ("DELETE", "queues/{vhost}/{name}", "queue.delete", changes.delete_queue),
        ("DELETE", "queues/{vhost}/{name}/contents", "queue.purge", changes.purge_queue),
        ("POST", "queues/{vhost}/{name}/get", "queue.consume", changes.get_messages),
        (
            "GET",
            "queues/{vhost}/{name}/bindings",
            "queue.describe",
            lambda c, v, n: _destination_bindings(c, v, n, "queue"),
        ),
        ("GET", "exchanges", "exchange.list", _exchanges),
        ("GET", "exchanges/{vhost}", "exchange.list", _exchanges),
        (
            "GET",
            "exchanges/{vhost}/{name}",
            "exchange.describe",
            _exchange,
        ),
        ("PUT", "exchanges/{vhost}/{name}", "exchange.create", changes.put_exchange),
        ("DELETE", "exchanges/{vhost}/{name}", "exchange.delete", changes.delete_exchange),
        ("POST", "exchanges/{vhost}/{name}/publish", "exchange.publish", changes.publish),
        ("GET", "exchanges/{vhost}/{name}/bindings/source", "exchange.list", _source_bindings),
        ("GET", "exchanges/{vhost}/{name}/bindings/destination", "exchange.list", _destination_bindings),
        ("GET", "bindings", "exchange.list", _bindings),
        ("GET", "bindings/{vhost}", "exchange.list", _bindings),
        ("GET", "bindings/{vhost}/e/{source}/{letter}/{destination}", "exchange.list", _pair_bindings),
        ("POST", "bindings/{vhost}/e/{source}/{letter}/{destination}", "exchange.bind", changes.post_binding),
        ("GET", "bindings/{vhost}/e/{source}/{letter}/{destination}/{key}", "exchange.list", _one_binding),
        ("DELETE", "bindings/{vhost}/e/{source}/{letter}/{destination}/{key}", "exchange.bind", changes.delete_binding),
        ("GET", "connections", "connection.list", lambda call: objects.connections(call.running, call.seen())),
        (
            "GET",
            "connections/{name}",
            "connection.describe",
            lambda call, name: objects.connection_named(call.running, name, call.seen()),
        ),
        ("DELETE", "connections/{name}", "connection.end", changes.close_connection),
        ("GET", "channels", "connection.list", lambda call: objects.channels(call.running, call.seen())),
        ("GET", "consumers", "connection.list", lambda call: objects.consumers(call.running, call.seen())),
        (
            "GET",
            "consumers/{vhost}",
            "connection.list",
            lambda call, vhost: objects.consumers(call.running, {call.vhost(vhost).namespace.name}),
        ),
        ("GET", "definitions", "definitions.read", lambda call: changes.export_definitions(call, None)),
        ("GET", "definitions/{vhost}", "definitions.read", changes.export_definitions),
        ("POST", "definitions", "definitions.write", lambda call: changes.import_definitions(call, None)),
        ("POST", "definitions/{vhost}", "definitions.write", changes.import_definitions),
        ("GET", "policies", "policy.list", policies.listed),
        ("GET", "policies/{vhost}", "policy.list", policies.listed),
        ("GET", "policies/{vhost}/{name}", "policy.list", policies.described),
        ("PUT", "policies/{vhost}/{name}", "policy.put", policies.put),
        ("DELETE", "policies/{vhost}/{name}", "policy.remove", policies.remove),
        ("GET", "parameters", "self.read", lambda call: []),
        ("GET", "aliveness-test/{vhost}", "aliveness.test", changes.aliveness_test),
        ("GET", "healthchecks/node", "self.read", lambda call: {"status": "ok"}),
        ("GET", "healthchecks/node/{name}", "self.read", lambda call, name: {"status": "ok"}),
        ("GET", "health/checks/alarms", "self.read", changes.health),
        ("GET", "health/checks/local-alarms", "self.read", changes.health),
        ("GET", "health/checks/virtual-hosts", "self.read", changes.health),
        ("GET", "health/checks/node-is-quorum-critical", "self.read", changes.health),
        ("GET", "health/checks/port-listener/{port}", "self.read", changes.health),
        ("GET", "health/checks/protocol-listener/{name}", "self.read", changes.health),
    )
]
