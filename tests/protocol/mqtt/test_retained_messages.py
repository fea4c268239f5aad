from tests.protocol.mqtt.raw import Raw, unique

RETAIN_AS_PUBLISHED, ONLY_IF_NEW, NEVER = 8, 0x10, 0x20


def test_the_last_one_greets_a_new_subscriber(port: int) -> None:
    topic = unique("retained")
    with Raw.connected(port) as publisher, Raw.connected(port) as subscriber:
        publisher.publish(topic, b"old", qos=1, retain=True)
        publisher.publish(topic, b"new", qos=1, retain=True)
        publisher.publish(topic, b"not retained", qos=1)
        subscriber.subscribe((topic, 1))
        message = subscriber.message()
        assert (message.payload, message.retain, message.qos) == (b"new", True, 1)
        subscriber.nothing_more()


def test_wildcards_get_all_that_match(port: int) -> None:
    topic = unique("retained")
    with Raw.connected(port) as publisher, Raw.connected(port) as subscriber:
        for n in range(300):
            publisher.publish(f"{topic}/{n}/x", b"%d" % n, qos=1, retain=True)
        publisher.publish(f"{topic}/1/y", b"no", qos=1, retain=True)
        subscriber.subscribe((f"{topic}/+/x", 0))
        assert {int(subscriber.message().payload) for _ in range(300)} == set(range(300))
        subscriber.nothing_more()


def test_an_empty_payload_clears_it_and_is_delivered(port: int) -> None:
    topic = unique("retained")
    with Raw.connected(port) as publisher, Raw.connected(port) as watcher, Raw.connected(port) as late:
        publisher.publish(topic, b"x", qos=1, retain=True)
        watcher.subscribe((topic, 0))
        assert watcher.message().retain
        publisher.publish(topic, b"", qos=1, retain=True)
        message = watcher.message()
        assert (message.payload, message.retain) == (b"", False)
        late.subscribe((topic, 0))
        late.nothing_more()


def test_live_messages_lose_the_flag_unless_it_was_asked_for(port: int) -> None:
    topic = unique("retained")
    with (
        Raw.connected(port) as publisher,
        Raw.connected(port, version=5) as plain,
        Raw.connected(port, version=5) as kept,
    ):
        plain.subscribe((topic, 0))
        kept.subscribe((topic, RETAIN_AS_PUBLISHED))
        publisher.publish(topic, b"x", retain=True)
        assert not plain.message().retain
        assert kept.message().retain
        publisher.publish(topic, b"y")
        assert not kept.message().retain


def test_subscribing_again_brings_it_again_as_retain_handling_says(port: int) -> None:
    topic = unique("retained")
    with Raw.connected(port) as publisher, Raw.connected(port, version=5) as subscriber:
        publisher.publish(topic, b"x", qos=1, retain=True)
        subscriber.subscribe((topic, NEVER))
        subscriber.nothing_more()
        subscriber.subscribe((topic, ONLY_IF_NEW))
        subscriber.nothing_more()
        subscriber.subscribe((topic, 0))
        assert subscriber.message().retain
    with Raw.connected(port, version=5) as fresh:
        fresh.subscribe((topic, ONLY_IF_NEW))
        assert fresh.message().retain


def test_a_shared_subscription_gets_none(port: int) -> None:
    topic = unique("retained")
    with Raw.connected(port) as publisher, Raw.connected(port, version=5) as subscriber:
        publisher.publish(topic, b"x", qos=1, retain=True)
        subscriber.subscribe((f"$share/g/{topic}", 1))
        subscriber.nothing_more()


def test_dollar_topics_stay_out_of_wildcards(port: int) -> None:
    topic = unique("$retained")
    with Raw.connected(port) as publisher, Raw.connected(port) as subscriber:
        publisher.publish(f"{topic}/a", b"x", qos=1, retain=True)
        subscriber.subscribe((f"{topic}/#", 0))
        assert subscriber.message().payload == b"x"
        subscriber.subscribe(("+/a", 0))
        subscriber.nothing_more()
