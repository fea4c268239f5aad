"""The policy of a stream's log, and how durable its acks are: what of it changes while the stream is used.

A client says it in the stream's metadata, an operator by HTTP; whoever spoke last decides. What an operator says is kept
with the log and not in the stream's configuration: a client that declares the stream again would otherwise be refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.broker.topics.commits import Commit
from mainstem.metadata.rows import LogRow

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream
    from mainstem.broker.topics.policy import Policy
    from mainstem.metadata.store import Written

LOG_KIND = "stream"


def policy_of(stream: Stream) -> Policy:
    return stream.namespace.stream_logs[stream.log]


def alter_durability(stream: Stream, durability: str) -> Commit[Stream]:
    """In force once this is committed; empty: as the namespace's topics."""
    broker, policy = stream.service.broker, changed_policy(stream, durability)

    def apply() -> None:
        if stream.deleted:  # meanwhile: the row of its log must not come back
            broker.store.delete_log(stream.log.id)
        else:
            use_policy(stream, policy)

    return Commit(broker.ticker.loop, put_policy(stream, policy), stream, apply=apply)


def changed_policy(stream: Stream, durability: str) -> Policy:
    return policy_of(stream).with_changes({"durability": durability or stream.namespace.defaults.durability})


def put_policy(stream: Stream, policy: Policy) -> Written:
    row = LogRow(stream.log.id, stream.namespace.name, LOG_KIND, policy.engine, policy.to_document())
    return stream.service.broker.store.put_log(row)


def use_policy(stream: Stream, policy: Policy) -> None:
    namespace, log = stream.namespace, stream.log
    namespace.stream_logs[log] = namespace.stem_policies[log] = policy
    log.durability = stream.service.broker.logs.durability_of(policy.durability)
