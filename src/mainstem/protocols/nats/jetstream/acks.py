"""What a consumer's client says of a message: published to its reply subject.

    empty, +ACK, +OK   done                  -NAK [{"delay": ns}]   again, later if it says so
    +WPI               still at it           +TERM [reason]         never again
    +NXT [pull]        done, and the next

With a reply each is answered by an empty message once it is durable, also a repeated one.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from mainstem.broker.streams.consumer import Consumer
from mainstem.log.gather import Ticket
from mainstem.model.whole_numbers import whole_number
from mainstem.protocols.nats.answering import refuses_answer
from mainstem.protocols.nats.documents import parse
from mainstem.protocols.nats.jetstream.pulling import pull_of
from mainstem.protocols.nats.jetstream.words import NUMBER_DIGITS_MAX, NUMBER_MAX

if TYPE_CHECKING:
    from mainstem.protocols.nats.adapter import NatsConnection
    from mainstem.protocols.nats.jetstream.api import JetStream

PREFIX = b"$JS.ACK."
DELAY_MS_MAX = 366 * 86_400_000
_UNITS_MS = {b"ms": 1.0, b"s": 1_000.0, b"m": 60_000.0, b"h": 3_600_000.0, b"us": 0.001, b"ns": 0.000001}


class _Answer:
    __slots__ = ("_jetstream", "_reply")

    def __init__(self, jetstream: JetStream, reply: bytes) -> None:
        self._jetstream, self._reply = jetstream, reply

    def released(self, ticket: Ticket, /) -> None:
        if ticket.error is None:
            self._jetstream.send(self._reply, b"")


def handle(jetstream: JetStream, connection: NatsConnection, subject: bytes, reply: bytes, payload: bytes) -> None:
    tokens = subject.split(b".")
    if len(tokens) >= 11:  # with domain and account
        tokens = tokens[:2] + tokens[4:]
    if len(tokens) < 9 or not tokens[5].isdigit():
        return
    consumer = jetstream.acked_consumer(tokens)
    if consumer is None or not jetstream.may_consume(connection, consumer):
        return
    if refuses_answer(connection, reply):
        return
    told = [whole_number(token, NUMBER_DIGITS_MAX) or 0 for token in tokens[4:8]]  # deliveries, two sequences, stamp
    if max(told) > NUMBER_MAX:
        return
    ticket = settle(jetstream, connection, consumer, told, payload, reply)
    if not reply or payload.startswith(b"+NXT"):
        return
    pending = ticket or jetstream.broker.journal.unsynced()
    if pending is not None and consumer.settings.durable:
        pending.wait(_Answer(jetstream, reply))
    else:
        jetstream.send(reply, b"")


def handle_many(
    jetstream: JetStream, connection: NatsConnection, front: bytes, offsets: array[int], told: array[int]
) -> None:
    """Acks of one consumer that ask for no answer. `told`: four numbers of each, as `settle` has them."""
    consumer = jetstream.acked_consumer(front.split(b"."))
    if consumer is None or not jetstream.may_consume(connection, consumer):
        return
    if type(consumer) is Consumer and consumer.settings.ack_policy == "explicit" and not consumer.sampled:
        consumer.ack_many(offsets)
        return
    for at in range(0, len(told), 4):
        settle(jetstream, connection, consumer, list(told[at : at + 4]), b"", b"")


def settle(
    jetstream: JetStream, connection: NatsConnection, consumer: Consumer, told: list[int], payload: bytes, reply: bytes
) -> Ticket | None:
    """`told`: the numbers of the ack's subject."""
    deliveries, seq, consumer_seq, stamp = told
    facts = {"consumer_seq": consumer_seq, "stream_seq": seq, "deliveries": deliveries}
    if payload.startswith(b"-NAK"):
        jetstream.advise_consumer("nak", "MSG_NAKED", consumer, **facts)
        return consumer.nak(seq, delay_ms(payload[4:].strip()), stamp=stamp)
    if payload.startswith(b"+WPI"):
        consumer.progress(seq, stamp=stamp)
        return None
    if payload.startswith(b"+TERM"):
        ticket = consumer.term(seq, stamp=stamp)
        reason = payload[5:].strip().decode(errors="replace")
        more = {"reason": reason} if reason else {}
        jetstream.advise_consumer("terminated", "MSG_TERMINATED", consumer, **facts, **more)
        return ticket
    if consumer.sampled:
        jetstream.measure_ack(consumer, seq, consumer_seq, deliveries)
    ticket = consumer.ack(seq, stamp=stamp)
    if payload.startswith(b"+NXT") and reply:
        pull = pull_of(connection, reply, payload[4:].strip() or b"1")
        if pull is not None:
            jetstream.delivery(consumer).add(pull)
    return ticket


def delay_ms(text: bytes) -> int:
    """`{"delay": ns}` or a duration like `5s`; 0 where it says none."""
    if text.startswith(b"{"):
        try:
            return min(max(0, int(parse(text).get("delay") or 0) // 1_000_000), DELAY_MS_MAX)
        except (ValueError, TypeError, AttributeError, OverflowError):
            return 0
    number = text.rstrip(b"hmsnu")
    try:
        return min(max(0, int(float(number) * _UNITS_MS[text[len(number) :]])), DELAY_MS_MAX) if text else 0
    except (KeyError, ValueError, OverflowError):
        return 0
