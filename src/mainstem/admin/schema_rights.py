"""Who may see the schemas of a subject: who may describe, read or write the topic that it is about."""

from __future__ import annotations

from mainstem.admin.rights import may
from mainstem.admin.running import Running
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.rights.access import Principal
from mainstem.broker.rights.operations import NEEDS
from mainstem.broker.schemas.subjects import topic_of_subject

READING = ("schema.describe", "topic.consume", "topic.publish")


def sees(running: Running, principal: Principal, namespace: Namespace, subject: str) -> bool:
    topic = topic_of_subject(subject)
    return any(may(running, principal, NEEDS[one], namespace, topic) for one in READING)
