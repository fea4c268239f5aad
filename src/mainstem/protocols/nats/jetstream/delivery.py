"""Delivering a consumer's messages: to pulls that wait, in turn, or pushed to its deliver subject.

    a pull {batch, expires, no_wait, max_bytes, idle_heartbeat} waits ──▶ a message each, in turns
        ends: batch full (silent) · 404 No Messages · 408 Request Timeout · 409 … · 423 … · its inbox is gone (silent)

A message leaves when it is stable. The reply subject says all that an ack needs:
    $JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<stamp ns>.<pending>
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainstem.broker.delivery.turns import SLICE_NS
from mainstem.broker.rights.access import Action
from mainstem.broker.streams.consumer import Consumer, Delivered
from mainstem.log.away import bring
from mainstem.model.crossing import nats_message
from mainstem.model.errors import InvalidName
from mainstem.model.origin import Origin
from mainstem.model.record import Record
from mainstem.model.topic import topic_of_nats
from mainstem.protocols.nats.jetstream.handing import Handing, Target
from mainstem.protocols.nats.jetstream.pace import Pace
from mainstem.protocols.nats.jetstream.waiting import Pull, Waiting
from mainstem.protocols.nats.jetstream.words import status, with_lines
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.protocols.nats.jetstream.api import JetStream
    from mainstem.protocols.nats.session import Subscription

TURN_MESSAGES_MAX = 1_000  # delivered by one consumer in one turn of the loop, or a slice's; the rest in the next
HANDED_MAX = 4_096  # the same of plain ones
TARGETS_MAX = 64  # pulls that take turns in it
FLOW_WINDOW_BYTES = 2 << 20
NS_PER_S = 1_000_000_000


def message_of(record: Record, now_ns: int) -> tuple[bytes, bytes]:
    """Headers and payload as NATS has them."""
    if record.origin == Origin.NATS:
        return record.header(b"ms-nats") or b"", record.value or b""
    found = nats_message(record, now_ns)
    return (found[0] if found is not None else b""), record.value or b""


def ack_subject(consumer: Consumer, one: Delivered) -> bytes:
    text = (
        f"$JS.ACK.{consumer.stream.name}.{consumer.name}.{one.deliveries}.{one.seq}.{one.consumer_seq}."
        f"{one.record.stamp}.{one.pending}"
    )
    return text.encode()


def turn() -> Iterator[None]:
    """Once for each message of a turn: others' work waits for no more than a slice."""
    until_ns = time.monotonic_ns() + SLICE_NS
    for _ in range(TURN_MESSAGES_MAX):
        yield
        if time.monotonic_ns() >= until_ns:
            return


class Delivery:
    """Of one consumer."""

    def __init__(self, jetstream: JetStream, consumer: Consumer) -> None:
        self.jetstream = jetstream
        self.consumer = consumer
        self._loop = asyncio.get_running_loop()
        self.pulls = Waiting(self._loop, consumer.config)
        self.pulls.on_wrong_pin = self._on_wrong_pin
        self.pulls.on_pinned = self._on_pinned
        self.pulls.on_unpinned = self._on_unpinned
        self._pace = Pace(consumer.config, consumer.stream.last_seq)
        self._later: asyncio.TimerHandle | None = None  # when the pace allows the next message
        self._scheduled = self._watching = self._bringing = False
        self._heartbeat: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._flow_bytes = 0
        self._flow_reply = b""
        consumer.on_ready = self.wake
        consumer.on_deleted = self.on_deleted
        consumer.on_dead = self.on_dead
        self.changed()

    def changed(self) -> None:
        config = self.consumer.config
        self.push = config.get("deliver_subject", "").encode()
        self.push_topic = topic_of_nats(self.push) if self.push else b""
        self.group = config.get("deliver_group", "").encode()
        self.pulls.change(config)
        self._pace.change(config)
        self._beat()
        self.touch()
        self.wake()

    # -- pulls -------------------------------------------------------------------------------------------------------

    def add(self, pull: Pull) -> None:
        consumer = self.consumer
        self.touch()
        if pull.no_wait and not pull.expires_ns and not self._ready():
            self._send_status(pull.reply, 404, "No Messages")
            return
        if self.pulls.pin and pull.pin:
            if pull.pin != self.pulls.pin:
                self._send_status(pull.reply, 423, "Nats-Pin-Id mismatch")
                return
            self.pulls.keep_pin()
        if len(self.pulls) >= consumer.config.get("max_waiting", 512):
            self._drop_gone()
            if len(self.pulls) >= consumer.config.get("max_waiting", 512):
                if not pull.heartbeat_ns:  # else the client would ask again at once, for ever
                    self._send_status(pull.reply, 409, "Exceeded MaxWaiting")
                return
        if pull.expires_ns:
            pull.timers.append(self._loop.call_later(pull.expires_ns / NS_PER_S, self._expire, pull))
        if pull.heartbeat_ns:
            pull.timers.append(self._loop.call_later(pull.heartbeat_ns / NS_PER_S, self._pull_beat, pull))
        self.pulls.add(pull)
        self.serve()

    def _ready(self) -> bool:
        try:
            return self.consumer.has_ready()
        except NotLocal:
            return True

    def _expire(self, pull: Pull) -> None:
        if pull in self.pulls:
            self._end(pull, 408, "Request Timeout")

    def _end(self, pull: Pull, code: int, text: str) -> None:
        self.pulls.remove(pull)
        left: list[tuple[str, object]] = [
            ("Nats-Pending-Messages", pull.batch - pull.delivered),
            ("Nats-Pending-Bytes", pull.bytes_left),
        ]
        self._send_status(
            pull.reply, code, text, left if code in (408, 409, 423) and text != "Consumer Deleted" else []
        )

    def _pull_beat(self, pull: Pull) -> None:
        if pull in self.pulls:
            self._send_status(pull.reply, 100, "Idle Heartbeat", self._places())
            pull.timers = [t for t in pull.timers if t.when() > self._loop.time()]
            pull.timers.append(self._loop.call_later(pull.heartbeat_ns / NS_PER_S, self._pull_beat, pull))

    def _places(self) -> list[tuple[str, object]]:
        return [("Nats-Last-Consumer", self.consumer.consumer_seq), ("Nats-Last-Stream", self.consumer.delivered)]

    def _drop_gone(self) -> None:
        for pull in [one for one in self.pulls if not self._receivers(one.reply)]:
            self.pulls.remove(pull)

    def _send_status(self, reply: bytes, code: int, text: str, lines: list[tuple[str, object]] | None = None) -> None:
        self.jetstream.send(reply, b"", status(code, text, lines or []))

    # -- serving -----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something may be ready: looked at in the next turn."""
        if not self._scheduled and not self.consumer.deleted:
            self._scheduled = True
            self._loop.call_soon(self.serve)

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            self.consumer.watch(self._on_news)

    def _on_news(self) -> None:
        self._watching = False
        self.wake()

    def serve(self) -> None:
        self._scheduled = False
        if self.consumer.deleted or self._bringing:
            return
        try:
            if self.push:
                self._serve_push()
            else:
                self._serve_pulls()
        except NotLocal as missing:
            self._bringing = True
            bring(missing, self._on_brought)
        self.consumer.put_back()

    def _on_brought(self) -> None:
        """What it reads next lay elsewhere, and is here now."""
        self._bringing = False
        self.wake()

    def _held_back(self, record: Record) -> bool:
        """Whether the next message must wait for its time; it is looked at again then."""
        if self._pace.free:
            return False
        wait_ns = self._pace.wait_ns(record, self.jetstream.now_ns())
        if wait_ns:
            if self._later is not None:
                self._later.cancel()
            self._later = self._loop.call_later(wait_ns / NS_PER_S, self.wake)
        return wait_ns > 0

    @property
    def _plain(self) -> bool:
        """Whether unread messages just go to who pulls: nobody holds them back, and nothing is added to them."""
        consumer = self.consumer
        return (
            type(consumer) is Consumer
            and self.pulls.policy == "none"
            and self._pace.free
            and not consumer.stream.copies
            and not consumer.config.get("headers_only")
        )

    def _hand_out(self) -> int:
        """Give out what is ready, all at once; how many messages that were."""
        targets: list[Target] = []
        for pull in self.pulls.first(TARGETS_MAX):
            receivers = self._receivers(pull.reply)
            if not receivers:
                self.pulls.remove(pull)
            elif len(receivers) > 1 or receivers[0].queue or pull.has_limit:
                return 0
            else:
                targets.append(Target(pull, receivers[0], pull.batch - pull.delivered))
        if not targets:
            return 0
        consumer, wanted, all_targets = self.consumer, sum(one.left for one in targets), list(targets)
        front = f"$JS.ACK.{consumer.stream.name}.{consumer.name}.1.".encode()
        handing = Handing(self.jetstream.namespace, self.jetstream.server.encoder, front, targets)
        given = consumer.hand_out(handing, min(wanted, HANDED_MAX))
        for one in all_targets:
            one.pull.delivered += one.given
        if given:
            self.pulls.turned([one.pull for one in all_targets], [one.pull for one in handing.in_turn])
        return given

    def _serve_pulls(self) -> None:
        consumer = self.consumer
        if self._plain and self.pulls and self._hand_out():
            if self.pulls:
                self.wake()
            return
        for _ in turn():
            if not self.pulls:
                return
            record = consumer.peek()
            if record is None:
                self._watch()
                for pull in [one for one in self.pulls if one.no_wait and (one.delivered or not one.expires_ns)]:
                    self._end(pull, *((408, "Request Timeout") if pull.delivered else (404, "No Messages")))
                return
            if self._held_back(record):
                return
            found = self.pulls.next(self.jetstream.now_ns(), self._unread, lambda: consumer.ack_pending)
            if found is None:
                self._watch()
                return
            receivers = self._receivers(found.reply)
            if not receivers:
                self.pulls.remove(found)
                continue
            if any(one.owner.is_full() for one in receivers):
                self._loop.call_later(0.01, self.wake)
                return
            if self._give(found, record, receivers):
                self.pulls.served(found)
        self.wake()

    def _unread(self) -> int:
        return self.consumer.pending + self.consumer.first_owed

    def _give(self, pull: Pull, record: Record, receivers: list[Subscription]) -> bool:
        headers, payload = message_of(record, self.jetstream.now_ns())
        subject = self.consumer.stream.subject(record.topic)
        if pull.has_limit:
            size = len(subject) + len(pull.reply) + len(headers) + len(payload)
            if size > pull.bytes_left:
                text = "Batch Completed" if pull.delivered else "Message Size Exceeds MaxBytes"
                self._end(pull, 409, text)
                return False
            pull.bytes_left -= size
        pull.delivered += 1
        if self.pulls.pin:
            headers = with_lines(headers, [("Nats-Pin-Id", self.pulls.pin)])
        self._deliver(record, subject, headers, payload, receivers)
        return True

    def _deliver(
        self, record: Record, subject: bytes, headers: bytes, payload: bytes, receivers: list[Subscription]
    ) -> None:
        one = self.consumer.take(record)
        reply = ack_subject(self.consumer, one)
        if self.consumer.config.get("headers_only"):
            headers, payload = with_lines(headers, [("Nats-Msg-Size", len(payload))]), b""
        if not self._pace.free:
            size = len(subject) + len(headers) + len(payload)
            self._pace.sent(record, size, self.jetstream.now_ns())
        for receiver in receivers:
            receiver.owner.deliver_live(receiver, subject, reply, headers, payload)

    def _receivers(self, reply: bytes) -> list[Subscription]:
        try:
            return self.jetstream.listening.live(topic_of_nats(reply), None)
        except InvalidName:
            return []

    # -- push --------------------------------------------------------------------------------------------------------

    @property
    def bound(self) -> bool:
        return bool(self.push) and bool(self._push_receivers())

    def _push_receivers(self) -> list[Subscription]:
        if not self.group:
            return self.jetstream.listening.live(self.push_topic, None)
        found = self.jetstream.listening.matching(self.push_topic)
        members = [one for one in found if one.queue == self.group]
        return [random.choice(members)] if members else []

    def _serve_push(self) -> None:
        for _ in turn():
            receivers = self._push_receivers()
            if not receivers:
                self.jetstream.await_interest(self)
                return
            self.touch()
            if self._flow_reply and self._flow_bytes > FLOW_WINDOW_BYTES:
                return
            record = self.consumer.peek()
            if record is None:
                self._watch()
                return
            if self._held_back(record):
                return
            if any(one.owner.is_full() for one in receivers):
                self._loop.call_later(0.01, self.wake)
                return
            receivers = [one for one in receivers if one.owner.may(Action.CONSUME, record.topic)]
            headers, payload = message_of(record, self.jetstream.now_ns())
            self._flow_bytes += len(headers) + len(payload) + len(record.topic)
            self._deliver(record, self.consumer.stream.subject(record.topic), headers, payload, receivers)
            self._beat()
            self._ask_flow()
        self.wake()

    def _ask_flow(self) -> None:
        """The client answers once it has handled what came before: never more than a window is on its way."""
        if (
            self.consumer.config.get("flow_control")
            and not self._flow_reply
            and self._flow_bytes > FLOW_WINDOW_BYTES // 2
        ):
            consumer = self.consumer
            token = random.getrandbits(32)
            self._flow_reply = f"$JS.FC.{consumer.stream.name}.{consumer.name}.{token:08x}".encode()
            self.jetstream.flows[self._flow_reply] = self
            for one in self._push_receivers():
                one.owner.deliver_live(one, self.push, self._flow_reply, status(100, "FlowControl Request"), b"")

    def on_flow(self) -> None:
        self.jetstream.flows.pop(self._flow_reply, None)
        self._flow_reply, self._flow_bytes = b"", 0
        self.wake()

    def _beat(self) -> None:
        """After a time without messages: a heartbeat."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
        every_ns = self.consumer.config.get("idle_heartbeat", 0)
        if every_ns and self.push and not self.consumer.deleted:
            self._heartbeat = self._loop.call_later(every_ns / NS_PER_S, self._on_beat)

    def _on_beat(self) -> None:
        lines = self._places()
        if self._flow_reply:
            lines.append(("Nats-Consumer-Stalled", self._flow_reply.decode()))
        for one in self._push_receivers():
            one.owner.deliver_live(one, self.push, b"", status(100, "Idle Heartbeat", lines), b"")
        self._beat()

    # -- its end -----------------------------------------------------------------------------------------------------

    def touch(self) -> None:
        """It is used: one with an inactive threshold lives on."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        threshold_ns = self.consumer.config.get("inactive_threshold", 0)
        if threshold_ns:
            self._idle = self._loop.call_later(threshold_ns / NS_PER_S, self._on_idle)

    def _on_idle(self) -> None:
        self._idle = None
        self._drop_gone()
        if self.consumer.deleted:
            return
        if self.pulls or self.bound:
            self.touch()
        else:
            self.jetstream.delete_idle(self.consumer)

    # -- pinned clients ----------------------------------------------------------------------------------------------

    def _on_wrong_pin(self, pull: Pull) -> None:
        self._end(pull, 423, "Nats-Wrong-Pin-Id")

    def _on_pinned(self, group: str) -> None:
        self.jetstream.advise_consumer(
            "consumer_group_pinned", "PINNED", self.consumer, group=group, pinned_id=self.pulls.pin
        )

    def _on_unpinned(self, group: str, reason: str) -> None:
        self.jetstream.advise_consumer("consumer_group_unpinned", "UNPINNED", self.consumer, group=group, reason=reason)
        self.wake()

    def on_dead(self, offsets: list[int]) -> None:
        self.jetstream.advise_dead(self.consumer, offsets)

    def on_deleted(self) -> None:
        for timer in (self._heartbeat, self._idle, self._later):
            if timer is not None:
                timer.cancel()
        self._heartbeat = self._idle = self._later = None
        self.pulls.close()
        self.jetstream.flows.pop(self._flow_reply, None)
        for pull in self.pulls:
            self._end(pull, 409, "Consumer Deleted")
        self.jetstream.deliveries.pop(self.consumer.id, None)
