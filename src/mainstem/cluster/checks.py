"""What would lose data is refused before a broker takes part, each with its fix. `mainstem cluster doctor` asks the same."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainstem.cluster.membership import SKEW_S_MAX, Membership, View, look
from mainstem.cluster.schema import FIRST_CELL, SCHEMA, Identity, find, metadata_schema, prepare
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.model.errors import ConfigError, MainstemError
from mainstem.storage.tier.patience import Patience
from mainstem.storage.tier.store import ObjectMissing, ObjectStore, StoreSettings

if TYPE_CHECKING:
    import asyncpg

OWNER = "cluster"  # the object that says whose prefix it is


def join(dsn: str, store: StoreSettings, *, single_postgres: bool, patience: Patience | None = None) -> Identity:
    """The cluster's identity, once everything it needs was seen to work; a store that does not is bound to none. Waits."""
    session, patience = PostgresSession(dsn, SCHEMA), patience or Patience(store)
    try:
        check_postgres(session, single_postgres=single_postgres)
        known = find(session)
        check_store(store, known, patience)
        identity = prepare(session, store.url.rstrip("/"))
        if known is None:
            check_store(store, identity, patience)  # another may have been first, with another store
        claim_store(store, identity, patience)
        return identity
    finally:
        session.close()


def check_postgres(session: PostgresSession, *, single_postgres: bool) -> None:
    async def ask(connection: asyncpg.Connection[Any]) -> dict[str, str]:
        names = "synchronous_standby_names", "synchronous_commit", "fsync", "full_page_writes"
        return {name: str(await connection.fetchval(f"SELECT current_setting('{name}')")) for name in names}

    told = session.use(ask)
    if told["synchronous_commit"] in ("off", "local"):
        raise ConfigError(
            f"PostgreSQL has synchronous_commit = {told['synchronous_commit']}: it forgets commits that it confirmed",
            fix="ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf();",
        )
    if not told["synchronous_standby_names"] and not single_postgres:
        raise ConfigError(
            "PostgreSQL has no synchronous standby: what it confirmed is lost with its machine",
            fix="set synchronous_standby_names, or say that it is meant: --single-postgres",
        )


def check_store(settings: StoreSettings, identity: Identity | None, patience: Patience | None = None) -> None:
    """It is the cluster's, or nobody's, and lets us write, read and delete."""
    url, again = settings.url.rstrip("/"), (patience or Patience(settings, 0.0)).try_again
    if identity is not None and identity.store != url:
        raise ConfigError(
            f"the cluster's objects lie in {identity.store}, not in {url}", fix=f"--store {identity.store}"
        )
    store, check = ObjectStore(settings), f"check/{uuid.uuid4().hex}"
    again(lambda: store.put(check, b"mainstem\n"))
    if again(lambda: store.get(check, 0, 9)) != b"mainstem\n":
        raise ConfigError(f"{url}/{check}: what was written is not what is read", fix="mainstem doctor")
    again(lambda: store.delete(check))
    owner = again(lambda: _owner_of(store))
    if owner and (identity is None or owner != identity.id):
        raise ConfigError(
            f"{url} belongs to another cluster ({owner})", fix=f"a prefix of its own for each cluster: --store {url}-2"
        )


def claim_store(settings: StoreSettings, identity: Identity, patience: Patience) -> None:
    store = ObjectStore(settings)
    if not patience.try_again(lambda: _owner_of(store)):
        patience.try_again(lambda: store.put(OWNER, json.dumps({"id": identity.id}).encode()))


def _owner_of(store: ObjectStore) -> str:
    """The cluster whose prefix this is, "" if nobody's."""
    try:
        return str(json.loads(store.get_all(OWNER))["id"])
    except ObjectMissing:
        return ""


def has_users(dsn: str) -> bool:
    """Whether anyone may log in."""
    schema = metadata_schema(FIRST_CELL)

    async def ask(connection: asyncpg.Connection[Any]) -> bool:
        if await connection.fetchval("SELECT to_regclass($1)", f"{schema}.items") is None:
            return False
        return await connection.fetchval(f"SELECT 1 FROM {schema}.items WHERE kind = 'user' LIMIT 1") is not None

    session = PostgresSession(dsn, SCHEMA)
    try:
        return session.use(ask)
    finally:
        session.close()


def check_clock(membership: Membership) -> None:
    skew_s = membership.skew_s()
    if abs(skew_s) > SKEW_S_MAX:
        raise ConfigError(
            f"this machine's clock and PostgreSQL's are {abs(skew_s):.1f} s apart; {SKEW_S_MAX:.0f} s are the most allowed",
            fix="timedatectl set-ntp true",
        )


def check_cells(view: View) -> None:
    """Where brokers are alive each cell has an owner."""
    free = [one.name for one in view.cells.values() if one.owner is None or one.lease_s <= 0]
    if free and any(one.alive for one in view.brokers.values()):
        raise ConfigError(
            f"nobody owns {'cell' if len(free) == 1 else 'cells'} {', '.join(free[:5])}",
            fix="mainstem cluster ls: is a broker alive that may own cells? Its log says why it took none",
        )


def problems(dsn: str, store: StoreSettings, *, single_postgres: bool) -> list[tuple[str, str, str]]:
    """(check, "" or what is wrong, fix), for a person to read. Changes nothing."""
    session = PostgresSession(dsn, SCHEMA)
    known: list[Identity | None] = [None]

    def tables() -> None:
        known[0] = find(session)

    def clock() -> None:
        check_clock(Membership(dsn, "doctor", lambda reason: None, lambda view: None))

    def cells() -> None:
        if known[0] is not None:
            check_cells(session.use(look))

    checks: dict[str, Callable[[], None]] = {
        "PostgreSQL": lambda: check_postgres(session, single_postgres=single_postgres),
        "tables": tables,
        "object store": lambda: check_store(store, known[0]),
        "clock": clock,
        "cells": cells,
    }
    found: list[tuple[str, str, str]] = []
    try:
        for name, run in checks.items():
            try:
                run()
            except MainstemError as error:
                found.append((name, error.message, error.fix or ""))
            else:
                found.append((name, "", ""))
    finally:
        session.close()
    return found
