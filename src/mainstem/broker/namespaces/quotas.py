"""Quotas: how much a namespace, or a user in all its namespaces, may use. `Limits` says it, an `Account` counts it.

- A rate (bytes and messages published, bytes consumed a second) is a token bucket that holds one second's worth. It is
  charged once for each socket read and write, whatever that held, and may go into debt. With `over_rate = delay` who goes
  into debt is read, or written to, again when it is paid: at most WAIT_S_MAX later. With `refuse` a namespace's publishes
  are refused until it is paid, and a user's connection is ended.
- A level (connections, topics, queues, bytes stored) refuses whatever would exceed it, when it is made. Stored bytes are
  measured once a second; beyond them publishes are refused until retention, or somebody, has deleted some.

Everything is per process and starts anew with it. Zero is no limit. At NEAR of a limit that is logged, once until it falls
below.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, Self

from mainstem.model.errors import InvalidArgument, QuotaExceeded

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace

logger = logging.getLogger("mainstem.quota")

DELAY, REFUSE = OVER_RATE = ("delay", "refuse")
NAMESPACE, USER = KINDS = ("namespace", "user")
OF_NAMESPACES_ONLY = ("topics_max", "queues_max", "stored_bytes_max", "retained_bytes_max", "share")
WAIT_S_MAX = 30.0
REVIEW_S = 1.0
NEAR = 0.8
LOGS_PER_TURN = 100
LIMIT_MAX = 1 << 53  # Kafka's are floating point numbers


@dataclass(frozen=True, slots=True)
class Limits:
    publish_bytes_per_s: int = 0
    publish_messages_per_s: int = 0
    consume_bytes_per_s: int = 0
    connections_max: int = 0
    topics_max: int = 0
    queues_max: int = 0
    stored_bytes_max: int = 0
    retained_bytes_max: int = 0
    share: int = 0  # turns of the loop that it gets for each one of another namespace (`turns.py`); 0 is 1
    over_rate: str = DELAY

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        return cls(**document)

    def to_document(self) -> dict[str, Any]:
        """What is set."""
        return {name: value for name, value in asdict(self).items() if value not in (0, DELAY)}

    def changed(self, given: Mapping[str, Any], kind: str) -> Limits:
        """With some of them set anew; None takes one away. Whatever is wrong is told here."""
        names = [one.name for one in fields(self) if kind == NAMESPACE or one.name not in OF_NAMESPACES_ONLY]
        values = asdict(self)
        for name, value in given.items():
            if name not in names:
                near = get_close_matches(name, names, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
                raise InvalidArgument(f"unknown quota of a {kind} {name!r}; {hint}")
            if name == "over_rate":
                if value not in (None, *OVER_RATE):
                    raise InvalidArgument(f"over_rate is {' or '.join(OVER_RATE)}, not {value!r}")
                values[name] = value or DELAY
                continue
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise InvalidArgument(f"{name} must be a whole number, not {value!r}")
            if value is not None and not 0 < value <= LIMIT_MAX:
                raise InvalidArgument(f"{name} must be 1 to {LIMIT_MAX}, not {value}", fix="null is no limit")
            values[name] = value or 0
        return Limits(**values)

    @property
    def has_rates(self) -> bool:
        return bool(self.publish_bytes_per_s or self.publish_messages_per_s or self.consume_bytes_per_s)


NO_LIMITS = Limits()


class Bucket:
    """Times are seconds of a clock that only goes forward."""

    __slots__ = ("at", "level", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate, self.level, self.at = rate, rate, now

    def take(self, amount: int, now: float) -> float:
        """Returns how long until what was taken is paid."""
        level = min(self.rate, self.level + (now - self.at) * self.rate) - amount
        self.at, self.level = now, max(level, -self.rate * WAIT_S_MAX)
        return -self.level / self.rate if self.level < 0 else 0.0


class Client(Protocol):
    """What a connection says and does for its quotas (`protocols/metering.py`)."""

    member: Member | None

    def set_tenant(self, tenant: str) -> None:
        """In whose turns of the loop it is served."""

    def set_meter(self, meter: Member | None) -> None: ...

    def published_count(self) -> int:
        """Messages it has published, ever."""

    def hold(self, wait_s: float) -> None: ...

    def release(self) -> None: ...

    def hold_output(self, wait_s: float) -> None: ...

    def release_output(self) -> None: ...

    def end(self, error: QuotaExceeded) -> None: ...


class Account:
    """What a namespace or a user has used."""

    def __init__(self, kind: str, name: str, limits: Limits, now: float) -> None:
        self.kind, self.name = kind, name
        self.members: set[Member] = set()
        self.totals = [0, 0, 0]  # bytes and messages published, bytes consumed
        self.per_s = [0.0, 0.0, 0.0]
        self.stored_bytes = 0
        self.delays_total = self.refusals_total = 0
        self.refused_until = 0.0
        self.near: set[str] = set()
        self._seen, self._seen_at = (0, 0, 0), now
        self.give(limits, now)

    def give(self, limits: Limits, now: float) -> None:
        self.limits = limits
        rates = (limits.publish_bytes_per_s, limits.publish_messages_per_s, limits.consume_bytes_per_s)
        self.buckets = tuple(Bucket(rate, now) if rate else None for rate in rates)

    def take(self, which: int, amount: int, now: float) -> float:
        self.totals[which] += amount
        bucket = self.buckets[which]
        return bucket.take(amount, now) if bucket is not None and amount else 0.0

    def measure(self, now: float) -> None:
        passed = now - self._seen_at
        if passed > 0:
            self.per_s = [(total - seen) / passed for total, seen in zip(self.totals, self._seen, strict=True)]
            self._seen, self._seen_at = (self.totals[0], self.totals[1], self.totals[2]), now

    def error(self, quota: str) -> QuotaExceeded:
        limit = getattr(self.limits, quota)
        return QuotaExceeded(
            f"{self.kind} {self.name} has used up its {quota} of {limit}",
            fix=f"mainstem {self.kind} alter {self.name} --quota {quota}=...",
        )


class Member:
    """One connection in the accounts it is charged to; its `meter`, too, where one of them has a rate."""

    __slots__ = ("_published", "_quotas", "accounts", "client")

    def __init__(self, quotas: Quotas, client: Client, accounts: tuple[Account, ...]) -> None:
        self._quotas, self.client, self.accounts = quotas, client, accounts
        self._published = client.published_count()

    def read(self, size: int) -> None:
        """A socket read was handled."""
        published = self.client.published_count()
        messages, self._published = published - self._published, published
        now, wait_s = self._quotas.now(), 0.0
        for account in self.accounts:
            late = max(account.take(0, size, now), account.take(1, messages, now))
            if late and account.limits.over_rate == REFUSE:
                self._quotas.refuse_rate(account, self, late, now)
                late = 0.0
            elif late:
                account.delays_total += 1
            wait_s = max(wait_s, late)
        if wait_s:
            self.client.hold(wait_s)
            self._quotas.later(now + wait_s, self.client.release)

    def wrote(self, size: int) -> None:
        """So much was written to its socket."""
        now, wait_s = self._quotas.now(), 0.0
        for account in self.accounts:
            late = account.take(2, size, now)
            account.delays_total += bool(late)
            wait_s = max(wait_s, late)
        if wait_s:
            self.client.hold_output(wait_s)
            self._quotas.later(now + wait_s, self.client.release_output)

    def leave(self) -> None:
        self.client.member = None
        for account in self.accounts:
            account.members.discard(self)
            self._quotas.forget_unused(account)


class Quotas:
    def __init__(self, broker: Broker, now: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self.now = now
        self.accounts: dict[tuple[str, str], Account] = {}
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []  # two for each connection at most
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    # -- who is charged

    def limits_of(self, kind: str, name: str) -> Limits:
        if kind == NAMESPACE:
            namespace = self._broker.namespaces.get(name)
            return namespace.settings.quota if namespace is not None else NO_LIMITS
        user = self._broker.access.users.get(name)
        return user.quota if user is not None else NO_LIMITS

    def account(self, kind: str, name: str) -> Account:
        found = self.accounts.get((kind, name))
        if found is None:
            found = self.accounts[kind, name] = Account(kind, name, self.limits_of(kind, name), self.now())
        return found

    def forget_unused(self, account: Account) -> None:
        if not account.members and account.limits == NO_LIMITS:
            self.accounts.pop((account.kind, account.name), None)

    def enter(self, client: Client, namespace: Namespace, user: str) -> None:
        """A client has logged in; `user` is empty where everybody gets in. QuotaExceeded where it is one too many."""
        if client.member is not None:
            client.member.leave()
        accounts = (self.account(NAMESPACE, namespace.name), *((self.account(USER, user),) if user else ()))
        for account in accounts:
            if account.limits.connections_max and len(account.members) >= account.limits.connections_max:
                account.refusals_total += 1
                raise account.error("connections_max")
        client.member = member = Member(self, client, accounts)
        for account in accounts:
            account.members.add(member)
        self._set_meter(member)
        client.set_tenant(namespace.name)

    def _set_meter(self, member: Member) -> None:
        member.client.set_meter(member if any(one.limits.has_rates for one in member.accounts) else None)

    def users_changed(self) -> None:
        for kind, name in [key for key in self.accounts if key[0] == USER]:
            if self.accounts[kind, name].limits != self.limits_of(kind, name):
                self.changed(kind, name)

    def changed(self, kind: str, name: str) -> None:
        """Its limits are others now; its connections follow at once."""
        limits = self.limits_of(kind, name)
        if limits == NO_LIMITS and (kind, name) not in self.accounts:
            return
        account = self.account(kind, name)
        account.give(limits, self.now())
        account.near.clear()
        for member in account.members:
            self._set_meter(member)
        if kind == NAMESPACE and not limits.stored_bytes_max and limits.over_rate != REFUSE:
            self._refuse(name, None)
        self.forget_unused(account)

    # -- levels

    def check_topics(self, namespace: Namespace) -> None:
        """Before a topic is made."""
        limit = namespace.settings.quota.topics_max
        if limit and namespace.topic_count >= limit:
            self._raise(namespace, "topics_max")

    def check_retained(self, namespace: Namespace) -> None:
        """Before a message is retained."""
        if self._broker.session_keeper.retained(namespace).full:
            self._raise(namespace, "retained_bytes_max")

    def check_queues(self, namespace: Namespace, there: int) -> None:
        limit = namespace.settings.quota.queues_max
        if limit and there >= limit:
            self._raise(namespace, "queues_max")

    def _raise(self, namespace: Namespace, quota: str) -> None:
        account = self.account(NAMESPACE, namespace.name)
        account.refusals_total += 1
        raise account.error(quota)

    # -- delays

    def later(self, due: float, call: Callable[[], None]) -> None:
        heappush(self._waiting, (due, next(self._numbers), call))
        if self._timer is None or due <= self._waiting[0][0]:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, self._waiting[0][0] - self.now()), self._on_time)

    def _on_time(self) -> None:
        self._timer, now = None, self.now()
        while self._waiting and self._waiting[0][0] <= now:
            heappop(self._waiting)[2]()
        if self._waiting:
            self._arm()

    # -- refusals

    def refuse_rate(self, account: Account, member: Member, wait_s: float, now: float) -> None:
        quota = "publish_bytes_per_s" if account.limits.publish_bytes_per_s else "publish_messages_per_s"
        account.refusals_total += 1
        if account.kind == USER:
            member.client.end(account.error(quota))
            return
        account.refused_until = now + wait_s
        self._refuse(account.name, account.error(quota))

    def _refuse(self, name: str, refusal: QuotaExceeded | None) -> None:
        """Publishes of a namespace, by any protocol; None: they are taken again."""
        namespace = self._broker.namespaces.get(name)
        if namespace is None or (namespace.refusal is None and refusal is None):
            return
        namespace.refusal = refusal
        namespace.route_clears += 1  # whoever keeps where publishes lead asks again
        for log in namespace.logs():
            log.refusal = refusal
        if refusal is None:
            self._broker.maintenance.watch_space()

    def refuse_again(self) -> None:
        """Somebody else set and took back refusals of all logs."""
        for namespace in self._broker.namespaces.values():
            if namespace.refusal is not None:
                for log in namespace.logs():
                    log.refusal = namespace.refusal

    # -- every second

    async def run(self) -> None:
        while True:
            await asyncio.sleep(REVIEW_S)
            try:
                await self.review()
            except Exception:
                logger.exception("quotas could not be reviewed; it is tried again")

    async def review(self) -> None:
        """Measure levels, take back refusals, say who is near a limit."""
        for namespace in list(self._broker.namespaces.values()):
            if namespace.settings.quota != NO_LIMITS:
                self.account(NAMESPACE, namespace.name)
        for account in list(self.accounts.values()):
            now = self.now()
            account.measure(now)
            if account.kind == NAMESPACE:
                await self._review_namespace(account, now)
            for quota, used, limit in self.use(account):
                self._warn(account, quota, used, limit)

    async def _review_namespace(self, account: Account, now: float) -> None:
        namespace, limits = self._broker.namespaces.get(account.name), account.limits
        if namespace is None:
            return
        await self._broker.session_keeper.retained(namespace).review()
        if limits.stored_bytes_max:
            account.stored_bytes = await self.stored_bytes(namespace)
        if limits.stored_bytes_max and account.stored_bytes >= limits.stored_bytes_max:
            if namespace.refusal is None:
                account.refusals_total += 1
            self._refuse(account.name, account.error("stored_bytes_max"))
        elif account.refused_until <= now:
            self._refuse(account.name, None)

    async def stored_bytes(self, namespace: Namespace) -> int:
        total = 0
        for number, log in enumerate(namespace.logs(), 1):
            total += log.engine.stat().size_bytes
            if number % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
        return total

    def _warn(self, account: Account, quota: str, used: float, limit: int) -> None:
        if used < NEAR * limit:
            account.near.discard(quota)
        elif quota not in account.near:
            account.near.add(quota)
            logger.warning(
                "%s %s uses %d %% of its %s of %d", account.kind, account.name, 100 * used // limit, quota, limit
            )

    # -- what is shown

    @property
    def near_count(self) -> int:
        """Limits of which most is used, of namespaces and users."""
        return sum(len(account.near) for account in self.accounts.values())

    def use(self, account: Account) -> Iterator[tuple[str, float, int]]:
        """(quota, used, limit) of each that is set."""
        limits, namespace = account.limits, self._broker.namespaces.get(account.name)
        used = {
            "publish_bytes_per_s": account.per_s[0],
            "publish_messages_per_s": account.per_s[1],
            "consume_bytes_per_s": account.per_s[2],
            "connections_max": len(account.members),
            "stored_bytes_max": account.stored_bytes,
        }
        if account.kind == NAMESPACE and namespace is not None:
            used["topics_max"] = namespace.topic_count
            used["queues_max"] = len(self._broker.queues.of(namespace).by_name)
            retained = self._broker.session_keeper.retained(namespace).bytes
            used["retained_bytes_max"] = retained.total if retained is not None else 0
        for quota, value in used.items():
            limit = getattr(limits, quota)
            if limit:
                yield quota, value, limit

    def shown(self, kind: str, name: str) -> dict[str, Any]:
        """What is used of each limit, what is left of it, and whether that is little."""
        if (kind, name) not in self.accounts and self.limits_of(kind, name) == NO_LIMITS:
            return {}
        account = self.account(kind, name)  # new where the limits are: the next review would make it
        return {
            quota: {
                "used": int(used),
                "limit": limit,
                "left": max(0, limit - int(used)),
                "near": used >= NEAR * limit,
            }
            for quota, used, limit in self.use(account)
        }
