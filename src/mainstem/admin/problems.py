"""Errors as application/problem+json (RFC 9457), with the same codes and fixes as everywhere else."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from mainstem.admin.answers import Problem
from mainstem.broker.schemas.faults import SchemaFault
from mainstem.model.errors import (
    AlreadyExists,
    ClientFault,
    Conflict,
    DiskFull,
    InvalidRecord,
    MainstemError,
    MessageTooLarge,
    NotAuthorized,
    NotFound,
    NotStored,
    OffsetOutOfRange,
    Overloaded,
    StorageFault,
)

STATUS: tuple[tuple[type[MainstemError], int], ...] = (  # the first that fits
    (NotFound, 404),
    (AlreadyExists, 409),
    (Conflict, 409),
    (NotAuthorized, 403),
    (OffsetOutOfRange, 416),
    (MessageTooLarge, 413),
    (InvalidRecord, 422),
    (NotStored, 409),
    (DiskFull, 507),
    (Overloaded, 503),
    (ClientFault, 400),
    (StorageFault, 500),
)


def status_of(error: MainstemError) -> int:
    if isinstance(error, SchemaFault):
        return error.status
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def statuses_of() -> set[int]:
    """All that an error may have."""
    return {500, *(status for _, status in STATUS)}


def problem(status: int, code: str, detail: str, *, fix: str = "", headers: dict[str, str] | None = None) -> Response:
    body: Problem = {"type": f"urn:mainstem:error:{code}", "status": status, "code": code, "detail": detail}
    if fix:
        body["fix"] = fix
    return Response(msgspec.json.encode(body), status, headers, media_type="application/problem+json")


def problem_of(error: MainstemError) -> Response:
    return problem(status_of(error), error.code, str(error), fix=error.fix)
