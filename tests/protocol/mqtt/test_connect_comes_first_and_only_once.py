from tests.protocol.mqtt.raw import Raw, connect_packet, unique


def test_a_first_packet_that_is_not_connect_closes_without_an_answer(port: int) -> None:
    with Raw(port) as client:
        client.send(b"\xc0\x00")
        assert client.closed() == b""


def test_a_second_connect_is_a_protocol_error(port: int) -> None:
    with Raw.connected(port, version=5) as client:
        client.send(connect_packet(unique("twice"), version=5))
        said = client.closed()
        assert said[0] == 0xE0 and said[2] == 0x82


def test_a_second_connect_closes_an_older_client_silently(port: int) -> None:
    with Raw.connected(port) as client:
        client.send(connect_packet(unique("twice")))
        assert client.closed() == b""
