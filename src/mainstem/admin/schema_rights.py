"""Who may see the schemas of a subject: who may describe, read or write the topic that it is about.

Reading values needs less of a schema: who consumes what a subject is about is shown them as it reads them. A value names its
schema by a number, which whoever may publish anywhere can write; so a schema shows nothing to who may not see it.
"""

from __future__ import annotations

from collections.abc import Callable

from mainstem.admin.rights import may
from mainstem.admin.running import Running
from mainstem.broker.broker import Broker
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.rights.access import Principal
from mainstem.broker.rights.operations import NEEDS
from mainstem.broker.scans.readers import Reader, Readers
from mainstem.broker.schemas.enforcement import Shown
from mainstem.broker.schemas.subjects import topic_of_subject

READING = ("schema.describe", "topic.consume", "topic.publish")


def sees(running: Running, principal: Principal, namespace: Namespace, subject: str) -> bool:
    topic = topic_of_subject(subject)
    return any(may(running, principal, NEEDS[one], namespace, topic) for one in READING)


def reads_by(broker: Broker, reader: Reader, namespace: Namespace, schema_id: int) -> bool:
    """Who may consume what a subject is about, or some of a filter whose policy names it."""
    if reader.rules is None:
        return True
    subjects = {one.subject for one in broker.schemas.of(namespace).state.users(schema_id, deleted=True)}
    if any(reader.rules.allows(topic_of_subject(one).encode()) for one in subjects):
        return True
    named = (one for one, changes in namespace.rules.items() if changes.get("schema") in subjects)
    return any(reader.rules.allows_some(one) for one in named)


def shown_to(broker: Broker, principal: Principal, namespace: Namespace) -> Callable[[bytes], Shown | None]:
    """Makes JSON of a value that a serialiser wrote, as far as its reader may see the schema."""
    reader, enforcement = Readers(broker.access).of(principal), broker.schemas.of(namespace).enforcement

    def shown(value: bytes) -> Shown | None:
        found = enforcement.shown(value)
        return found if found is not None and reads_by(broker, reader, namespace, found.id) else None

    return shown
