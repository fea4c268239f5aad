from tests.protocol.mqtt.raw import Raw, connect_packet


def test_is_taken_from_mqtt_3_1_1_with_a_clean_session(port: int) -> None:
    with Raw(port) as client:
        client.send(connect_packet(""))
        client.expect(b"\x20\x02\x00\x00")


def test_is_refused_without_a_clean_session(port: int) -> None:
    with Raw(port) as client:
        client.send(connect_packet("", clean=False))
        assert client.closed() == b"\x20\x02\x00\x02"


def test_is_replaced_by_an_assigned_one_in_mqtt_5(port: int) -> None:
    with Raw(port, version=5) as client:
        client.send(connect_packet("", version=5))
        first, body = client.packet()
        assert (first, body[1]) == (0x20, 0)
        assert b"\x12\x00\x17ms-" in body  # Assigned Client Identifier


def test_is_refused_by_mqtt_3_1_which_asks_for_one(port: int) -> None:
    with Raw(port, version=3) as client:
        client.send(connect_packet("", version=3))
        assert client.closed() == b"\x20\x02\x00\x02"
