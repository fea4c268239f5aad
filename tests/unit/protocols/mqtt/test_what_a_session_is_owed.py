from mainstem.broker.sessions.sessions import Subscription
from mainstem.model.origin import Origin
from mainstem.model.record import Record
from mainstem.protocols.mqtt.outgoing.outbound import ref_of
from mainstem.protocols.mqtt.session import MqttSession

CONNECTED = 100


def record(stamp: int, *, topic: bytes = b"a/b", qos: int = 1, origin: Origin = Origin.MQTT) -> object:
    return ref_of(Record(b"x", flags=qos, stamp=stamp, origin=origin, topic=topic))


def session(*subscriptions: Subscription, position: int = 50) -> MqttSession:
    made = MqttSession(CONNECTED)
    for subscription in subscriptions:
        made.subscribe(subscription)
    made.resume(position, [])
    return made


def test_nothing_below_its_position() -> None:
    mine = session(Subscription(b"a/#", 1))
    assert mine.choose(record(49)) is None  # type: ignore[arg-type]
    assert mine.choose(record(50)) is not None  # type: ignore[arg-type]


def test_each_subscription_counts_from_its_own_stamp() -> None:
    mine = session(Subscription(b"a/b", 1, start=70), Subscription(b"a/+", 2, start=90))
    assert mine.choose(record(69)) is None  # type: ignore[arg-type]
    early = mine.choose(record(70, qos=2))  # type: ignore[arg-type]
    late = mine.choose(record(90, qos=2))  # type: ignore[arg-type]
    assert early is not None and early.qos == 1
    assert late is not None and late.qos == 2


def test_qos_0_only_from_when_it_connected() -> None:
    mine = session(Subscription(b"a/#", 1), Subscription(b"b", 0))
    assert mine.choose(record(60, qos=0)) is None  # type: ignore[arg-type]
    assert mine.choose(record(60, topic=b"b")) is None  # type: ignore[arg-type]
    assert mine.choose(record(CONNECTED, qos=0)) is not None  # type: ignore[arg-type]


def test_records_of_kafka_are_kept_as_qos_1() -> None:
    mine = session(Subscription(b"a/#", 2))
    assert mine.choose(record(60, qos=0, origin=Origin.KAFKA)) is not None  # type: ignore[arg-type]


def test_what_was_in_flight_goes_again_and_what_was_received_does_not() -> None:
    mine = MqttSession(CONNECTED)
    mine.subscribe(Subscription(b"a/#", 2))
    assert mine.resume(50, [(7, 1, 20), (8, 2, 30), (9, 3, 40)]) == 20
    assert mine.redelivers(20)
    first = mine.choose(record(20))  # type: ignore[arg-type]
    second = mine.choose(record(30, qos=2))  # type: ignore[arg-type]
    assert first is not None and (first.packet_id, first.qos) == (7, 1)
    assert second is not None and (second.packet_id, second.qos) == (8, 2)
    assert mine.choose(record(40, qos=2)) is None  # type: ignore[arg-type]
    assert mine.choose(record(45)) is None  # type: ignore[arg-type]
    assert not mine.redelivers(41)
    assert mine.lost_flight() == []


def test_what_the_log_no_longer_has_is_told() -> None:
    mine = MqttSession(CONNECTED)
    mine.subscribe(Subscription(b"a/#", 1))
    mine.resume(50, [(7, 1, 20), (8, 1, 30)])
    mine.choose(record(30))  # type: ignore[arg-type]
    assert mine.redelivers(30) and not mine.redelivers(31)
    assert mine.lost_flight() == [(7, 1, 20)]


def test_what_is_in_flight_twice_is_sent_twice() -> None:
    mine = MqttSession(CONNECTED)
    mine.subscribe(Subscription(b"a/#", 1))
    mine.resume(50, [(7, 1, 20), (8, 1, 20)])
    first = mine.choose(record(20))  # type: ignore[arg-type]
    assert first is not None and first.packet_id == 7
    assert mine.lost_flight() == [(8, 1, 20)]
