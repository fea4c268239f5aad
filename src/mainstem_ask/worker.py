"""`python -m mainstem_ask.worker`: one question, asked over standard input by the broker that started this, then the end.

It ends with its broker, which made it yield to others, and has limits of memory and processor time that the system holds.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import threading
from typing import Any

from mainstem.model.errors import InvalidArgument, MainstemError
from mainstem_ask.pipe import Pipe, PipeConnection
from mainstem_ask.start import without_pandas

ADDRESSES_BYTES = 6 << 30  # what allocators reserve and never touch
ROWS_EACH = 200  # told at once
PR_SET_PDEATHSIG = 1


def main() -> None:
    without_pandas()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    pipe = Pipe(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # whatever else is printed is not a message
    _warm()
    try:
        asked = pipe.read()[0]["ask"]
    except EOFError:
        return
    try:
        _limit(asked)
        PipeConnection.pipe = pipe
        {"query": _query, "search": _search}[asked["kind"]](asked, pipe)
        pipe.write({"end": True})
    except MainstemError as error:
        pipe.write({"error": {"code": error.code, "detail": error.message, "fix": error.fix or ""}})
    except MemoryError:
        pipe.write(
            {"error": {"code": "MS-8001", "detail": "the question needs more memory than it may have", "fix": ""}}
        )
    except ModuleNotFoundError as error:
        fix = "pip install 'mainstem[ask]' where the broker runs"
        pipe.write({"error": {"code": "MS-6003", "detail": f"{error.name} is not installed", "fix": fix}})


def _warm() -> None:
    """Import before the question comes; what is missing is told when it does."""
    with contextlib.suppress(ModuleNotFoundError):
        import duckdb  # noqa: F401

        import mainstem_ask.search.engine
        import mainstem_ask.sql.engine  # noqa: F401


def _limit(asked: dict[str, Any]) -> None:
    memory, seconds = int(asked["memory_bytes"]), math.ceil(int(asked["time_ms"]) / 1000)
    resource.setrlimit(resource.RLIMIT_AS, (memory + ADDRESSES_BYTES,) * 2)
    cpu = (seconds + 5) * (os.cpu_count() or 1)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))


def _rights(asked: dict[str, Any]) -> Any:
    from mainstem_ask.rights import Rights

    return Rights(asked["rights"]) if asked["rights"] is not None else None


def _query(asked: dict[str, Any], pipe: Pipe) -> None:
    from mainstem_ask.sql.engine import Answer, Engine, Place
    from mainstem_pipeline.query.results import shown

    limit = int(asked["limit"])

    def take(answer: Answer) -> None:
        columns = [{"name": one.name, "type": str(one.type)} for one in answer.schema]
        pipe.write({"event": {"columns": columns}})
        rows: list[Any] = []
        for count, row in enumerate(answer.toLocalIterator()):
            if count == limit:
                pipe.write({"event": {"more": True}})
                break
            rows.append({name: _finite(value) for name, value in shown(row).items()})
            if len(rows) == ROWS_EACH:
                pipe.write({"event": {"rows": rows}})
                rows = []
        if rows:
            pipe.write({"event": {"rows": rows}})

    place = Place({}, rights=_rights(asked), connection=PipeConnection())
    with Engine(place, memory_bytes=int(asked["memory_bytes"])) as engine:
        timer = threading.Timer(int(asked["time_ms"]) / 1000, engine.stop)
        timer.daemon = True
        timer.start()
        engine.answer(str(asked["sql"]), take)
        if engine.notices:
            pipe.write({"event": {"notices": engine.notices}})


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _search(asked: dict[str, Any], pipe: Pipe) -> None:
    import time

    from mainstem_ask.search.engine import Asked, Search
    from mainstem_ask.search.times import bucket_ms_of, time_ms_of

    now_ms, topic, rights = time.time_ns() // 1_000_000, str(asked.get("topic") or "#"), _rights(asked)
    since, before = asked.get("since") or "", asked.get("before") or ""
    top_count = int(asked.get("top_count") or 10)
    if not 1 <= top_count <= 1000:
        raise InvalidArgument(f"the top 1 to 1000 values can be asked for, not {top_count}")
    search = Search(
        Asked(
            str(asked.get("query") or ""),
            topic,
            since_ms=time_ms_of(str(since), now_ms) if since else 0,
            **({"before_ms": time_ms_of(str(before), now_ms)} if before else {}),
            limit=int(asked["limit"]),
            bucket_ms=bucket_ms_of(str(asked["histogram"])) if asked.get("histogram") else 0,
            top=str(asked.get("top") or ""),
            top_count=top_count,
        ),
        PipeConnection(),
        rights.of_name(topic) if rights is not None else None,
    )
    timer = threading.Timer(int(asked["time_ms"]) / 1000, search.stop)
    timer.daemon = True
    timer.start()
    for event in search.events():
        pipe.write({"event": event})


if __name__ == "__main__":
    main()
    os._exit(0)  # threads that still read are not waited for
