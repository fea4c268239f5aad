"""RabbitMQ's management API, as far as its tools read it: Flower, KEDA, rabbitmqadmin, and definitions files.

    /api/overview · nodes · whoami · vhosts · users · permissions · extensions
    /api/exchanges[/vhost[/name[/publish | /bindings/source | /bindings/destination]]]
    /api/queues[/vhost[/name[/get | /contents | /bindings]]]
    /api/bindings[/vhost[/e/source/(q|e)/destination[/properties]]]
    /api/connections · channels · consumers · definitions[/vhost]
    /api/aliveness-test/vhost · healthchecks/node · health/checks/...

A vhost is a namespace; `/` is written `%2F` in a path. Objects have the fields those tools use, with their names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainstem.admin import rabbit_changes as changes
from mainstem.admin import rabbit_objects as objects
from mainstem.admin.running import Running
from mainstem.broker.access import Principal
from mainstem.broker.namespace import Namespace
from mainstem.broker.queues.registry import Queues
from mainstem.model.errors import ClientFault, InvalidArgument, NotAuthorized, NotFound

PAGE_SIZE_MAX = 500
PATTERN_BYTES_MAX = 1 << 20  # of one compiled pattern
Answer = tuple[int, Any]
Handler = Callable[..., Any]


class Call:
    """One request: who asks, the decoded path, the query and the body."""

    def __init__(self, running: Running, request: Request, path: Sequence[str], body: Any) -> None:
        self.running = running
        self.broker = running.broker
        self.path = path
        self.query = request.query_params
        self.body = body
        self.principal: Principal = getattr(request.state, "principal", None) or Principal("anonymous")

    def namespaces(self) -> list[Namespace]:
        """All that the principal may see."""
        found = self.broker.namespaces.values()
        return [n for n in found if self.principal.admin or n.name == self.principal.namespace]

    def vhost(self, name: str) -> Queues:
        """The queues (and exchanges) of a vhost."""
        if not self.principal.admin and name != self.principal.namespace:
            raise NotAuthorized(f"no access to vhost {name!r}")
        if name not in self.broker.namespaces:
            raise NotFound(f"no vhost {name!r}")
        return self.broker.queues.of(self.broker.namespaces[name])

    def vhosts(self, name: str | None = None) -> list[Queues]:
        return [self.vhost(name)] if name is not None else [self.broker.queues.of(n) for n in self.namespaces()]


def rabbit_routes(running: Running) -> list[Route]:
    async def answer(request: Request) -> Response:
        raw = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1").partition("?")[0]
        path = [unquote(part) for part in raw.removeprefix("/api/").strip("/").split("/")]
        try:
            body = json.loads(await request.body() or b"null")
            status, document = await _dispatch(Call(running, request, path, body), request.method)
        except json.JSONDecodeError as error:
            status, document = 400, {"error": "bad_request", "reason": f"the body is not JSON: {error}"}
        except ClientFault as error:
            status = 404 if isinstance(error, NotFound) else 401 if isinstance(error, NotAuthorized) else 400
            names = {404: "Object Not Found", 401: "not_authorised", 400: "bad_request"}
            document = {"error": names[status], "reason": error.message}
        content = b"" if document is None else json.dumps(document, default=str).encode()
        return Response(content, status, media_type="application/json")

    return [Route("/api/{path:path}", answer, methods=["GET", "PUT", "POST", "DELETE"])]


async def _dispatch(call: Call, method: str) -> Answer:
    for wanted, pattern, handler in ROUTES:
        if wanted != method or len(pattern) != len(call.path):
            continue
        arguments = []
        for part, given in zip(pattern, call.path, strict=True):
            if part.startswith("{"):
                arguments.append(given)
            elif part != given:
                break
        else:
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
            pattern = compiled_pattern(name)
            rows = [row for row in rows if pattern.search(row["name"])]
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


def compiled_pattern(text: str) -> Any:
    """RE2 never backtracks: Python's own matcher takes for ever over `(a+)+$`, and all protocols would wait meanwhile."""
    import re2

    options = re2.Options()
    options.log_errors, options.max_mem = False, PATTERN_BYTES_MAX
    try:
        return re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise InvalidArgument(f"name: the pattern is not understood: {reason}", fix="use_regex=false") from None


def _number(call: Call, name: str, default: int) -> int:
    text = call.query.get(name, str(default))
    if not text.isdigit() or not int(text):
        raise InvalidArgument(f"{name} must be a positive number, not {text!r}")
    return int(text)


def _columns(call: Call, row: Any) -> Any:
    wanted = call.query.get("columns")
    if not wanted or not isinstance(row, dict):
        return row
    return {name: row[name] for name in (w.partition(".")[0] for w in wanted.split(",")) if name in row}


# -- reading


def _queues(call: Call, vhost: str | None = None) -> list[Any]:
    return [objects.queue(queue, call.running) for queues in call.vhosts(vhost) for queue in queues]


def _exchanges(call: Call, vhost: str | None = None) -> list[Any]:
    return [objects.exchange(queues, one) for queues in call.vhosts(vhost) for one in queues.exchanges.by_name.values()]


def _bindings(call: Call, vhost: str | None = None) -> list[Any]:
    return [row for queues in call.vhosts(vhost) for row in objects.bindings(queues)]


def _source_bindings(call: Call, vhost: str, name: str) -> list[Any]:
    queues = call.vhost(vhost)
    queues.exchanges.get(changes.exchange_name(name))
    return [row for row in objects.bindings(queues) if row["source"] == changes.exchange_name(name)]


def _destination_bindings(call: Call, vhost: str, name: str, kind: str = "exchange") -> list[Any]:
    rows = objects.bindings(call.vhost(vhost))
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


ROUTES: list[tuple[str, tuple[str, ...], Handler]] = [
    (method, tuple(path.split("/")), handler)
    for method, path, handler in (
        ("GET", "overview", lambda call: objects.overview(call.running, call.namespaces())),
        ("GET", "nodes", lambda call: [objects.node(call.running)]),
        ("GET", "nodes/{name}", lambda call, name: objects.node(call.running)),
        ("GET", "whoami", lambda call: {"name": call.principal.name, "tags": objects.tags(call.principal.admin)}),
        ("GET", "extensions", lambda call: [{"javascript": "dispatcher.js"}]),
        ("GET", "cluster-name", lambda call: {"name": "mainstem"}),
        ("GET", "users", lambda call: objects.users(call.broker)),
        ("GET", "permissions", lambda call: objects.permissions(call.broker)),
        (
            "GET",
            "vhosts",
            lambda call: [objects.vhost(call.broker.queues.of(n), call.running) for n in call.namespaces()],
        ),
        ("GET", "vhosts/{name}", lambda call, name: objects.vhost(call.vhost(name), call.running)),
        ("PUT", "vhosts/{name}", changes.put_vhost),
        ("GET", "queues", _queues),
        ("GET", "queues/{vhost}", _queues),
        ("GET", "queues/{vhost}/{name}", lambda c, v, n: objects.queue(c.vhost(v).get(n), c.running, detailed=True)),
        ("PUT", "queues/{vhost}/{name}", changes.put_queue),
        ("DELETE", "queues/{vhost}/{name}", changes.delete_queue),
        ("DELETE", "queues/{vhost}/{name}/contents", changes.purge_queue),
        ("POST", "queues/{vhost}/{name}/get", changes.get_messages),
        ("GET", "queues/{vhost}/{name}/bindings", lambda c, v, n: _destination_bindings(c, v, n, "queue")),
        ("GET", "exchanges", _exchanges),
        ("GET", "exchanges/{vhost}", _exchanges),
        (
            "GET",
            "exchanges/{vhost}/{name}",
            lambda c, v, n: objects.exchange(c.vhost(v), c.vhost(v).exchanges.get(changes.exchange_name(n))),
        ),
        ("PUT", "exchanges/{vhost}/{name}", changes.put_exchange),
        ("DELETE", "exchanges/{vhost}/{name}", changes.delete_exchange),
        ("POST", "exchanges/{vhost}/{name}/publish", changes.publish),
        ("GET", "exchanges/{vhost}/{name}/bindings/source", _source_bindings),
        ("GET", "exchanges/{vhost}/{name}/bindings/destination", _destination_bindings),
        ("GET", "bindings", _bindings),
        ("GET", "bindings/{vhost}", _bindings),
        ("GET", "bindings/{vhost}/e/{source}/{letter}/{destination}", _pair_bindings),
        ("POST", "bindings/{vhost}/e/{source}/{letter}/{destination}", changes.post_binding),
        ("GET", "bindings/{vhost}/e/{source}/{letter}/{destination}/{key}", _one_binding),
        ("DELETE", "bindings/{vhost}/e/{source}/{letter}/{destination}/{key}", changes.delete_binding),
        ("GET", "connections", lambda call: objects.connections(call.running)),
        ("GET", "connections/{name}", lambda call, name: objects.connection_named(call.running, name)),
        ("DELETE", "connections/{name}", changes.close_connection),
        ("GET", "channels", lambda call: objects.channels(call.running)),
        ("GET", "consumers", lambda call: objects.consumers(call.running)),
        ("GET", "consumers/{vhost}", lambda call, vhost: objects.consumers(call.running, vhost)),
        ("GET", "definitions", lambda call: changes.export_definitions(call, None)),
        ("GET", "definitions/{vhost}", changes.export_definitions),
        ("POST", "definitions", lambda call: changes.import_definitions(call, None)),
        ("POST", "definitions/{vhost}", changes.import_definitions),
        ("GET", "policies", lambda call: []),
        ("GET", "parameters", lambda call: []),
        ("GET", "aliveness-test/{vhost}", changes.aliveness_test),
        ("GET", "healthchecks/node", lambda call: {"status": "ok"}),
        ("GET", "healthchecks/node/{name}", lambda call, name: {"status": "ok"}),
        ("GET", "health/checks/alarms", changes.health),
        ("GET", "health/checks/local-alarms", changes.health),
        ("GET", "health/checks/virtual-hosts", changes.health),
        ("GET", "health/checks/node-is-quorum-critical", changes.health),
        ("GET", "health/checks/port-listener/{port}", changes.health),
        ("GET", "health/checks/protocol-listener/{name}", changes.health),
    )
]
