import pytest

from tests.protocol.mqtt.raw import Raw, unique


@pytest.mark.parametrize(
    ("topic_filter", "topic", "meant"),
    [
        ("/#", "", True),
        ("/#", "/a/b", True),
        ("/+", "/a", True),
        ("/+", "/", True),
        ("/+", "", False),
        ("//b", "//b", True),
        ("/+/b", "//b", True),
        ("/a/", "/a/", True),
        ("/a/", "/a", False),
        ("/*", "/x", False),
        ("/*", "/*", True),
        ("/>", "/x", False),
        ("/ü/+", "/ü/ß", True),
    ],
)
def test_empty_levels_count_and_only_plus_and_hash_are_wildcards(
    port: int, topic_filter: str, topic: str, meant: bool
) -> None:
    root = unique("levels")
    with Raw.connected(port) as client:
        client.subscribe((root + topic_filter, 0))
        client.publish(root + topic, b"x")
        if meant:
            assert client.message().topic == root + topic
        client.nothing_more()


def test_dollar_topics_match_no_leading_wildcard(port: int) -> None:
    level = unique("dollar")
    with Raw.connected(port, version=5) as client:
        client.subscribe(("#", 0x20), (f"+/{level}", 0x20))  # without other tests' retained messages
        client.publish(f"$other/{level}", b"hidden")
        client.nothing_more()
        client.subscribe((f"$other/{level}", 0))
        client.publish(f"$other/{level}", b"named")
        assert client.message().payload == b"named"


@pytest.mark.parametrize("topic", ["$SYS/broker/version", "$share/g/a", "$queue/q", "$stream/a"])
def test_nobody_publishes_to_the_brokers_own_topics(port: int, topic: str) -> None:
    from tests.protocol.mqtt.raw import publish_packet

    with Raw.connected(port, version=5) as client:
        client.send(publish_packet(topic, b"x", qos=1, packet_id=5, version=5))
        first, body = client.packet()  # with the reason in words behind the code
        assert (first, body[:3]) == (0x40, b"\0\x05\x90")
        client.ping()


def test_a_topic_longer_or_deeper_than_allowed_is_refused(port: int) -> None:
    from tests.protocol.mqtt.raw import publish_packet

    with Raw.connected(port, version=5) as client:
        for topic in ("x" * 5000, "/" * 600):
            client.send(publish_packet(topic, b"x", qos=1, packet_id=5, version=5))
            first, body = client.packet()  # with the reason in words behind the code
            assert (first, body[:3]) == (0x40, b"\0\x05\x90")
        assert client.subscribe(("x" * 5000, 0)) == [0x8F]
