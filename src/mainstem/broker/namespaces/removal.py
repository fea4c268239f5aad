"""Removing a namespace with everything in it, for good, so that its space comes back and nobody inherits anything.

    nobody gets in any more → its clients are gone → metadata committed   <- from here on it is removed
    → its logs' files are unlinked → the journal forgets its state, durably → the mark goes

    metadata kv:  removing/<namespace> = ""    while files or state of a removed namespace may be left

A crash before the commit leaves it as it was, save for its JetStream streams, which go first. After it, a start unlinks its
logs (their rows name no topic any more) and `finish` has its state forgotten; until then nobody can add a namespace of that
name. Users that belong to it go with it: a user left behind would get into the next namespace of that name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from mainstem.broker.queues.exchanges import PREDECLARED
from mainstem.broker.topics.deletion import LOW
from mainstem.log.log import Log
from mainstem.metadata.rows import ItemKind, LogRow
from mainstem.model.errors import InvalidArgument, MainstemError, NotFound, Overloaded

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace

logger = logging.getLogger("mainstem.broker")

REMOVING = "removing/"
SLICE = 500  # entries of state that are forgotten in one turn of the loop: about a millisecond
GOODBYE_S = 2.0  # for a client to read why; then it is cut off
POLL_S = 0.01


class Client(Protocol):
    def end_namespace(self, name: str) -> None: ...

    def abort(self) -> None: ...


class NamespaceRemoval:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.clients: Callable[[Namespace], Iterable[Client]] = lambda namespace: ()  # the server's wiring tells
        # Whoever keeps names elsewhere: the server's wiring tells, too.
        self.forget_names: Callable[[str], Awaitable[None]] = _nobody
        self._under_way: set[str] = set()

    def load(self, kv: dict[str, bytes]) -> None:
        """What a crash left half removed; `finish` goes on."""
        self._under_way |= {key.removeprefix(REMOVING) for key in kv if key.startswith(REMOVING)}

    def check_free(self, name: str) -> None:
        if name in self._under_way:
            raise Overloaded(f"namespace {name!r} is being removed", fix="try again in a moment")

    # -- what would be lost

    def contents(self, namespace: Namespace) -> dict[str, int]:
        """What it holds, by kind; what is not there is left out. Empty: it can go without asking."""
        broker, name = self._broker, namespace.name
        queues, keeper, coordinator = broker.queues.of(namespace), broker.session_keeper, broker.coordinator
        found = {
            "topics": namespace.topic_count,
            "views": len(namespace.views),
            "streams": len(broker.streams.of(namespace).by_name),
            "queues": sum(1 for _ in queues),
            "exchanges": sum(one not in PREDECLARED for one in queues.exchanges.by_name),
            "sessions": keeper.session_count(name),
            "retained messages": len(keeper.retained(namespace)),
            "groups": coordinator.group_count(name),
            "users": sum(user.namespace == name for user in broker.access.users.values()),
        }
        return {kind: count for kind, count in found.items() if count}

    # -- removing

    async def remove(self, namespace: Namespace, *, with_data: bool = False) -> dict[str, int]:
        """Returns what it held. InvalidArgument where it holds something and nobody said that it may go."""
        broker, name = self._broker, namespace.name
        self._check(namespace, with_data)
        held = self.contents(namespace)
        self._under_way.add(name)
        namespace.removed = True
        del broker.namespaces[name]
        try:
            await self._end_clients(namespace)
            logs = await self._commit(namespace)
        except BaseException:
            namespace.removed = False
            broker.namespaces[name] = namespace
            self._under_way.discard(name)
            raise
        self._apply(namespace)
        await self._forget(self._traces(name))
        await self._unlink(logs, NotFound(f"namespace {name!r} was removed"))
        await self._end(name)
        logger.info("namespace %r was removed: %s", name, told(held) or "it was empty")
        return held

    def _check(self, namespace: Namespace, with_data: bool) -> None:
        name = namespace.name
        if name == "/":
            raise InvalidArgument("the namespace / is the broker's own and stays")
        admins = [user.name for user in self._broker.access.users.values() if user.admin and user.namespace == name]
        if admins:
            raise InvalidArgument(
                f"{admins[0]}, an admin, belongs to namespace {name!r}",
                fix=f"mainstem user alter {admins[0]} --namespace /",
            )
        held = self.contents(namespace)
        if held.get("users") and self._broker.access.follows:  # another cell keeps them
            raise InvalidArgument(
                f"namespace {name!r} has {told({'users': held['users']})}; nothing was removed",
                fix="mainstem user rm NAME, or mainstem user alter NAME --namespace /",
            )
        if self._broker.access.follows and self._broker.access.kept_in(name):
            raise InvalidArgument(
                f"rules are kept for names in namespace {name!r}; nothing was removed", fix="mainstem user kept"
            )
        if held and not with_data:
            raise InvalidArgument(
                f"namespace {name!r} holds {told(held)}; nothing was removed",
                fix=f"mainstem namespace rm {name} --with-data deletes all of it for good",
            )

    async def _end_clients(self, namespace: Namespace) -> None:
        """Until the last one has left: what it leaves (a will, a place in a session) must not come after the end."""
        for client in list(self.clients(namespace)):
            client.end_namespace(namespace.name)
        self._broker.access.changed()  # who belongs to it gets in nowhere
        for _ in range(int(GOODBYE_S / POLL_S)):
            if not any(True for _ in self.clients(namespace)):
                break
            await asyncio.sleep(POLL_S)
        for client in list(self.clients(namespace)):
            client.abort()
        while any(True for _ in self.clients(namespace)):
            await asyncio.sleep(POLL_S)
        for commit in list(namespace.changing.values()):
            try:
                await commit
            except MainstemError as error:
                logger.debug("a change under way in a namespace that is removed was refused: %s", error)
        for stream in list(self._broker.streams.of(namespace).by_name.values()):
            await self._broker.streams.delete(stream)  # a change of its own: with its consumers and its log
        self._broker.ticker.write_now()

    async def _commit(self, namespace: Namespace) -> list[Log]:
        """All of its metadata in one transaction. The rows of its logs stay, as those of no topic, until the files went."""
        broker, store, name = self._broker, self._broker.store, namespace.name
        logs = list(namespace.logs())
        with store.together() as written:
            for topic in namespace.topics.values():
                store.delete_topic(topic.id)
            for view in namespace.views.values():
                store.delete_view(view.id)
            for log in logs:
                policy = namespace.stem_policies.get(log) or namespace.topics[namespace.topic_of_log[log]].policy
                store.put_log(LogRow(log.id, "", "partition", policy.engine, policy.to_document()))
                for topic_name in log.low_marks.by_topic if log.low_marks is not None else ():
                    store.delete_value(f"{LOW}{log.id}/{topic_name.decode()}")
            for kind in ItemKind:
                store.delete_items(kind, name)
            for user in self._users(name):
                store.delete_item(ItemKind.USER, "", user)
            for one in broker.access.left_by(name):
                store.put_item(ItemKind.USER, "", one.name, one.to_document())
            for item in broker.access.kept_in(name):
                store.delete_item(ItemKind.ACL, "", item)
            store.put_value(REMOVING + name, b"")
            store.delete_namespace_row(name)
        await written
        broker.access.forget_users(self._users(name), name)
        return logs

    def _users(self, name: str) -> list[str]:
        return [user.name for user in self._broker.access.users.values() if user.namespace == name]

    def _apply(self, namespace: Namespace) -> None:
        """It is committed: nothing of it is found any more."""
        namespace.routes.clear()
        namespace.route_clears += 1
        namespace.topics.clear()
        namespace.views.clear()

    async def _unlink(self, logs: list[Log], gone: MainstemError) -> None:
        """Their space is free once this returns."""
        threads = []
        for log in logs:
            log.withdraw(gone)  # who published into it meanwhile is told
            threads.append(self._broker.deletion.remove_log(log))
        for thread in threads:
            await asyncio.to_thread(thread.join)
        with self._broker.store.together() as written:
            for log in logs:
                self._broker.store.delete_log(log.id)
        await written

    # -- state

    def _traces(self, name: str) -> Iterator[None]:
        """Everybody who keeps state forgets what is this namespace's, an entry at a step."""
        broker = self._broker
        return chain(
            broker.coordinator.forget_namespace(name),
            broker.queues.forget_namespace(name),
            broker.session_keeper.forget_namespace(name),
            broker.delayed.forget_namespace(name),
            broker.archives.forget_namespace(name),
            broker.staging.forget_namespace(name),
            broker.owners.forget_namespace(name),
            broker.pipelines.forget_namespace(name),
        )

    async def _forget(self, traces: Iterator[None]) -> None:
        for n, _ in enumerate(traces, 1):
            if n % SLICE == 0:
                await asyncio.sleep(0)
        self._broker.ticker.write_now()
        await self._broker.ticker.settle([self._broker.journal.stem])

    async def _end(self, name: str) -> None:
        try:
            await self.forget_names(name)
        except MainstemError as error:
            logger.warning("namespace %r is removed, and its names are left in the history: %s", name, error)
        await self._broker.store.delete_value(REMOVING + name)
        self._under_way.discard(name)

    async def finish(self) -> None:
        """After a start: what a crash kept of namespaces that are removed. Their logs are gone already."""
        for name in sorted(self._under_way):
            await self._forget(self._traces(name))
            await self._end(name)
            logger.info("namespace %r was removed; a crash had kept some of its state", name)


async def _nobody(name: str) -> None:
    """Nobody keeps any."""


def told(held: dict[str, int]) -> str:
    """`3 topics, 1 queue`."""
    return ", ".join(f"{count} {kind if count != 1 else kind.removesuffix('s')}" for kind, count in held.items())
