"""The sink of a queue: from the tick that wrote a record into a consumer's output, without an object per message.

A `QueueSink` is the sink through which records enter a queue. While the queue stands at the head (`direct`: nothing unread,
nothing released) and a consumer has credit, `push` hands the record straight on; otherwise it only counts it, for the
log still has it. What happened in a tick is collected in plain arrays and told to the queue cursor once, by `tell`.

    Entry      why the records of one topic enter this queue (merged from its bindings and filters)
    Taker      a consumer, of any protocol: `credit` says how many more it takes, `take` gives it one
    QueueSink  the queue's sink

A record enters if its header `ms-queues` names the queue; without that header if its entry says so: `anything`, or by
where it was published: to the default exchange (`default`), to `amq.topic` or by another protocol (`plain`), or to another
exchange (its name in `exchanges`). Kafka's batches are clients' bytes: their `ms-*` headers are not believed.
"""

from __future__ import annotations

from mainstem.broker.queues._queue_sink import Backlog, Entry, QueueSink, Taker, may_expire

__all__ = ["Backlog", "Entry", "QueueSink", "Taker", "may_expire"]
