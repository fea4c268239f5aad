"""/v1/overview, /v1/config, /v1/logs, /v1/backup, /v1/work: the broker as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from mainstem.admin.answers import Events, Page
from mainstem.admin.answers.system import LogRow, OverviewFacts, SettingRow, WorkRow
from mainstem.admin.calls import Call, Field, Operation, page
from mainstem.admin.events import Event
from mainstem.admin.overview import config_rows, log_row, overview
from mainstem.model.errors import InvalidArgument, Overloaded
from mainstem.storage.backup import BackupReport, backup

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.upkeep.works import Work


EVENT_WATCHERS_MAX = 20


async def get_overview(call: Call) -> OverviewFacts:
    return overview(call.running, None if call.principal.admin else call.namespace)


async def get_config(call: Call) -> Page[SettingRow]:
    return page(config_rows(call.running))


async def list_logs(call: Call) -> Page[LogRow]:
    logs = call.running.broker.logs.by_id
    return page([log_row(logs[log_id]) for log_id in sorted(logs)])


async def back_up(call: Call) -> BackupReport:
    """Everything as of now: the stamp and the durable ends are taken between two ticks, the copying runs in a thread."""
    broker, target = call.running.broker, Path(call.body["directory"])
    if not target.is_absolute() or "\0" in call.body["directory"]:
        raise InvalidArgument(f"{str(target)!r} must be an absolute path on the broker's machine")
    try:
        with broker.works.begin("backup", str(target), call.principal.name) as work:
            async with broker.maintenance.pause():
                report = await _back_up(broker, target, work)
    except OSError as error:
        raise InvalidArgument(
            f"{target} cannot be written: {error.strerror or error}",
            fix="give another directory on the broker's machine",
        ) from error
    return report


async def _back_up(broker: Broker, target: Path, work: Work) -> BackupReport:
    await broker.store.flush()
    logs = dict(broker.logs.by_id)
    stamp = broker.stamps.next - 1
    ends = {log_id: log.stable for log_id, log in logs.items()}
    engines = {log_id: log.engine for log_id, log in logs.items()}
    return await asyncio.to_thread(
        backup, broker.options.data, target, stamp=stamp, ends=ends, engines=engines, progress=work.set
    )


async def list_work(call: Call) -> Page[WorkRow]:
    """The caller's own; an admin sees everybody's."""
    rows = call.running.broker.works.of(None if call.principal.admin else call.principal.name)
    return page([cast("WorkRow", one) for one in rows])


async def follow_events(call: Call) -> Events[Event]:
    events = call.running.events
    if events.watchers >= EVENT_WATCHERS_MAX:
        raise Overloaded(f"{EVENT_WATCHERS_MAX} watch already")

    async def lines() -> AsyncIterator[bytes]:
        yield b": following\n\n"
        async for rows, left_out in events.watch():
            yield b"".join(b"data: " + msgspec.json.encode(row) + b"\n\n" for row in rows) or b": still here\n\n"
            if left_out:
                yield b"event: dropped\ndata: " + str(left_out).encode() + b"\n\n"

    return Events(lines())


OPERATIONS = (
    Operation(
        "GET", "/v1/overview", get_overview, "Rates, sizes, listeners and health, in one answer.", "overview.read"
    ),
    Operation("GET", "/v1/config", get_config, "Every setting with its value and where it came from.", "config.read"),
    Operation(
        "POST",
        "/v1/backup",
        back_up,
        "Back up everything as of now into a new directory on the broker's machine.",
        "backup.make",
        body=(Field("directory", "string", "An absolute path that does not exist yet.", required=True),),
    ),
    Operation(
        "GET",
        "/v1/events",
        follow_events,
        "What happens, live: connections, refusals, rebalances, topics made, moved and deleted (server-sent events).",
        "events.read",
        streams=True,
    ),
    Operation(
        "GET",
        "/v1/work",
        list_work,
        "Long work under way that the caller began (erasing, a backup): bytes done, in all, and seconds left.",
        "work.list",
    ),
    Operation("GET", "/v1/logs", list_logs, "The logs on disk: engine, offsets, segments, bytes.", "log.list"),
)
