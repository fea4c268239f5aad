import asyncio

from mainstem.broker.sessions.sessions import Session, Subscription
from mainstem.log.retention import NO_STAMP
from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, publish_packet


def test_its_hold_ends_beyond_the_limit_and_is_counted() -> None:
    with Broker() as broker:
        with Raw.connected(broker.mqtt_port, "absent", clean=False) as client:
            client.subscribe(("held/#", 1), ("zero", 0))
            client.disconnect()
        app = broker.app
        assert app is not None
        keeper = app.broker.session_keeper
        stem = app.broker.journal.stem
        with Raw.connected(broker.mqtt_port) as publisher:
            for n in range(50):
                publisher.send(publish_packet("held/x", b"%d" % n, qos=1, packet_id=n + 1))
            publisher.acks(50)
        session = next(iter(keeper.sessions))
        assert keeper.session_holds(stem).from_stamp == session.position
        keeper.held.messages_max = 49
        assert keeper.session_holds(stem).from_stamp == NO_STAMP
        assert keeper.sessions.holds_ended_total == 1


def test_it_holds_no_topic_that_it_is_not_subscribed_to() -> None:
    with Broker("policies.held/own.layout=dedicated", "policies.other.layout=dedicated") as broker:
        with Raw.connected(broker.mqtt_port, "absent", clean=False) as client:
            client.subscribe(("held/#", 1))
            client.disconnect()
        with Raw.connected(broker.mqtt_port) as publisher:
            publisher.publish("held/own", b"1", qos=1)
            publisher.publish("other", b"2", qos=1)
        app = broker.app
        assert app is not None
        keeper, topics = app.broker.session_keeper, app.broker.namespace("/").topics
        session = next(iter(keeper.sessions))
        assert keeper.session_holds(topics[b"held/own"].partitions[0].log).from_stamp == session.position
        assert keeper.session_holds(topics[b"other"].partitions[0].log).from_stamp == NO_STAMP


def test_a_retained_record_is_held_by_its_offset() -> None:
    with Broker() as broker, Raw.connected(broker.mqtt_port) as publisher:
        publisher.publish("first", b"x", qos=1)
        publisher.publish("kept", b"y", qos=1, retain=True)
        app = broker.app
        assert app is not None
        keeper = app.broker.session_keeper
        pointer = keeper.retained(app.broker.namespace("/")).current(b"kept")
        assert list(keeper.retained_holds(app.broker.journal.stem).offsets) == [pointer.offset]


def test_a_round_of_maintenance_plans_with_what_each_session_would_say() -> None:
    dedicated = [f"policies.own/{number}.layout=dedicated" for number in range(6)]
    with Broker(*dedicated) as broker:
        app = broker.app
        assert app is not None
        core = app.broker
        with Raw.connected(broker.mqtt_port) as publisher:
            for number in range(6):
                with Raw.connected(broker.mqtt_port, f"absent-{number}", clean=False) as client:
                    client.subscribe((f"own/{number // 2}", 1), ("own/5", 0), ("+/4", number % 2))
                    client.disconnect()
                for topic in range(6):
                    publisher.publish(f"own/{topic}", b"x", qos=1)
        namespace, keeper = core.namespace("/"), core.session_keeper
        logs = [core.journal.stem, *(topic.partitions[0].log for topic in namespace.topics.values())]

        async def compare() -> tuple[list[int], list[int]]:
            planned, late = list[int](), Session(b"/\0late", position=1)
            async with keeper.planned_holds():
                for log in logs:
                    core.maintenance.planning = namespace
                    planned.append(keeper.session_holds(log).from_stamp)
                    core.maintenance.planning = None
                asked = [keeper.session_holds(log).from_stamp for log in logs]
                late.subscriptions[b"own/5"] = Subscription(b"own/5", 1)
                keeper.sessions.save(late)  # it comes while a round runs
                core.maintenance.planning = namespace
                assert keeper.session_holds(namespace.topics[b"own/5"].partitions[0].log).from_stamp == 1
                core.maintenance.planning = None
            return planned, asked

        planned, asked = asyncio.run_coroutine_threadsafe(compare(), broker.loop).result(30)
        assert planned == asked
        assert len(set(planned)) > 3  # sessions differ, and so do the logs
