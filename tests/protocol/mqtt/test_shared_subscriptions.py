from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Raw, ack_packet, unique


def test_each_message_goes_to_one_member(port: int) -> None:
    topic = unique("shared")
    with Raw.connected(port, version=5) as a, Raw.connected(port) as b, Raw.connected(port) as publisher:
        for member in (a, b):
            assert member.subscribe((f"$share/g/{topic}/#", 1)) == [1]
        for n in range(100):
            publisher.publish(f"{topic}/{n}", b"%d" % n, qos=1)
        got_a = [int(a.message().payload) for _ in range(50)]
        got_b = [int(b.message().payload) for _ in range(50)]
        assert sorted(got_a + got_b) == list(range(100))
        a.nothing_more()
        b.nothing_more()


def test_groups_and_plain_subscribers_are_independent(port: int) -> None:
    topic = unique("shared")
    with (
        Raw.connected(port) as one,
        Raw.connected(port) as other,
        Raw.connected(port) as plain,
        Raw.connected(port) as p,
    ):
        one.subscribe((f"$share/g1/{topic}", 1))
        other.subscribe((f"$share/g2/{topic}", 0))
        plain.subscribe((topic, 1))
        p.publish(topic, b"x", qos=1)
        assert [c.message().payload for c in (one, other, plain)] == [b"x"] * 3


def test_what_a_lost_member_did_not_acknowledge_goes_to_another(port: int) -> None:
    topic = unique("shared")
    with Raw.connected(port) as stays, Raw.connected(port) as publisher:
        with Raw.connected(port) as leaves:
            leaves.subscribe((f"$share/g/{topic}", 1))
            publisher.publish(topic, b"unsettled", qos=1)
            assert leaves.message(ack=False).payload == b"unsettled"
            stays.subscribe((f"$share/g/{topic}", 1))
            stays.nothing_more()
        assert stays.message().payload == b"unsettled"


def test_a_member_that_is_full_is_passed_over(port: int) -> None:
    topic = unique("shared")
    with (
        Raw.connected(port, version=5, properties={Property.RECEIVE_MAXIMUM: 1}) as full,
        Raw.connected(port) as free,
        Raw.connected(port) as publisher,
    ):
        full.subscribe((f"$share/g/{topic}", 1))
        free.subscribe((f"$share/g/{topic}", 1))
        for n in range(10):
            publisher.publish(topic, b"%d" % n, qos=1)
        held = full.message(ack=False)
        others = [free.message().payload for _ in range(9)]
        assert sorted([held.payload, *others]) == [b"%d" % n for n in range(10)]
        full.nothing_more()


def test_it_begins_with_its_first_subscription_and_ends_with_its_last_session(port: int) -> None:
    topic = unique("shared")
    with Raw.connected(port) as publisher:
        publisher.publish(topic, b"before", qos=1)
        with Raw.connected(port) as member:
            member.subscribe((f"$share/g/{topic}", 1))
            member.nothing_more()
            member.disconnect()
        publisher.publish(topic, b"between", qos=1)
        with Raw.connected(port) as member:
            member.subscribe((f"$share/g/{topic}", 1))
            member.nothing_more()


def test_a_persistent_session_keeps_the_group_while_it_is_away(port: int) -> None:
    topic, client_id = unique("shared"), unique("member")
    with Raw.connected(port) as publisher:
        with Raw.connected(port, client_id, clean=False) as member:
            member.subscribe((f"$share/g/{topic}", 1))
            member.disconnect()
        publisher.publish(topic, b"missed", qos=1)
        with Raw.connected(port, client_id, clean=False) as member:
            assert member.message().payload == b"missed"


def test_qos_2_is_granted_as_qos_1(port: int) -> None:
    topic = unique("shared")
    with Raw.connected(port) as member, Raw.connected(port) as publisher:
        assert member.subscribe((f"$share/g/{topic}", 2)) == [1]
        publisher.publish(topic, b"x", qos=2)
        message = member.message(ack=False)
        assert message.qos == 1
        member.send(ack_packet(4, message.packet_id))
        publisher.publish(topic, b"qos 0")
        assert member.message().qos == 0
        member.nothing_more()


def test_a_message_refused_by_one_member_is_sent_to_no_other(port: int) -> None:
    topic = unique("shared")
    with Raw.connected(port, version=5) as refuses, Raw.connected(port) as publisher:
        refuses.subscribe((f"$share/g/{topic}", 1))
        publisher.publish(topic, b"refused", qos=1)
        refused = refuses.message(ack=False)
        with Raw.connected(port) as other:
            other.subscribe((f"$share/g/{topic}", 1))
            refuses.send(b"\x40\x03" + refused.packet_id.to_bytes(2, "big") + b"\x80")
            refuses.nothing_more()
            other.nothing_more()
