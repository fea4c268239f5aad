from mainstem.protocols.mqtt.wire.properties import Property, Reader, encode_property
from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw


def test_in_properties_that_are_kept_to() -> None:
    with (
        Broker("mqtt.receive_max=7", "mqtt.topic_alias_max=5", "mqtt.session_expiry_max_ms=10s") as broker,
        Raw.connected(broker.mqtt_port, version=5, properties={Property.SESSION_EXPIRY: 1000}) as client,
    ):
        assert encode_property(Property.RECEIVE_MAXIMUM, 7) in client.connack
        assert encode_property(Property.TOPIC_ALIAS_MAXIMUM, 5) in client.connack
        assert encode_property(Property.SESSION_EXPIRY, 10) in client.connack


def test_a_method_of_authentication_that_is_not_offered_is_refused_clearly(port: int) -> None:
    from tests.protocol.mqtt.raw import connect_packet, unique

    with Raw(port, version=5) as client:
        properties = {Property.AUTHENTICATION_METHOD: b"GSSAPI"}
        client.send(connect_packet(unique("auth"), version=5, properties=properties))
        said = client.closed()
        assert said[0] == 0x20 and said[3] == 0x8C


def test_wildcards_shares_and_identifiers_are_not_denied(port: int) -> None:
    with Raw.connected(port, version=5) as client:
        reader = Reader(client.connack, 2)
        reader.varint()
        present = set()
        while not reader.done():
            identifier = reader.byte()
            present.add(identifier)
            reader.take({39: 4, 33: 2, 34: 2, 17: 4, 19: 2}[identifier])
        denials = {36, 37, 40, 41, 42}
        assert not present & denials
