"""SUBSCRIBE and UNSUBSCRIBE of one client: filters into deliveries, retained messages after them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mainstem.broker.rights.access import Action
from mainstem.broker.sessions.sessions import Session, Subscription
from mainstem.log.gather import Ticket
from mainstem.model.errors import InvalidName, MainstemError
from mainstem.protocols.login import tell_refused
from mainstem.protocols.mqtt.outgoing.retained_delivery import RetainedDelivery
from mainstem.protocols.mqtt.session import MqttSession, grant_of
from mainstem.protocols.mqtt.subscribing.filters import Asked, Kind, parse_filter
from mainstem.protocols.mqtt.subscribing.members import Member
from mainstem.protocols.mqtt.subscribing.subscription_kinds import BrokerSubscription, open_broker_subscription
from mainstem.protocols.mqtt.wire.packets import Filter, Subscribe, Unsubscribe, encode_suback, encode_unsuback
from mainstem.protocols.mqtt.wire.reasons import Reason, Violation, reason_of

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection

logger = logging.getLogger("mainstem.mqtt")


class Subscriptions:
    """All subscriptions of a connected client. Those of a persistent session are journaled before they are answered."""

    __slots__ = ("_broker_subscriptions", "_connection", "_retained", "_saved", "_session", "by_filter")

    def __init__(self, connection: MqttConnection, session: MqttSession, saved: Session | None) -> None:
        self._connection = connection
        self._session = session
        self._saved = saved
        self.by_filter: dict[bytes, Subscription] = saved.subscriptions if saved is not None else {}
        self._broker_subscriptions: dict[bytes, BrokerSubscription] | None = None
        self._retained: RetainedDelivery | None = None

    # -- SUBSCRIBE

    def subscribe(self, event: Subscribe) -> None:
        reasons: list[int] = []
        wanted: list[tuple[bytes, Subscription]] = []  # retained messages, after SUBACK
        if self._connection.inbound.messages:  # what it published before is not the subscription's
            self._connection.service.broker.ticker.write_now()
        before = self._connection.service.broker.stamps.next  # later ones come as what they are: live
        why = ""
        for one in event.filters:
            try:
                reasons.append(self._subscribe(one, event, wanted))
            except MainstemError as error:
                if isinstance(error, Violation):
                    raise
                reason = Reason.TOPIC_FILTER_INVALID if isinstance(error, InvalidName) else reason_of(error)
                reasons.append(reason)
                why = error.message
        connection = self._connection
        for one, answered in zip(event.filters, reasons, strict=True):
            if answered == Reason.NOT_AUTHORIZED:
                tell_refused(connection, connection.service.broker.audit, "consume", one.topic, why)
        suback = connection.explained(
            lambda words: encode_suback(connection.version, event.packet_id, reasons, words),
            why if connection.problem_information else "",
        )

        def answer() -> None:
            self._answer(suback, wanted, before)

        if self._saved is not None and any(reason < 0x80 for reason in reasons):
            self._when_declared(event, lambda: self._when_saved(answer))
        else:
            self._when_declared(event, answer)

    def _when_declared(self, event: Subscribe, call: Callable[[], None]) -> None:
        """Whoever has the SUBACK of a shared subscription counts on its queue: that outlives a power cut before."""
        for one in event.filters:
            opened = self._broker_subscriptions.get(one.topic) if self._broker_subscriptions else None
            saving = opened.queue.saving if isinstance(opened, Member) else None
            if saving is not None and not saving.done():
                waiter = _Declared(self._connection, lambda: self._when_declared(event, call))
                saving.add_done_callback(waiter.on_written)
                return
        call()

    def _answer(self, suback: bytes, wanted: list[tuple[bytes, Subscription]], before: int) -> None:
        self._connection.outbound.write(suback)
        for topic_filter, subscription in wanted:
            self._deliver_retained(topic_filter, subscription, 0, before)

    def _when_saved(self, call: Callable[[], None]) -> None:
        assert self._saved is not None
        self._connection.service.sessions.save(self._saved).wait(_Saved(self._connection, call))

    def _subscribe(self, one: Filter, event: Subscribe, wanted: list[tuple[bytes, Subscription]]) -> int:
        connection, limits = self._connection, self._connection.service.limits
        asked = parse_filter(one.topic, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max)
        if one.topic not in self.by_filter and len(self.by_filter) >= limits.subscriptions_max:
            return Reason.QUOTA_EXCEEDED
        access = connection.service.broker.access
        assert connection.principal is not None
        if asked.filter and not access.allows_filter(connection.principal, Action.CONSUME, asked.filter):
            return Reason.NOT_AUTHORIZED
        properties = dict(event.user_properties)
        subscription = Subscription(
            one.topic,
            one.qos,
            one.no_local,
            one.retain_as_published,
            event.subscription_id,
            meta=properties.get(b"ms-meta") == b"1",
        )
        known = self.by_filter.get(one.topic)
        retained = one.retain_handling == 0 or (one.retain_handling == 1 and known is None)
        if asked.kind is not Kind.PLAIN:
            return self._subscribe_special(asked, subscription, properties, retained=retained)
        self._subscribe_plain(subscription, known)
        if retained:
            wanted.append((asked.filter, subscription))
        return one.qos

    def _subscribe_plain(self, subscription: Subscription, known: Subscription | None) -> None:
        connection = self._connection
        namespace, service, outbound = connection.namespace, connection.service, connection.outbound
        assert namespace is not None
        if known is not None and known.no_local:
            service.keeper.unwant_client(known.filter, self._owner)
        if subscription.no_local:
            service.keeper.want_client(subscription.filter, self._owner)
        subscription.start = known.start if known is not None else service.broker.stamps.next
        interest = self._session.subscribe(subscription)
        namespace.subscribe(interest.filter, outbound, interest.grant)
        self.by_filter[subscription.filter] = subscription
        if not outbound.live and connection.state == "on":
            service.resume(outbound, self._session.filters, changed=True)

    @property
    def _owner(self) -> object:
        """Who wants publishers named: the session if it outlives the connection."""
        return self._saved if self._saved is not None else self

    def _subscribe_special(
        self, asked: Asked, subscription: Subscription, properties: dict[bytes, bytes], *, retained: bool = False
    ) -> int:
        old = self._broker_subscriptions.pop(subscription.filter, None) if self._broker_subscriptions else None
        if old is not None:
            old.close(ended=False)
        opened = open_broker_subscription(self._connection, asked, subscription, properties, retained=retained)
        if self._broker_subscriptions is None:
            self._broker_subscriptions = {}
        self._broker_subscriptions[subscription.filter] = opened
        self.by_filter[subscription.filter] = subscription
        return subscription.qos

    def restore(self) -> None:
        """A persistent session goes on: its subscriptions count again."""
        for subscription in list(self.by_filter.values()):
            limits = self._connection.service.limits
            asked = parse_filter(
                subscription.filter, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max
            )
            if asked.kind is Kind.PLAIN:
                interest = self._session.subscribe(subscription)
                namespace = self._connection.namespace
                assert namespace is not None
                namespace.subscribe(interest.filter, self._connection.outbound, interest.grant)
                self._restore_retained(asked.filter, subscription)
            else:
                self._restore_special(asked, subscription)

    def _restore_retained(self, topic_filter: bytes, subscription: Subscription) -> None:
        first, before = subscription.retained_from, subscription.retained_before
        subscription.retained_from = subscription.retained_before = 0
        if before:
            self._deliver_retained(topic_filter, subscription, first, before)

    def _restore_special(self, asked: Asked, subscription: Subscription) -> None:
        """What it names may be gone by now, or no longer its to read: that ends this subscription, not the session."""
        try:
            self._subscribe_special(asked, subscription, {})
        except MainstemError as error:
            del self.by_filter[subscription.filter]
            logger.warning("%s: its subscription ended: %s", self._connection.label(), error.message)

    # -- UNSUBSCRIBE

    def unsubscribe(self, event: Unsubscribe) -> None:
        reasons = [self._unsubscribe(topic_filter) for topic_filter in event.topics]
        unsuback = encode_unsuback(self._connection.version, event.packet_id, reasons)
        if self._saved is not None and Reason.SUCCESS in reasons:
            self._when_saved(lambda: self._connection.outbound.write(unsuback))
        else:
            self._connection.outbound.write(unsuback)

    def _unsubscribe(self, topic_filter: bytes) -> int:
        subscription = self.by_filter.pop(topic_filter, None)
        if subscription is None:
            return Reason.NO_SUBSCRIPTION_EXISTED
        opened = self._broker_subscriptions.pop(topic_filter, None) if self._broker_subscriptions else None
        if opened is not None:
            opened.close(ended=True)
            return Reason.SUCCESS
        connection = self._connection
        if subscription.no_local:
            connection.service.keeper.unwant_client(topic_filter, self._owner)
        canonical = parse_filter(topic_filter, bytes_max=65_535, levels_max=65_535).filter
        self._session.unsubscribe(canonical)
        assert connection.namespace is not None
        connection.namespace.unsubscribe(canonical, connection.outbound)
        if not connection.outbound.live and connection.state == "on":
            connection.service.resume(connection.outbound, self._session.filters, changed=True)
        return Reason.SUCCESS

    # -- deliveries that no route brings

    def _deliver_retained(self, topic_filter: bytes, subscription: Subscription, first: int, before: int) -> None:
        connection = self._connection
        assert connection.namespace is not None
        found = connection.service.retained(connection.namespace).find(topic_filter)
        found = [(topic, pointer) for topic, pointer in found if first <= pointer.stamp < before]
        if found:
            if self._retained is None:
                self._retained = RetainedDelivery(connection)
            self._retained.add(found, grant_of(subscription), subscription.filter)

    def room(self) -> None:
        """The client can take more."""
        if self._retained is not None and self._retained.go_on():
            self._retained = None
        if self._broker_subscriptions is not None:
            for opened in list(self._broker_subscriptions.values()):
                opened.room()

    def close(self) -> None:
        """The client is gone; whatever of this belongs to its session stays there."""
        connection = self._connection
        assert connection.namespace is not None
        for topic_filter in self._session.filters:
            connection.namespace.unsubscribe(topic_filter, connection.outbound)
        if self._retained is not None:
            self._keep_retained(self._retained)
        if self._saved is None:
            for subscription in self.by_filter.values():
                if subscription.no_local:
                    connection.service.keeper.unwant_client(subscription.filter, self)
        for opened in (self._broker_subscriptions or {}).values():
            opened.close(ended=self._saved is None or not connection.expiry_seconds)
        self._broker_subscriptions = self._retained = None

    def _keep_retained(self, retained: RetainedDelivery) -> None:
        """What was not sent of QoS 1 and 2 comes when the client does; QoS 0 is not kept."""
        for topic_filter, (first, before) in retained.rest().items():
            subscription = self.by_filter.get(topic_filter)
            if subscription is not None and subscription.qos:
                subscription.retained_from, subscription.retained_before = first, before


class _Declared:
    """Goes on once a queue's declaration is committed."""

    __slots__ = ("_call", "_connection")

    def __init__(self, connection: MqttConnection, call: Callable[[], None]) -> None:
        self._connection = connection
        self._call = call

    def on_written(self, written: Future[None]) -> None:
        """In the store's thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._connection.service.broker.ticker.loop.call_soon_threadsafe(self._go_on, written)

    def _go_on(self, written: Future[None]) -> None:
        error = written.exception()
        if isinstance(error, Exception):
            self._connection.fail(error)
        elif not self._connection.closing:
            self._call()


class _Saved:
    """Answers once the session's change is durable."""

    __slots__ = ("_call", "_connection")

    def __init__(self, connection: MqttConnection, call: Callable[[], None]) -> None:
        self._connection = connection
        self._call = call

    def released(self, ticket: Ticket) -> Any:
        if ticket.error is not None:
            self._connection.fail(ticket.error)
        elif not self._connection.closing:
            self._call()
