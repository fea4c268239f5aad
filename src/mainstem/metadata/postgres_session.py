"""One connection to PostgreSQL, for one thread: made when it is needed, dropped when it breaks.

asyncpg is asynchronous, its users here are threads that wait: each session has a loop of its own for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from mainstem.model.errors import ConfigError, Overloaded, StorageFault

if TYPE_CHECKING:
    import asyncpg

SERVER_VERSION_MIN = 15
CONNECT_S = 10.0
STATEMENT_S = 30.0
IDLE_MS = 3000  # PostgreSQL ends a session that leaves a transaction open for so long: its process is paused, or gone
FIX = "check that the server runs and takes connections: psql {dsn}"

T = TypeVar("T")


class PostgresSession:
    """`dsn` as libpq writes it (postgresql://user@host/database)."""

    def __init__(
        self, dsn: str, schema: str, *, connect_s: float = CONNECT_S, statement_s: float = STATEMENT_S
    ) -> None:
        if not schema.isidentifier():
            raise ConfigError(f"{schema!r} cannot be the name of a PostgreSQL schema")
        try:
            import asyncpg  # noqa: F401 -- told now, with what mends it
        except ImportError:
            raise ConfigError(
                "the library for PostgreSQL is not installed", fix="pip install 'mainstem[cluster]'"
            ) from None
        self._dsn, self._schema = dsn, schema
        self._connect_s, self._statement_s = connect_s, statement_s
        self._loop = asyncio.new_event_loop()  # uvloop's cannot be closed while a dropped connection is on its way out
        self._connection: asyncpg.Connection[Any] | None = None
        self._woken: asyncio.Event | None = None

    def use(self, run: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
        """Run with a connection. Overloaded where the server does not answer: what was sent may have been done or not, the
        connection is dropped, and trying again may help. StorageFault where it refuses."""
        import asyncpg

        async def connected() -> T:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncpg.connect(
                    self._dsn,
                    timeout=self._connect_s,
                    command_timeout=self._statement_s,
                    target_session_attrs="read-write",  # of several hosts, the primary
                    server_settings=server_settings(self._schema),
                    record_class=row_class(),
                )
            return await run(self._connection)

        try:
            return self._loop.run_until_complete(connected())
        except asyncpg.ClientConfigurationError as error:
            raise ConfigError(f"PostgreSQL's address: {error}", fix="postgresql://USER@HOST/DATABASE") from error
        except asyncpg.ReadOnlySQLTransactionError as error:  # it was the primary, or will be
            self.drop()
            raise Overloaded(f"PostgreSQL accepts no writes: {error}", fix="name all servers: HOST1,HOST2") from error
        except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError) as error:
            self.drop()
            raise Overloaded(f"PostgreSQL does not answer: {_words(error)}", fix=FIX.format(dsn="DSN")) from error
        except asyncpg.OperatorInterventionError as error:  # it is being stopped or started
            self.drop()
            raise Overloaded(f"PostgreSQL does not serve: {error}", fix=FIX.format(dsn="DSN")) from error
        except asyncpg.PostgresError as error:
            raise StorageFault(f"PostgreSQL refused a change: {error}") from error

    def wait(self, seconds: float) -> bool:
        """Until `wake`, or so long; whether it was woken. The connection is heard meanwhile: notices arrive."""

        async def woken() -> bool:
            self._woken = self._woken or asyncio.Event()
            try:
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            except TimeoutError:
                return False
            self._woken.clear()
            return True

        return self._loop.run_until_complete(woken())

    def wake(self) -> None:
        """Whoever waits, or will wait next. From any thread."""

        def wake() -> None:
            self._woken = self._woken or asyncio.Event()
            self._woken.set()

        with suppress(RuntimeError):  # it was closed: nobody waits
            self._loop.call_soon_threadsafe(wake)

    def drop(self) -> None:
        """Without a goodbye: the next use makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and asyncio._get_running_loop() is not None:
            connection.terminate()  # in a loop's thread nothing may be waited for; the server notices
        elif connection is not None:
            try:
                self._loop.run_until_complete(connection.close(timeout=self._connect_s))
            except Exception:  # the server is away: it forgets us by itself
                connection.terminate()
        self._loop.close()


@cache
def row_class() -> type[Any]:
    """A class of our own. asyncpg keeps up to 2,000 freed records of its own class and of each length for the thread that
    freed them, and forgets them when the thread ends: each hand-over ends two that read."""
    import asyncpg

    return type("Row", (asyncpg.Record,), {"__slots__": ()})


def server_settings(schema: str) -> dict[str, str]:
    """Of every connection. A lock outlives its holder by a few seconds, not by the hours that TCP takes to notice."""
    settings = {"search_path": schema, "application_name": "mainstem"}
    return {**settings, "idle_in_transaction_session_timeout": str(IDLE_MS)}


def check_server(connection: asyncpg.Connection[Any]) -> None:
    version = connection.get_server_version()
    if version.major < SERVER_VERSION_MIN:
        raise ConfigError(
            f"PostgreSQL {version.major} is too old; {SERVER_VERSION_MIN} is the oldest that works",
            fix=f"use a server of version {SERVER_VERSION_MIN} or newer",
        )


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
