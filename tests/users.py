"""Users of a broker that runs in the test's own process."""

from __future__ import annotations

import asyncio

from mainstem.testing import Broker

ROOT, ANN = ("root", "secret"), ("ann", "pass word")  # an admin, and who has what `allow` and `deny` say


def add_users(broker: Broker) -> None:
    assert broker.app is not None and broker.loop is not None
    access = broker.app.broker.access

    async def add() -> None:
        await access.add_user(*ROOT, admin=True)
        await access.add_user(*ANN)

    asyncio.run_coroutine_threadsafe(add(), broker.loop).result(60)


def allow(broker: Broker, topic_filter: str, *actions: str) -> None:
    _add_rule(broker, True, topic_filter, actions)


def deny(broker: Broker, topic_filter: str, *actions: str) -> None:
    _add_rule(broker, False, topic_filter, actions)


def _add_rule(broker: Broker, allowed: bool, topic_filter: str, actions: tuple[str, ...]) -> None:
    assert broker.app is not None and broker.loop is not None
    access = broker.app.broker.access

    async def add() -> None:
        await access.add_rule(ANN[0], allow=allowed, actions=list(actions), topic_filter=topic_filter)

    asyncio.run_coroutine_threadsafe(add(), broker.loop).result(30)
