"""MQTT 5's enhanced authentication, by raw packets: SCRAM and tokens before CONNACK, and again while connected."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mainstem.protocols.mqtt.wire.packets import encode_auth, encode_packet
from mainstem.protocols.mqtt.wire.properties import IN_AUTH, Property, Reader, decode_properties
from mainstem.testing import Broker
from tests.protocol.mqtt.raw import Raw, connect_packet, publish_packet, unique
from tests.security.issuer import AUDIENCE, Issuer
from tests.users import ANN, add_users, allow

METHOD, DATA = Property.AUTHENTICATION_METHOD, Property.AUTHENTICATION_DATA
SUCCESS, CONTINUE, AGAIN = 0x00, 0x18, 0x19
PROTOCOL_ERROR, BAD_CREDENTIALS, NOT_AUTHORIZED, BAD_METHOD = 0x82, 0x86, 0x87, 0x8C
RULES = [{"actions": ["publish", "create"], "filter": "of/%u/#"}]
Told = dict[int, Any]


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def broker(issuer: Issuer) -> Iterator[Broker]:
    with (
        issuer.served() as address,
        Broker(f"jwt.keys={address}", f"jwt.audience={AUDIENCE}", "jwt.leeway_ms=0") as one,
    ):
        add_users(one)
        allow(one, "of/ann/#", "publish", "create")
        yield one


class Client(Raw):
    """One that has sent CONNECT and waits for what the broker says."""

    def __init__(self, broker: Broker, method: str, data: bytes, **options: Any) -> None:
        super().__init__(broker.mqtt_port, version=5)
        self.method = method
        properties = {METHOD: method.encode(), DATA: data}
        self.send(connect_packet(unique("auth"), version=5, properties=properties, **options))

    def say(self, reason: int, data: bytes, method: str | None = None) -> None:
        self.send(encode_auth(reason, {METHOD: (method or self.method).encode(), DATA: data}))

    def heard(self) -> tuple[str, int, Told]:
        """(CONNACK, AUTH or DISCONNECT; reason; properties)."""
        first, body = self.packet()
        if first == 0x20:
            return "CONNACK", body[1], decode_properties(Reader(body[2:]), frozenset(Property))
        if first == 0xF0:
            return "AUTH", body[0] if body else 0, decode_properties(Reader(body[1:]), IN_AUTH) if body[1:] else {}
        return {0xE0: "DISCONNECT"}.get(first, hex(first)), body[0], {}

    def may_publish(self, topic: str) -> bool:
        self.send(publish_packet(topic, b"x", qos=1, packet_id=9, version=5))
        first, body = self.packet()
        assert first == 0x40
        return len(body) == 2 or body[2] < 0x80


class Scram:
    """RFC 5802, the client's half."""

    def __init__(self, user: str, password: str, hash_name: str) -> None:
        self._user, self._password, self._hash = user, password.encode(), hash_name
        self._bare = f"n={user},r=clientnonce"

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, base64.b64decode(fields["s"]), int(fields["i"]))
        without_proof = f"c=biws,r={fields['r']}"
        self._signed = f"{self._bare},{challenge.decode()},{without_proof}".encode()
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        signature = hmac.digest(hashlib.new(self._hash, client_key).digest(), self._signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), self._signed, self._hash)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def trusts(self, answer: bytes) -> bool:
        return answer == b"v=" + base64.b64encode(self._server)


def bearer(token: str, name: str = "") -> bytes:
    return f"n,a={name},\x01auth=Bearer {token}\x01\x01".encode()


@pytest.mark.parametrize(("method", "hash_name"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_a_password_is_proved_without_being_sent_and_so_is_the_broker(
    broker: Broker, method: str, hash_name: str
) -> None:
    scram = Scram(*ANN, hash_name)
    with Client(broker, method, scram.first()) as client:
        kind, reason, told = client.heard()
        assert (kind, reason, told[METHOD]) == ("AUTH", CONTINUE, method.encode())
        client.say(CONTINUE, scram.final(told[DATA]))
        kind, reason, told = client.heard()
        assert (kind, reason, told[METHOD]) == ("CONNACK", SUCCESS, method.encode())
        assert scram.trusts(told[DATA])
        assert client.may_publish("of/ann/1") and not client.may_publish("of/root/1")
        scram = Scram(*ANN, hash_name)
        client.say(AGAIN, scram.first())
        _, reason, told = client.heard()
        assert reason == CONTINUE
        client.say(CONTINUE, scram.final(told[DATA]))
        kind, reason, told = client.heard()
        assert (kind, reason) == ("AUTH", SUCCESS) and scram.trusts(told[DATA])
        assert client.may_publish("of/ann/1")


def test_a_wrong_password_and_an_unknown_user_look_alike(broker: Broker) -> None:
    for user, password in ((ANN[0], "wrong"), ("nobody", "any")):
        scram = Scram(user, password, "sha256")
        with Client(broker, "SCRAM-SHA-256", scram.first()) as client:
            kind, reason, told = client.heard()
            assert (kind, reason) == ("AUTH", CONTINUE)
            client.say(CONTINUE, scram.final(told[DATA]))
            assert client.heard()[:2] == ("CONNACK", BAD_CREDENTIALS)


def test_a_token_is_renewed_before_it_ends_and_the_connection_stays(broker: Broker, issuer: Issuer) -> None:
    with Client(broker, "OAUTHBEARER", bearer(issuer.token(rules=RULES, lives_s=3))) as client:
        assert client.heard()[:2] == ("CONNACK", SUCCESS)
        client.say(AGAIN, bearer(issuer.token(rules=RULES, lives_s=300)))
        assert client.heard()[:2] == ("AUTH", SUCCESS)
        until = time.monotonic() + 6
        while time.monotonic() < until:  # the first token has ended long before
            client.ping()
            time.sleep(0.2)
        assert client.may_publish("of/tom/1")


def test_a_token_that_is_not_renewed_ends_its_connection(broker: Broker, issuer: Issuer) -> None:
    with Client(broker, "OAUTHBEARER", bearer(issuer.token(rules=RULES, lives_s=1))) as client:
        assert client.heard()[:2] == ("CONNACK", SUCCESS)
        assert client.heard()[:2] == ("DISCONNECT", NOT_AUTHORIZED)


def test_rights_of_the_next_token_hold_from_then_on(broker: Broker, issuer: Issuer) -> None:
    with Client(broker, "OAUTHBEARER", bearer(issuer.token(rules=RULES))) as client:
        assert client.heard()[:2] == ("CONNACK", SUCCESS)
        assert client.may_publish("of/tom/1") and not client.may_publish("more/1")
        more = [*RULES, {"actions": ["publish", "create"], "filter": "more/#"}]
        client.say(AGAIN, bearer(issuer.token(rules=more)))
        assert client.heard()[:2] == ("AUTH", SUCCESS)
        assert client.may_publish("more/1")
        client.say(AGAIN, bearer(issuer.token(rules=[])))
        assert client.heard()[:2] == ("AUTH", SUCCESS)
        assert not client.may_publish("of/tom/1")


@pytest.mark.parametrize("what", ["another user", "expired", "no token"])
def test_who_cannot_authenticate_again_is_disconnected(broker: Broker, issuer: Issuer, what: str) -> None:
    wrong = {
        "another user": issuer.token(sub="eve", rules=RULES),
        "expired": issuer.token(rules=RULES, lives_s=-1),
        "no token": "eyJ.e30.x",
    }
    with Client(broker, "OAUTHBEARER", bearer(issuer.token(rules=RULES))) as client:
        assert client.heard()[:2] == ("CONNACK", SUCCESS)
        client.say(AGAIN, bearer(wrong[what]))
        assert client.heard()[:2] == ("DISCONNECT", NOT_AUTHORIZED)


def test_a_method_that_is_not_offered_is_refused(broker: Broker) -> None:
    for method in ("GSSAPI", "PLAIN", ""):
        with Client(broker, method, b"") as client:
            assert client.heard()[:2] == ("CONNACK", BAD_METHOD)


def test_only_auth_and_disconnect_come_before_connack(broker: Broker) -> None:
    for packet in (publish_packet("a", b"x", version=5), b"\xc0\x00", connect_packet("second", version=5)):
        with Client(broker, "SCRAM-SHA-256", Scram(*ANN, "sha256").first()) as client:
            assert client.heard()[:2] == ("AUTH", CONTINUE)
            client.send(packet)
            client.closed()


def test_auth_out_of_turn_breaks_the_protocol(broker: Broker, issuer: Issuer) -> None:
    token = bearer(issuer.token(rules=RULES))
    said: list[tuple[int, str | None]] = [(CONTINUE, None), (SUCCESS, None), (AGAIN, "SCRAM-SHA-256")]
    for reason, method in said:
        with Client(broker, "OAUTHBEARER", token) as client:
            assert client.heard()[:2] == ("CONNACK", SUCCESS)
            client.say(reason, token, method)
            assert client.heard()[:2] == ("DISCONNECT", PROTOCOL_ERROR)
    with Client(broker, "OAUTHBEARER", token) as client:
        assert client.heard()[:2] == ("CONNACK", SUCCESS)
        client.send(encode_packet(15, 0, bytes([AGAIN, 0])))  # without a method
        assert client.heard()[:2] == ("DISCONNECT", PROTOCOL_ERROR)
    with Raw.connected(broker.mqtt_port, version=5, username=ANN[0], password=ANN[1].encode()) as plain:
        plain.send(encode_auth(AGAIN, {METHOD: b"OAUTHBEARER", DATA: token}))
        assert plain.packet()[1][0] == PROTOCOL_ERROR
