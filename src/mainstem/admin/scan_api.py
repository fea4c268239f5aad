"""The HTTP routes that Spark jobs call: scan plans, reading through the broker, and exactly-once writes.

| | |
|---|---|
| `POST /v1/scan/lanes` | where the partitions of a selection start and end; with `at`, the offset of a time or stamp |
| `POST /v1/scan/limit` | ends of ranges so that about so many rows are meant |
| `POST /v1/scan/plan` | slices over ranges, and a lease on their files; of very much, ranges to be cut |
| `GET /v1/scan/plans/{plan}/slices?log=&start=&end=&slice_bytes=` | a range of a plan, cut into slices |
| `POST /v1/scan/plans/{plan}/renew` · `DELETE /v1/scan/plans/{plan}` | the lease |
| `GET /v1/scan/frames?log=&start=&end=&bytes_max=` | frames as stored; `mainstem-next-offset` is where to go on |
| `GET /v1/scan/topics?number=` | the topic that frames name by this number |
| `GET /v1/scan/schemas` · `GET /v1/scan/schemas/{id}` | the registry's ids; a schema and what it refers to |
| `POST /v1/stage/topics` | partitions of topics, and how their records are to be written |
| `PUT /v1/stage/data?query=&sink=&batch=&run=&task=&attempt=` | a task's batches, fsynced, invisible |
| `GET /v1/archives` · `POST` and `DELETE /v1/archives/{name}` | up to where archives hold everything, for retention |
| `GET /v1/pipelines` · `POST /v1/pipelines/{name}` | how running pipelines do, for the console |
| `GET /v1/stage/last?query=&sink=` | the last batch of a query that a sink has, -1 for none |
| `POST /v1/stage/commit` · `POST /v1/stage/abort` | a batch's staged attempts become visible, once; or go |

Frames hold records of every topic of a shared log, and files may be read past the broker: who may not consume everything is
told of no file, and is sent frames without the records of other topics (broker/scans/readers.py). What is staged may be for
the topics that its writer may publish to (broker/staging/writers.py). All of it in the caller's own namespace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mainstem.admin.bodies import json_of
from mainstem.admin.calls import audit
from mainstem.admin.frame_answers import FrameAnswers
from mainstem.admin.problems import problem_of
from mainstem.admin.rights import admit
from mainstem.admin.schema_rights import reads_by
from mainstem.broker.broker import Broker
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.rights.access import Principal
from mainstem.broker.rights.operations import NEEDS, Need
from mainstem.broker.scans.plan import READ_BYTES_MAX, SLICE_BYTES, ScanPlans
from mainstem.broker.scans.readers import Reader
from mainstem.broker.schemas.records import JSON
from mainstem.broker.staging.staged_append import durable
from mainstem.broker.staging.staging import STAGED_BYTES_EACH_MAX, Attempt, BatchId, Staging
from mainstem.broker.staging.writers import Writer
from mainstem.model.errors import (
    InvalidArgument,
    MainstemError,
    MessageTooLarge,
    NotAuthorized,
    NotFound,
    OffsetOutOfRange,
)

Handler = Callable[[Request, Namespace], Awaitable[Response]]
AUDITED = ("archive.forget",)  # the rest changes nothing that could be missed

BODY_BYTES_MAX = 8 << 20
NUMBER_MAX = 1 << 62
Number = Annotated[int, msgspec.Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]  # offsets, stamps and times fit 64 bits
# What a selection has beside its kind (`broker/scans/selection.py`), by that kind.
SELECTIONS: dict[str, Any] = {
    "topics": list[str],
    "pattern": str,
    "partitions": dict[str, list[Number]],
    "filter": str,
    "view": str,
}
At = dict[str, Number]  # time_ms, or stamp
Ranges = list[tuple[str, Number, Number, Number]]  # topic, partition, start, end


def spark_routes(broker: Broker) -> list[Route]:
    scan, stage, told = _ScanApi(broker), _StageApi(broker), _ToldApi(broker)
    table: tuple[tuple[str, str, Handler, str], ...] = (
        ("POST", "/v1/scan/lanes", scan.partitions, "scan.read"),
        ("POST", "/v1/scan/limit", scan.limit, "scan.read"),
        ("POST", "/v1/scan/plan", scan.plan, "scan.read"),
        ("GET", "/v1/scan/plans/{plan}/slices", scan.cut, "scan.read"),
        ("POST", "/v1/scan/plans/{plan}/renew", scan.renew, "scan.read"),
        ("DELETE", "/v1/scan/plans/{plan}", scan.release, "scan.read"),
        ("GET", "/v1/scan/frames", scan.frames, "scan.read"),
        ("GET", "/v1/scan/topics", scan.topics, "scan.read"),
        ("GET", "/v1/scan/schemas", scan.schemas, "scan.read"),
        ("GET", "/v1/scan/schemas/{id:int}", scan.schema, "scan.read"),
        ("POST", "/v1/stage/topics", stage.topics, "stage.write"),
        ("PUT", "/v1/stage/data", stage.data, "stage.write"),
        ("GET", "/v1/stage/last", stage.last, "stage.write"),
        ("POST", "/v1/stage/commit", stage.commit, "stage.write"),
        ("POST", "/v1/stage/abort", stage.abort, "stage.write"),
        ("GET", "/v1/archives", told.archives, "archive.list"),
        ("POST", "/v1/archives/{name}", told.archived, "archive.report"),
        ("DELETE", "/v1/archives/{name}", told.forget_archive, "archive.forget"),
        ("GET", "/v1/pipelines", told.pipelines, "pipeline.list"),
        ("POST", "/v1/pipelines/{name}", told.pipeline, "pipeline.tell"),
    )
    return [
        Route(path, _answering(broker, handler, NEEDS[needs]), methods=[method], name=needs)
        for method, path, handler, needs in table
    ]


def _answering(broker: Broker, handler: Handler, need: Need) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        principal: Principal = request.scope["state"].get("principal") or Principal("anonymous")
        try:
            asked = request.query_params.get("namespace", "")
            principal = broker.access.within(principal, asked)
            namespace = admit(broker, principal, need, asked)
            request.scope["state"]["caller"] = principal
            response = await handler(request, namespace)
        except MainstemError as error:
            if need.operation in AUDITED:
                audit(broker, request, need.operation, error)
            return problem_of(error)
        if need.operation in AUDITED:
            audit(broker, request, need.operation, None)
        return response

    return answer


class _Api:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker


async def _body(request: Request) -> dict[str, Any]:
    data = await _bytes(request, BODY_BYTES_MAX)
    body = json_of(data)
    if not isinstance(body, dict):
        raise InvalidArgument("the request's body must be a JSON object")
    return body


async def _bytes(request: Request, bytes_max: int) -> bytes:
    """The body, refused before it is buffered if it is too large."""
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > bytes_max:
                raise MessageTooLarge(f"the request's body exceeds {bytes_max} bytes")
            parts.append(part)
    except ClientDisconnect:
        raise MessageTooLarge("the request's body was not sent to its end, or exceeds what may be sent") from None
    return b"".join(parts)


def _number(request: Request, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name, "" if default is None else str(default))
    try:
        found: int = _typed(int(text), name, Number)
        return found
    except ValueError:
        raise InvalidArgument(f"query parameter {name} must be a number, not {text[:100]!r}") from None


def _field(body: dict[str, Any], name: str, kind: Any = Any) -> Any:
    if name not in body:
        raise InvalidArgument(f"the request's body lacks {name!r}")
    return _typed(body[name], name, kind)


def _whole(body: dict[str, Any], name: str, default: int) -> int:
    """Nothing and null say nothing."""
    found: int | None = _typed(body.get(name), name, Number | None)
    return found or default


def _select(body: dict[str, Any]) -> dict[str, Any]:
    wanted: dict[str, Any] = _field(body, "select", dict[str, Any])
    kind = wanted.get("kind")
    return (
        {**wanted, kind: _field(wanted, kind, SELECTIONS[kind])}
        if isinstance(kind, str) and kind in SELECTIONS
        else wanted
    )


def _typed(value: Any, name: str, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{name!r} of the request's body: {error}") from None


class _ScanApi(_Api):
    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._answers = FrameAnswers()

    @property
    def _plans(self) -> ScanPlans:
        return self._broker.scans

    def _reader(self, request: Request) -> Reader:
        return self._plans.readers.of(request.scope["state"]["caller"])

    def _task_reader(self, request: Request, namespace: Namespace) -> Reader:
        """A task tells the view that it reads through, if it is one."""
        reader, name = self._reader(request), request.query_params.get("view", "")
        view = namespace.views.get(name.encode()) if name else None
        if name and view is None:
            raise NotFound(f"view {name!r} was deleted", fix="mainstem view ls")
        return reader.through(view) if view is not None else reader

    async def partitions(self, request: Request, namespace: Namespace) -> Response:
        body = await _body(request)
        reader = self._reader(request)
        return JSONResponse(
            await self._plans.partitions(namespace, _select(body), _typed(body.get("at") or {}, "at", At), reader)
        )

    async def limit(self, request: Request, namespace: Namespace) -> Response:
        body = await _body(request)
        select, ranges, rows = _select(body), _field(body, "ranges", Ranges), _field(body, "rows", Number)
        return JSONResponse(await self._plans.limit(namespace, select, ranges, rows, self._reader(request)))

    async def plan(self, request: Request, namespace: Namespace) -> Response:
        body = await _body(request)
        plan = await self._plans.plan(
            namespace,
            _select(body),
            _field(body, "ranges", Ranges),
            slices_min=_whole(body, "slices_min", 0),
            slice_bytes=_whole(body, "slice_bytes", SLICE_BYTES),
            rows_max=_whole(body, "rows_max", 0),
            files=bool(body.get("files", True)),
            ranged=bool(body.get("ranged")),
            reader=self._reader(request),
        )
        return JSONResponse(plan)

    async def cut(self, request: Request, namespace: Namespace) -> Response:
        plan, size = request.path_params["plan"], _number(request, "slice_bytes", SLICE_BYTES)
        log, start, end = (_number(request, name) for name in ("log", "start", "end"))
        return JSONResponse(self._plans.cut(namespace, plan, log, start, end, size, self._reader(request)))

    async def renew(self, request: Request, namespace: Namespace) -> Response:
        return JSONResponse({"lease_ms": self._plans.renew(request.path_params["plan"], namespace.name)})

    async def release(self, request: Request, namespace: Namespace) -> Response:
        self._plans.end(request.path_params["plan"], namespace.name)
        return Response(status_code=204)

    async def frames(self, request: Request, namespace: Namespace) -> Response:
        start, end = _number(request, "start"), _number(request, "end")
        bytes_max = _number(request, "bytes_max", READ_BYTES_MAX)
        log, reader = _number(request, "log"), self._task_reader(request, namespace)

        def read() -> Awaitable[tuple[bytes, int]]:
            return self._plans.frames(namespace, log, start, end, bytes_max, reader)

        try:
            return await self._answers.answer(namespace.name, request.headers.get("accept-encoding", ""), read)
        except OffsetOutOfRange as error:  # the caller needs the numbers, not only the words
            told = {
                "detail": error.message,
                "code": error.code,
                "asked": error.asked,
                "start": error.start,
                "end": error.end,
            }
            return JSONResponse(told, status_code=416)

    async def topics(self, request: Request, namespace: Namespace) -> Response:
        number = _number(request, "number")
        name = namespace.topic_of.get(number)
        if name is None:
            raise NotFound(f"topic number {number} is gone: it was deleted", fix="mainstem topic ls")
        if not self._task_reader(request, namespace).may(name):
            raise NotAuthorized(f"the topic of number {number} is none that you may consume")
        return JSONResponse({"number": number, "name": name.decode()})

    async def schemas(self, request: Request, namespace: Namespace) -> Response:
        known = self._broker.schemas.of(namespace).state.ids
        return JSONResponse({"ids": list(known), "binary": any(one.kind != JSON for one in known.values())})

    async def schema(self, request: Request, namespace: Namespace) -> Response:
        registry, schema_id = self._broker.schemas.of(namespace), request.path_params["id"]
        schema = registry.state.ids.get(schema_id)
        state = request.scope["state"]
        reader = self._plans.readers.of(state.get("asker") or state["caller"])  # a question's process calls for another
        if schema is None or not reads_by(self._broker, reader, namespace, schema_id):
            raise NotFound(f"there is no schema with the id {schema_id}", fix="mainstem schema ls")
        told = {"type": schema.kind, "schema": schema.text, "descriptors": schema.descriptors}
        return JSONResponse({**told, "sources": registry.sources(schema)})


class _StageApi(_Api):
    @property
    def _staging(self) -> Staging:
        return self._broker.staging

    def _writer(self, request: Request) -> Writer:
        return Writer.of(self._broker.access, request.scope["state"]["caller"])

    async def topics(self, request: Request, namespace: Namespace) -> Response:
        body = await _body(request)
        names, writer = _field(body, "topics", list[str]), self._writer(request)
        if body.get("each"):
            return JSONResponse(await self._staging.topics_each(namespace, names, writer))
        declare = bool(body.get("declare"))
        return JSONResponse({"topics": await self._staging.topics(namespace, names, declare=declare, writer=writer)})

    async def data(self, request: Request, namespace: Namespace) -> Response:
        asked = request.query_params
        batch = BatchId(namespace.name, asked.get("query", ""), asked.get("sink", ""), _number(request, "batch"))
        attempt = Attempt(_number(request, "task"), _number(request, "attempt"), _number(request, "part", 0))
        data = await _bytes(request, STAGED_BYTES_EACH_MAX)
        return JSONResponse(
            await self._staging.stage(batch, asked.get("run", ""), attempt, data, self._writer(request))
        )

    async def commit(self, request: Request, namespace: Namespace) -> Response:
        body = await _body(request)
        batch = _batch(namespace, body)
        parts = [Attempt(*one) for one in _field(body, "parts", list[tuple[Number, Number, Number]])]
        run, writer = _field(body, "run", str), self._writer(request)
        return JSONResponse(await self._staging.commit(namespace, batch, run, parts, writer))

    async def last(self, request: Request, namespace: Namespace) -> Response:
        asked = request.query_params
        query, sink = asked.get("query", ""), asked.get("sink", "")
        batch = self._staging.last_batch(namespace.name, query, sink, self._writer(request))
        return JSONResponse({"batch": batch})

    async def abort(self, request: Request, namespace: Namespace) -> Response:
        body = await _body(request)
        await self._staging.abort(_batch(namespace, body), _field(body, "run", str), self._writer(request))
        return JSONResponse({})


class _ToldApi(_Api):
    """What jobs tell of themselves."""

    async def archives(self, request: Request, namespace: Namespace) -> Response:
        return JSONResponse({"items": self._broker.archives.listed(namespace.name)})

    async def archived(self, request: Request, namespace: Namespace) -> Response:
        body = await _body(request)
        name, topic_filter = request.path_params["name"], _typed(body.get("filter"), "filter", str | None)
        ends = _field(body, "ends", dict[str, dict[Number, Number]])
        await durable(self._broker.archives.report(namespace, name, ends, topic_filter))
        return JSONResponse({})

    async def forget_archive(self, request: Request, namespace: Namespace) -> Response:
        await durable(self._broker.archives.forget(request.path_params["name"], namespace.name))
        return Response(status_code=204)

    async def pipelines(self, request: Request, namespace: Namespace) -> Response:
        return JSONResponse({"items": self._broker.pipelines.listed(namespace.name)})

    async def pipeline(self, request: Request, namespace: Namespace) -> Response:
        body = await _body(request)
        self._broker.pipelines.tell(request.path_params["name"], _field(body, "flows"), namespace.name)
        return JSONResponse({})


def _batch(namespace: Namespace, body: dict[str, Any]) -> BatchId:
    return BatchId(namespace.name, _field(body, "query", str), _field(body, "sink", str), _field(body, "batch", Number))
