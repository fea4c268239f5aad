import time

from mainstem.protocols.mqtt.wire.properties import Property, encode_property
from tests.protocol.mqtt.raw import Raw, connect_packet, unique


def test_when_the_connection_breaks(port: int) -> None:
    topic = unique("will")
    with Raw.connected(port) as watcher:
        watcher.subscribe((topic, 1))
        with Raw.connected(port, will=(topic, b"lost", 1, False)):
            pass
        message = watcher.message()
        assert (message.payload, message.qos, message.retain) == (b"lost", 1, False)


def test_not_when_the_client_says_goodbye(port: int) -> None:
    topic = unique("will")
    with Raw.connected(port) as watcher:
        watcher.subscribe((topic, 1))
        with Raw.connected(port, will=(topic, b"lost", 1, False)) as client:
            client.disconnect()
        watcher.nothing_more()


def test_but_when_its_goodbye_asks_for_it(port: int) -> None:
    topic = unique("will")
    with Raw.connected(port) as watcher:
        watcher.subscribe((topic, 0))
        with Raw.connected(port, version=5, will=(topic, b"asked", 0, False)) as client:
            client.send(b"\xe0\x01\x04")
            assert watcher.message().payload == b"asked"


def test_a_retained_will_is_retained(port: int) -> None:
    topic = unique("will")
    with Raw.connected(port) as watcher:
        watcher.subscribe((topic, 0))
        with Raw.connected(port, will=(topic, b"kept", 1, True)):
            pass
        assert not watcher.message().retain
    with Raw.connected(port) as late:
        late.subscribe((topic, 0))
        message = late.message()
        assert (message.payload, message.retain) == (b"kept", True)


def test_its_properties_are_the_messages(port: int) -> None:
    topic = unique("will")
    properties = {Property.CONTENT_TYPE: b"text/plain", Property.USER_PROPERTY: [(b"a", b"1"), (b"a", b"2")]}
    with Raw.connected(port, version=5) as watcher:
        watcher.subscribe((topic, 0))
        with Raw.connected(port, version=5, will=(topic, b"x", 0, False), will_properties=properties):
            pass
        message = watcher.message()
        assert message.properties == b"".join(encode_property(k, v) for k, v in properties.items())


def test_a_delayed_will_is_not_sent_if_the_session_goes_on_in_time(port: int) -> None:
    client_id, topic = unique("delayed"), unique("will")
    options: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 100}}
    with Raw.connected(port) as watcher:
        watcher.subscribe((topic, 0))
        with Raw.connected(
            port, client_id, will=(topic, b"late", 0, False), will_properties={Property.WILL_DELAY: 1}, **options
        ):
            pass
        with Raw.connected(port, client_id, **options):
            time.sleep(1.3)  # the will would have been due
            watcher.nothing_more()


def test_a_delayed_will_is_sent_when_its_session_ends_before_the_delay(port: int) -> None:
    client_id, topic = unique("delayed"), unique("will")
    with Raw.connected(port) as watcher:
        watcher.subscribe((topic, 0))
        started = time.monotonic()
        with Raw.connected(
            port,
            client_id,
            version=5,
            will=(topic, b"early", 0, False),
            will_properties={Property.WILL_DELAY: 60},
            properties={Property.SESSION_EXPIRY: 1},
        ):
            pass
        assert watcher.message().payload == b"early"
        assert time.monotonic() - started < 30


def test_a_clean_start_ends_the_session_and_so_sends_the_will(port: int) -> None:
    client_id, topic = unique("delayed"), unique("will")
    options: dict[str, object] = {"version": 5, "properties": {Property.SESSION_EXPIRY: 100}}
    with Raw.connected(port) as watcher:
        watcher.subscribe((topic, 0))
        with Raw.connected(
            port, client_id, will=(topic, b"ended", 0, False), will_properties={Property.WILL_DELAY: 60}, **options
        ):
            pass
        with Raw.connected(port, client_id, **options):
            assert watcher.message().payload == b"ended"


def test_a_will_that_nobody_may_publish_is_refused_with_its_connect(port: int) -> None:
    for topic in ("$SYS/broker/clients/total", "$delayed/1/x", "$share/g/x"):
        with Raw(port) as client:
            client.send(connect_packet("willing", will=(topic, b"x", 0, False)))
            assert client.closed() == b"\x20\x02\x00\x05"
        with Raw(port, version=5) as client:
            client.send(connect_packet("willing", version=5, will=(topic, b"x", 0, False)))
            assert client.packet()[1][1] == 0x87
