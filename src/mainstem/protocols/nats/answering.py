"""Where the broker may send something for a client: what JetStream answers, delivers or acks.

It reaches whoever listens at the reply subject, as if the client had published it there. So the client needs the right to;
inboxes and other subjects that are live only need none, as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.broker.rights.access import Action
from mainstem.model.errors import InvalidName
from mainstem.model.topic import topic_of_nats
from mainstem.protocols.nats.listening import is_live_only

if TYPE_CHECKING:
    from mainstem.protocols.nats.adapter import NatsConnection


def may_be_answered(connection: NatsConnection, reply: bytes) -> bool:
    assert connection.principal is not None and connection.jetstream is not None
    if not reply or reply.startswith(b"_") or connection.principal.admin:
        return True
    try:
        topic = topic_of_nats(reply)
    except InvalidName:
        return True  # nobody can listen there
    if is_live_only(reply) and connection.jetstream.streams.capture(topic) is None:
        return True
    return connection.may(Action.PUBLISH, topic)


def refuses_answer(connection: NatsConnection, reply: bytes) -> bool:
    """The client is told so."""
    if may_be_answered(connection, reply):
        return False
    connection.refuse_publish([reply.decode(errors="replace")], prefix="")
    return True
