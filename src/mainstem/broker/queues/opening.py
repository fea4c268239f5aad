"""What a queue takes in from the moment it is declared, and which rights declaring it needs.

AMQP and the management API ask here. Whoever may consume a queue gets what is in it, however it got in; so who makes one
must have the right to everything that it will hold, and to write wherever its dead letters will go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mainstem.broker.queues.bindings import ANYTHING, NOW, Reach
from mainstem.broker.queues.declaring import quoted
from mainstem.broker.queues.exchange_names import DEFAULT, anything_to, topic_of
from mainstem.broker.queues.queue import Queue
from mainstem.broker.queues.registry import Queues
from mainstem.broker.queues.settings import QueueSettings
from mainstem.broker.rights.access import Access, Action, Kind, Principal
from mainstem.model.errors import NotAuthorized, NotFound
from mainstem.model.topic_filter import literal_filter


def opening_reaches(
    queues: Queues, name: str, settings: QueueSettings, arguments: dict[str, Any]
) -> tuple[list[Reach], str]:
    """How records get in before anything is bound, and the condition they must meet."""
    reaches = [queues.exchanges.default_reach(name, NOW)]
    if not settings.view:
        return reaches, ""
    view = queues.namespace.views.get(topic_of(DEFAULT, settings.view))
    if view is None:
        raise NotFound(f"no view '{settings.view}' in vhost '{queues.namespace.name}'")
    start = 0 if arguments.get("x-from") == "earliest" else NOW
    reaches.append(Reach(ANYTHING, view.filter, "", start))
    return reaches, view.condition.text if view.condition is not None else ""


def opening_rights(
    name: str, settings: QueueSettings, vhost: str, *, enters: bytes = b""
) -> Iterator[tuple[Action, bytes, str]]:
    """(action, filter, what a refusal calls it): all that each filter means must be allowed, besides making the queue."""
    if enters:
        yield Action.CONSUME, enters, enters.decode(errors="replace")
    if settings.view:
        yield Action.CONSUME, literal_filter(topic_of(DEFAULT, settings.view)), quoted("view", settings.view, vhost)
    exchange, key = settings.dead_letter_exchange, settings.dead_letter_key
    if exchange is None:
        return
    goal = literal_filter(topic_of(exchange, key)) if key else anything_to(exchange)
    yield Action.PUBLISH, goal, quoted("exchange", exchange, vhost)


def may_queue(access: Access, principal: Principal, action: Action, name: str) -> bool:
    """By a rule of queues, or of the topic that its name is."""
    return access.allows_named(principal, action, Kind.QUEUE, name, topic_of(DEFAULT, name))


def may_bind(access: Access, principal: Principal, name: str) -> bool:
    """What is bound to a queue enters it: for who may write it, or made it, or could have."""
    return any(
        may_queue(access, principal, action, name) for action in (Action.PUBLISH, Action.CREATE, Action.CONFIGURE)
    )


def check_joiner(access: Access, principal: Principal, queue: Queue) -> None:
    """Whoever joins a queue by its name may consume it: by a rule of queues, or, without one, of what enters it."""
    if access.judges(principal, Action.CONSUME, Kind.QUEUE, queue.name) is None:
        for topic_filter in queue.filters:
            if not access.allows_filter(principal, Action.CONSUME, topic_filter):
                raise NotAuthorized(f"user {principal.name} may not consume {topic_filter.decode()!r}")
    elif not may_queue(access, principal, Action.CONSUME, queue.name):
        raise NotAuthorized(f"user {principal.name} may not consume queue {queue.name!r}")
    check_taker(access, principal, queue)


def check_taker(access: Access, principal: Principal, queue: Queue) -> None:
    """Whoever takes from a queue takes whatever is in it: nothing that may enter it must be denied to them.

    Passing over single records instead would leave them in the queue for ever, where nobody else consumes it.
    """
    for topic_filter in queue.filters:
        if access.denies_some(principal, Action.CONSUME, topic_filter):
            raise NotAuthorized(
                f"queue {queue.name} takes in {topic_filter.decode(errors='replace')}, of which a rule denies "
                f"user {principal.name} some",
                fix=f"mainstem user may {principal.name} consume '{topic_filter.decode(errors='replace')}' --why",
            )
