"""JSON Web Tokens as logins of every protocol, by stock clients; whatever is wrong with one is refused by all of them."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jwt
import nats
import paho.mqtt.client as paho
import pika
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from mainstem.broker.identity.issuer_keys import AGAIN_S, parse_keys
from mainstem.broker.identity.tokens import TokenOptions, Tokens
from mainstem.model.errors import ConfigError, NotAuthorized
from mainstem.protocols.kafka import messages as wire
from mainstem.testing import Broker
from tests.protocol.kafka.raw import RawClient, batch_of
from tests.protocol.mqtt.raw import Raw
from tests.protocol.nats.raw import Raw as Nats
from tests.security.attempts import Client
from tests.security.issuer import AUDIENCE, Issuer
from tests.security.knocking import KNOCKS, kafka
from tests.users import ANN, ROOT, add_users, allow

RULES = [{"actions": ["publish", "create"], "filter": "of/%u/#"}]
WAIT_S = 20


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def broker(issuer: Issuer) -> Iterator[Broker]:
    with issuer.served() as address:
        settings = (f"jwt.keys={address}", f"jwt.audience={AUDIENCE}", "jwt.leeway_ms=0", "jwt.admin_role=boss")
        with Broker(*settings) as broker:
            add_users(broker)
            allow(broker, "of/ann/#", "publish", "create")
            assert broker.app is not None and broker.loop is not None
            for name in ("shop", "lab"):
                made = broker.app.broker.declare_namespace(name)
                asyncio.run_coroutine_threadsafe(made, broker.loop).result(WAIT_S)
            yield broker


@pytest.mark.parametrize("protocol", KNOCKS)
@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_token_lets_its_user_do_what_its_rules_say(
    broker: Broker, issuer: Issuer, protocol: str, algorithm: str
) -> None:
    token = issuer.token(algorithm, sub="tom", rules=RULES)
    assert KNOCKS[protocol](broker, "of/tom/1", "" if protocol != "kafka" else "tom", token)
    if algorithm == "ES256":
        assert not KNOCKS[protocol](broker, "of/ann/1", "tom" if protocol != "http" else "", token)


def unsigned(claims: dict[str, Any]) -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(claims)}."


def confused(issuer: Issuer) -> str:
    """Signed with the public key, as if that were a secret both sides share."""
    import hashlib
    import hmac

    _, key = issuer.keys["RS256"]
    secret = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"RS256"}').rstrip(b"=")
    claims = {"sub": "root", "aud": AUDIENCE, "exp": int(time.time()) + 300}
    body = head + b"." + base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
    signature = base64.urlsafe_b64encode(hmac.digest(secret, body, hashlib.sha256)).rstrip(b"=")
    return (body + b"." + signature).decode()


def foreign(issuer: Issuer) -> str:
    other = Issuer()
    return other.token("ES256", sub="root")


def changed(token: str) -> str:
    head, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    body = base64.urlsafe_b64encode(json.dumps({**claims, "sub": "root"}).encode()).rstrip(b"=").decode()
    return f"{head}.{body}.{signature}"


LIFE = {"aud": AUDIENCE, "exp": 4e9, "sub": "root"}
WRONG: dict[str, Callable[[Issuer], str]] = {
    "none": lambda issuer: unsigned(LIFE),
    "confusion": confused,
    "another issuer's": foreign,
    "changed": lambda issuer: changed(issuer.token()),
    "expired": lambda issuer: issuer.token(sub="root", lives_s=-1),
    "without exp": lambda issuer: issuer.token(sub="root", exp=None),
    "not yet": lambda issuer: issuer.token(sub="root", nbf=int(time.time()) + 100),
    "wrong audience": lambda issuer: issuer.token(sub="root", aud="other"),
    "without audience": lambda issuer: issuer.token(sub="root", aud=None),
    "without user": lambda issuer: issuer.token(sub=None),
    "a name that is none": lambda issuer: issuer.token(sub="a/b"),
    "unknown namespace": lambda issuer: issuer.token(namespace="none"),
    "another's namespace": lambda issuer: issuer.token(sub="ann", namespace="shop"),
    "rules that are none": lambda issuer: issuer.token(rules=[{"actions": ["fly"], "filter": "#"}]),
    "no token": lambda issuer: "eyJ.e30.x",
}


@pytest.mark.parametrize("what", WRONG)
def test_a_token_with_something_wrong_is_refused(broker: Broker, issuer: Issuer, what: str) -> None:
    token = WRONG[what](issuer)
    assert not KNOCKS["http"](broker, "of/tom/1", "", token)
    assert not KNOCKS["mqtt"](broker, "of/tom/1", "root", token)


@pytest.mark.parametrize("protocol", KNOCKS)
def test_what_is_refused_is_refused_by_every_protocol(broker: Broker, issuer: Issuer, protocol: str) -> None:
    for what in ("none", "expired", "another issuer's"):
        name = "" if protocol == "http" else "root"
        assert not KNOCKS[protocol](broker, "of/tom/1", name, WRONG[what](issuer))
    if protocol != "http":
        assert not KNOCKS[protocol](broker, "of/tom/1", "ann", issuer.token(sub="tom", rules=RULES))


def test_librdkafka_logs_in_by_oauthbearer(broker: Broker, issuer: Issuer) -> None:
    assert kafka(broker, "of/tom/1", "", issuer.token(rules=RULES), mechanism="OAUTHBEARER")
    assert not kafka(broker, "of/tom/1", "", issuer.token(rules=RULES, aud="other"), mechanism="OAUTHBEARER")


@pytest.mark.parametrize("protocol", KNOCKS)
def test_rules_that_kafkas_tools_made_for_its_name_are_obeyed(broker: Broker, issuer: Issuer, protocol: str) -> None:
    """As in Kafka, whose rules know names only; in the namespace of who made them, and nowhere else."""
    name, topic = f"kim-{protocol}", f"of/kim-{protocol}/1"
    shown = (name if protocol == "kafka" else "", issuer.token(sub=name))
    login = {"sasl.username": ROOT[0], "sasl.password": ROOT[1], "sasl.mechanism": "PLAIN"}
    address = {"bootstrap.servers": broker.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT"}
    root = AdminClient({**address, **login})

    def make(pattern: ResourcePatternType, operation: AclOperation, permission: AclPermissionType) -> None:
        wanted = AclBinding(ResourceType.TOPIC, f"of.{name}.1", pattern, f"User:{name}", "*", operation, permission)
        root.create_acls([wanted])[wanted].result(WAIT_S)

    assert not KNOCKS[protocol](broker, topic, *shown)
    make(ResourcePatternType.PREFIXED, AclOperation.ALL, AclPermissionType.ALLOW)
    assert KNOCKS[protocol](broker, topic, *shown)
    elsewhere = (shown[0], issuer.token(sub=name, namespace="shop"))
    assert not KNOCKS[protocol](broker, topic, *elsewhere)
    make(ResourcePatternType.LITERAL, AclOperation.WRITE, AclPermissionType.DENY)
    assert not KNOCKS[protocol](broker, topic, *shown)


def test_a_token_of_a_user_the_broker_knows_adds_to_what_it_may(broker: Broker, issuer: Issuer) -> None:
    token = issuer.token(sub="ann", rules=[{"actions": ["publish"], "filter": "more"}])
    assert KNOCKS["http"](broker, "of/ann/1", "", token)
    assert KNOCKS["http"](broker, "more", "", token)
    assert not KNOCKS["http"](broker, "more", *ANN)
    assert KNOCKS["mqtt"](broker, "of/ann/1", *ANN), "and passwords go on"


def test_a_role_makes_an_admin_only_where_the_configuration_says_so(broker: Broker, issuer: Issuer) -> None:
    assert KNOCKS["http"](broker, "any", "", issuer.token(roles=["boss"]))
    assert not KNOCKS["http"](broker, "any", "", issuer.token(roles=["admin"]))


def test_the_namespace_is_the_tokens_and_can_be_chosen_among_its_own(broker: Broker, issuer: Issuer) -> None:
    assert broker.app is not None
    token = issuer.token(rules=RULES, namespace=["shop", "lab"])
    spaces = broker.app.broker.namespaces
    assert KNOCKS["mqtt"](broker, "of/tom/s", "", token)
    assert KNOCKS["mqtt"](broker, "of/tom/l", "lab:tom", token)
    assert KNOCKS["amqp"](broker, "of/tom/a", "tom", token, vhost="lab")
    assert not KNOCKS["mqtt"](broker, "of/tom/l", "/:tom", token)
    assert not KNOCKS["amqp"](broker, "of/tom/a", "tom", token, vhost="/")
    expected = {b"of/tom/s": "shop", b"of/tom/l": "lab", b"of/tom/a": "lab"}
    for topic, where in expected.items():
        assert [name for name, space in spaces.items() if space.find_topic(topic) is not None] == [where]


def test_connections_end_when_their_token_expires(broker: Broker, issuer: Issuer) -> None:
    token = issuer.token(lives_s=2, rules=RULES)
    login: dict[str, Any] = {"username": "tom", "password": token.encode()}
    with ExitStack() as stack, Raw.connected(broker.mqtt_port, version=5, **login) as client:
        stack.enter_context(kafka_client := Client(broker, ("tom", token)))
        where = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, "/", pika.PlainCredentials("tom", token))
        amqp = pika.BlockingConnection(where)
        kind, body = client.packet()
        assert kind >> 4 == 14 and body[0] == 0x87
        assert time.time() >= jwt.decode(token, options={"verify_signature": False})["exp"]
        with pytest.raises(pika.exceptions.AMQPError):
            amqp.process_data_events(WAIT_S)
        assert kafka_client.closed()
    assert not KNOCKS["http"](broker, "of/tom/1", "", token)


def test_new_keys_are_fetched_when_a_token_names_one(broker: Broker, issuer: Issuer) -> None:
    issuer.add("rotated", "ES256")
    time.sleep(AGAIN_S)  # a stranger's token may not make us ask more often
    assert KNOCKS["http"](broker, "of/tom/1", "", issuer.token("rotated", rules=RULES))
    asked = issuer.asked
    for _ in range(5):
        assert not KNOCKS["http"](broker, "of/tom/1", "", foreign_key(issuer))
    assert issuer.asked <= asked + 1


def foreign_key(issuer: Issuer) -> str:
    other = Issuer()
    other.add("unheard of", "EdDSA")
    return other.token("unheard of", rules=RULES)


async def test_keys_that_are_withdrawn_no_longer_count(tmp_path: Path) -> None:
    issuer, file = Issuer(), tmp_path / "jwks.json"
    file.write_text(json.dumps(issuer.jwks()))
    tokens = Tokens(TokenOptions(str(file), audiences=(AUDIENCE,), keys_max_age_s=0))
    token = issuer.token("RS256")
    assert (await tokens.check(token.encode())).user == "tom"
    del issuer.keys["RS256"]
    file.write_text(json.dumps(issuer.jwks()))
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            await tokens.check(token.encode())
        except NotAuthorized:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("its key is gone, and it is taken all the same")


async def test_an_issuer_that_cannot_be_reached_keeps_nobody_out_who_has_a_known_key(tmp_path: Path) -> None:
    issuer, file = Issuer(), tmp_path / "jwks.json"
    file.write_text(json.dumps(issuer.jwks()))
    tokens = Tokens(TokenOptions(str(file), audiences=(AUDIENCE,), keys_max_age_s=0))
    assert await tokens.check(issuer.token().encode())
    file.unlink()
    for _ in range(3):
        assert await tokens.check(issuer.token().encode())
    with pytest.raises(NotAuthorized):
        await Tokens(TokenOptions(str(file), audiences=(AUDIENCE,))).check(issuer.token().encode())


@pytest.fixture(scope="module")
def two_issuers(issuer: Issuer) -> Iterator[tuple[Broker, Issuer]]:
    """The first speaks for everybody, the second for namespace `shop`."""
    other = Issuer()
    with issuer.served() as first, other.served() as second:
        settings = (
            f"jwt.keys={first}",
            "jwt.issuer=https://first",
            f"jwt.more_issuers=https://second {second} shop",
            f"jwt.audience={AUDIENCE}",
            "jwt.admin_role=boss",
        )
        with Broker(*settings) as broker:
            add_users(broker)
            allow(broker, "of/ann/#", "publish", "create")
            assert broker.app is not None and broker.loop is not None
            made = broker.app.broker.declare_namespace("shop")
            asyncio.run_coroutine_threadsafe(made, broker.loop).result(WAIT_S)
            yield broker, other


def test_each_issuers_tokens_are_checked_by_its_own_keys(two_issuers: tuple[Broker, Issuer], issuer: Issuer) -> None:
    broker, other = two_issuers
    http = KNOCKS["http"]
    assert http(broker, "of/tom/1", "", issuer.token(rules=RULES, iss="https://first"))
    assert http(broker, "of/tom/1", "", other.token(rules=RULES, iss="https://second"))
    for keys, name in ((issuer, "https://second"), (other, "https://first"), (other, "https://third"), (other, None)):
        assert not http(broker, "of/tom/1", "", keys.token(rules=RULES, iss=name))


def test_an_issuer_bound_to_a_namespace_speaks_for_that_alone(two_issuers: tuple[Broker, Issuer]) -> None:
    broker, other = two_issuers
    assert broker.app is not None
    http, spaces = KNOCKS["http"], broker.app.broker.namespaces
    assert http(broker, "of/tim/1", "", other.token(sub="tim", rules=RULES, iss="https://second"))
    assert spaces["shop"].find_topic(b"of/tim/1") is not None and spaces["/"].find_topic(b"of/tim/1") is None
    assert not http(broker, "of/tim/1", "", other.token(sub="tim", rules=RULES, iss="https://second", namespace="/"))
    assert not http(broker, "any", "", other.token(sub="tim", roles=["boss"], iss="https://second"))
    for known in ("root", "ann"):  # of another namespace, and one of them an admin
        assert not http(broker, "of/ann/1", "", other.token(sub=known, rules=RULES, iss="https://second"))


def test_only_keys_to_verify_with_are_read() -> None:
    issuer = Issuer()
    assert len(parse_keys(json.dumps(issuer.jwks()).encode())) == 3
    pem = issuer.keys["ES256"][1].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert len(parse_keys(pem)) == 1
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "x"}
    for wrong in (b"", b"{}", b"[]", json.dumps({"keys": [secret]}).encode(), json.dumps(secret).encode(), b"[" * 9999):
        with pytest.raises(ConfigError):
            parse_keys(wrong)


def test_settings_that_would_let_others_in_are_refused(tmp_path: Path) -> None:
    for options in (
        TokenOptions(str(tmp_path / "keys")),
        TokenOptions("keys", audiences=("a",), more_issuers=("https://b keys",)),
        TokenOptions("keys", "https://b", audiences=("a",), more_issuers=("https://b keys",)),
        TokenOptions("keys", "https://a", audiences=("a",), more_issuers=("https://b",)),
        TokenOptions("http://issuer.example/jwks", audiences=("a",)),
        TokenOptions(str(tmp_path / "keys"), audiences=("a",), algorithms=("HS256",)),
        TokenOptions(str(tmp_path / "keys"), audiences=("a",), algorithms=("none",)),
    ):
        with pytest.raises(ConfigError):
            Tokens(options)


def test_with_tokens_alone_nobody_gets_in_without_one(issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(issuer.jwks()))
    with Broker(f"jwt.keys={file}", f"jwt.audience={AUDIENCE}", "jwt.users=any") as broker:
        for protocol in ("mqtt", "amqp", "nats", "http"):
            assert not KNOCKS[protocol](broker, "of/tom/1", *ROOT)
        assert KNOCKS["mqtt"](broker, "of/tom/1", "", issuer.token(rules=RULES))


def by_jwt(broker: Broker, token: str, subject: str) -> list[bytes]:
    """What a connection hears that shows the token in the `jwt` field of CONNECT, up to the answer to its PING."""
    with Nats(broker.nats_port, jwt=token, verbose=True) as raw:
        assert raw.info["auth_required"] and raw.info["nonce"]
        raw.send(f"PUB {subject} 1\r\nx\r\nPING\r\n".encode())
        try:
            return raw.until(b"PONG")
        except (EOFError, ConnectionResetError):
            return [b"closed"]


def test_nats_takes_a_token_in_the_jwt_of_connect(broker: Broker, issuer: Issuer) -> None:
    token = issuer.token(sub="tom", rules=RULES)
    assert by_jwt(broker, token, "of.tom.1") == [b"+OK", b"+OK"]
    assert by_jwt(broker, token, "of.ann.1") == [b"+OK", b"-ERR 'Permissions Violation for Publish to \"of.ann.1\"'"]


@pytest.mark.parametrize("what", WRONG)
def test_nats_refuses_a_jwt_of_connect_with_something_wrong(broker: Broker, issuer: Issuer, what: str) -> None:
    assert b"closed" in by_jwt(broker, WRONG[what](issuer), "of.tom.1")


async def test_a_stock_nats_client_shows_a_token_as_its_jwt(broker: Broker, issuer: Issuer) -> None:
    """It does so where the server asks for a signature, which nobody needs of a token."""
    token = issuer.token(sub="tom", rules=RULES)
    client = await nats.connect(
        broker.nats_url,
        user_jwt_cb=lambda: bytearray(token.encode()),
        signature_cb=lambda nonce: b"none",
        allow_reconnect=False,
    )
    info = json.loads((await client.request("$SYS.REQ.USER.INFO", b"", timeout=WAIT_S)).data)
    assert info["data"]["user"] == "tom"
    await client.close()


class Bearer:
    """SASL OAUTHBEARER for pika, which does not know it."""

    TYPE = "OAUTHBEARER"

    def __init__(self, token: str) -> None:
        self.token = token

    def response_for(self, start: Any) -> tuple[str, bytes]:
        assert b"OAUTHBEARER" in start.mechanisms.split()
        return self.TYPE, f"n,,\x01auth=Bearer {self.token}\x01\x01".encode()

    def erase_credentials(self) -> None:
        pass


@pytest.fixture
def bearers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pika.credentials, "VALID_TYPES", [*pika.credentials.VALID_TYPES, Bearer])


def amqp_connection(broker: Broker, token: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", broker.amqp_port, "/", Bearer(token))  # type: ignore[arg-type]
    )


@pytest.mark.usefixtures("bearers")
def test_amqp_has_the_mechanism_and_renews_its_secret(broker: Broker, issuer: Issuer) -> None:
    with pytest.raises(pika.exceptions.AMQPError):
        amqp_connection(broker, issuer.token(aud="other"))
    first = issuer.token(lives_s=3, rules=RULES)
    connection, other = amqp_connection(broker, first), amqp_connection(broker, first)
    later = issuer.token(lives_s=300, rules=RULES)
    connection.update_secret(later, "it expires")
    with pytest.raises(pika.exceptions.AMQPError):
        other.process_data_events(WAIT_S)
    connection.channel().close()  # past the end of its first token
    other_user = issuer.token(sub="eve", rules=RULES)
    with pytest.raises(pika.exceptions.AMQPError):
        connection.update_secret(other_user, "it expires")


def test_kafka_tells_how_long_a_token_lives_and_takes_the_next_on_the_same_connection(
    broker: Broker, issuer: Issuer
) -> None:
    """KIP-368."""

    def authenticate(client: RawClient, token: str) -> Any:
        client.ask("SaslHandshake", 1, wire.SaslHandshakeRequest(mechanism="OAUTHBEARER"))
        data = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        return client.ask("SaslAuthenticate", 2, wire.SaslAuthenticateRequest(auth_bytes=data))

    with RawClient(broker) as client:
        answer = authenticate(client, issuer.token(lives_s=2, rules=RULES))
        assert answer.error_code == 0 and 0 < answer.session_lifetime_ms <= 2_000
        ends = time.monotonic() + 3.5
        answer = authenticate(client, issuer.token(lives_s=300, rules=RULES))
        assert answer.error_code == 0 and answer.session_lifetime_ms > 60_000
        assert authenticate(client, issuer.token(sub="eve")).error_code != 0, "a connection stays its user's"
        while time.monotonic() < ends:
            assert client.produce("of.tom.1", batch_of([b"x"])).error_code == 0
            time.sleep(0.1)


def test_an_mqtt_client_chooses_its_namespace_by_a_property(broker: Broker, issuer: Issuer) -> None:
    assert broker.app is not None
    token = issuer.token(rules=RULES, namespace=["shop", "lab"])
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.UserProperty = [("ms-namespace", "lab")]
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.username_pw_set("tom", token)
    client.on_connect = lambda c, *_: c.publish("of/tom/property", b"x", qos=1)
    done: list[int] = []
    client.on_publish = lambda *_: done.append(1)
    client.connect("127.0.0.1", broker.mqtt_port, properties=properties)
    deadline = time.monotonic() + WAIT_S
    while not done and time.monotonic() < deadline:
        client.loop(0.05)
    client.disconnect()
    found = [n for n, space in broker.app.broker.namespaces.items() if space.find_topic(b"of/tom/property")]
    assert done and found == ["lab"]
