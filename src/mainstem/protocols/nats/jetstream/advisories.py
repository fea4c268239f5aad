"""What JetStream tells by itself, to who listens: `$JS.EVENT.ADVISORY.>` and `$JS.EVENT.METRIC.>`. Never stored, unless a
stream names these subjects as its own."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from mainstem.broker.streams.consumer import Consumer
from mainstem.model.origin import Origin
from mainstem.model.topic import topic_of_nats
from mainstem.protocols.nats.jetstream.consumer_config import sample_share
from mainstem.protocols.nats.jetstream.words import time_text

if TYPE_CHECKING:
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.broker.streams.stream import Stream
    from mainstem.broker.streams.streams import Streams
    from mainstem.protocols.nats.jetstream.api import Call
    from mainstem.protocols.nats.listening import Listening

EVENT = "$JS.EVENT."


class Advisories:
    namespace: Namespace
    streams: Streams
    listening: Listening

    if TYPE_CHECKING:

        def now_ns(self) -> int: ...
        def new_id(self) -> str: ...
        def send(self, reply: bytes, payload: bytes, headers: bytes = b"") -> None: ...

    def heard(self, subject: str) -> bool:
        """Whether anybody would have it."""
        topic = topic_of_nats(f"{EVENT}{subject}".encode())
        return bool(self.listening.matching(topic)) or self.streams.capture(topic) is not None

    def advise(self, kind: str, event: str, *, family: str = "advisory", **more: Any) -> None:
        if not self.heard(event):
            return
        document = {
            "type": f"io.nats.jetstream.{family}.v1.{kind}",
            "id": self.new_id(),
            "timestamp": time_text(self.now_ns()),
            **more,
        }
        payload = json.dumps(document, separators=(",", ":")).encode()
        topic = topic_of_nats(f"{EVENT}{event}".encode())
        if self.streams.capture(topic) is not None:
            self.namespace.publish(topic, payload, origin=Origin.NATS)
        else:
            self.send(f"{EVENT}{event}".encode(), payload)

    def advise_stream(self, action: str, stream: Stream) -> None:
        word = {"create": "CREATED", "modify": "UPDATED", "delete": "DELETED"}[action]
        self.advise("stream_action", f"ADVISORY.STREAM.{word}.{stream.name}", stream=stream.name, action=action)

    def advise_action(self, action: str, consumer: Consumer) -> None:
        word = {"create": "CREATED", "delete": "DELETED"}[action]
        self.advise_consumer("consumer_action", word, consumer, action=action)

    def advise_consumer(self, kind: str, word: str, consumer: Consumer, **more: Any) -> None:
        stream = consumer.stream.name
        subject = f"ADVISORY.CONSUMER.{word}.{stream}.{consumer.name}"
        self.advise(kind, subject, stream=stream, consumer=consumer.name, **more)

    def advise_dead(self, consumer: Consumer, offsets: list[int]) -> None:
        deliveries = consumer.settings.max_deliver
        for offset in offsets:
            self.advise_consumer(
                "max_deliver", "MAX_DELIVERIES", consumer, stream_seq=offset + 1, deliveries=deliveries
            )

    def advise_abandoned(self, stream: Stream, batch: str, reason: str) -> None:
        """A batch of messages that was never committed."""
        subject = f"ADVISORY.STREAM.BATCH_ABANDONED.{stream.name}"
        self.advise("stream_batch_abandoned", subject, stream=stream.name, batch=batch, reason=reason)

    def advise_call(self, call: Call, subject: str, answer: bytes) -> None:
        """An API request and what was answered."""
        if self.heard("ADVISORY.API"):
            principal = call.connection.principal
            client = {"user": principal.name if principal is not None else "", "acc": self.namespace.name}
            self.advise(
                "api_audit",
                "ADVISORY.API",
                server="mainstem",
                client=client,
                subject=subject,
                request=call.payload.decode(errors="replace"),
                response=answer.decode(errors="replace"),
            )

    def measure_ack(self, consumer: Consumer, seq: int, consumer_seq: int, deliveries: int) -> None:
        """A sampled consumer tells how long some of its acks took."""
        share = sample_share(consumer.config.get("sample_freq", ""))
        given_ns = consumer.given_ns(seq)
        if not given_ns or random.random() >= share:
            return
        self.advise(
            "consumer_ack",
            f"METRIC.CONSUMER.ACK.{consumer.stream.name}.{consumer.name}",
            family="metric",
            stream=consumer.stream.name,
            consumer=consumer.name,
            consumer_seq=consumer_seq,
            stream_seq=seq,
            ack_time=max(1, self.now_ns() - given_ns),
            deliveries=deliveries,
        )
