"""NATS under clients that stop anywhere, log in never, or belong to somebody else: what others have stays as it was."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import httpx
import nats
import nats.errors
import pytest

from mainstem.testing import Broker
from tests.protocol.nats.raw import Raw
from tests.security.canary import ask_nats
from tests.users import ROOT

EVE, BOB = ("eve", "pass word"), ("bob", "pass word")  # of t2, and of the default namespace
ACTIONS = ["publish", "consume", "create", "configure", "delete", "describe"]
WAIT_S = 20
HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"
LOGIN = b'CONNECT {"user":"bob","pass":"pass word","verbose":false,"pedantic":false,"headers":true}\r\n'
TALK = (
    b"SUB cut.> 7\r\n"
    + b"HPUB cut.a reply.b %d %d\r\n%btwo\r\n" % (len(HEADERS), len(HEADERS) + 3, HEADERS)
    + b"PUB cut.a 5\r\nthree\r\nUNSUB 7 9\r\nPING\r\n"
)
HEARD = b"HMSG cut.a 7 reply.b %d %d\r\n%btwo\r\nMSG cut.a 7 5\r\nthree\r\n" % (len(HEADERS), len(HEADERS) + 3, HEADERS)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(engine="segment") as one, httpx.Client(base_url=one.http_url, timeout=20) as http:
        assert http.post("/v1/users", json={"name": ROOT[0], "password": ROOT[1], "admin": True}).status_code == 200
        http.auth = httpx.BasicAuth(*ROOT)
        http.post("/v1/namespaces", json={"name": "t2"}).raise_for_status()
        for name, namespace in ((EVE[0], "t2"), (BOB[0], "/")):
            user = {"name": name, "password": "pass word", "namespace": namespace}
            http.post("/v1/users", json=user).raise_for_status()
            http.post(f"/v1/users/{name}/rules", json={"actions": ACTIONS, "filter": "#"}).raise_for_status()
        yield one


@pytest.fixture
def root(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, auth=ROOT, timeout=20) as client:
        yield client


def dialled(broker: Broker) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", broker.nats_port), WAIT_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while b"\r\n" not in client.recv(65_536):
        pass
    return client


def heard(client: socket.socket, talk: bytes) -> bytes:
    """Everything up to the PONG, without the INFO that comes with the first one."""
    found = b""
    while not found.endswith(b"PONG\r\n") and not (b"PONG\r\nINFO" in found and found.endswith(b"}\r\n")):
        data = client.recv(65_536)
        assert data, found
        found += data
    return found.partition(b"PONG\r\n")[0]


def eventually_left(root: httpx.Client) -> None:
    deadline = time.monotonic() + WAIT_S
    while root.get("/connz").json()["num_connections"]:
        assert time.monotonic() < deadline, "connections of clients that are gone are still there"
        time.sleep(0.02)


def test_a_conversation_is_the_same_wherever_it_is_cut(broker: Broker) -> None:
    """Before the login, while the password is looked at, and behind it."""
    talk = LOGIN + TALK
    for cut in range(1, len(talk)):
        with dialled(broker) as client:
            client.sendall(talk[:cut])
            if cut % 3:  # the others arrive as one, or as it happens
                time.sleep(0.001)
            client.sendall(talk[cut:])
            assert heard(client, talk) == HEARD, f"cut behind byte {cut}"


def test_a_client_that_leaves_after_any_byte_publishes_whole_messages_or_none(
    broker: Broker, root: httpx.Client
) -> None:
    talk = LOGIN + TALK.replace(b"cut.", b"end.")
    bodies = [talk.index(b"two\r\n") + 5, talk.index(b"three\r\n") + 7]
    with Raw(broker.nats_port, user=BOB[0], **{"pass": BOB[1]}) as witness:
        witness.send(b"SUB end.> 1\r\n")
        assert witness.synced() == []
        for cut in range(len(talk)):
            client = dialled(broker)
            client.sendall(talk[:cut])
            if cut % 2:  # with a reset
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        with dialled(broker) as client:
            client.sendall(talk)
            heard(client, talk)
        found = [line for line in witness.synced() if not line.startswith((b"HMSG", b"MSG", b"NATS/1.0", b"A: b"))]
    assert {line for line in found if line} == {b"two", b"three"}
    most = sum(sum(cut >= body for body in bodies) for cut in range(len(talk))) + 2
    assert 2 <= sum(1 for line in found if line) <= most
    eventually_left(root)
    assert ask_nats(broker) >= 0


@pytest.mark.parametrize(
    "said",
    [
        b"PING\r\n",
        b"PONG\r\n",
        b"SUB > 1\r\n",
        b"SUB $JS.API.> 1\r\n",
        b"UNSUB 1\r\n",
        b"PUB no.login 1\r\nx\r\n",
        b"HPUB no.login %d %d\r\n%bx\r\n" % (len(HEADERS), len(HEADERS) + 1, HEADERS),
        b"PUB $JS.API.STREAM.NAMES _INBOX.a 0\r\n\r\n",
        b"CONNECT {}\r\nPUB no.login 1\r\nx\r\n",
        b'CONNECT {"user":"bob"}\r\nPUB no.login 1\r\nx\r\n',
        b'CONNECT {"user":"bob","pass":"pass wor"}\r\nPUB no.login 1\r\nx\r\n',
        b'CONNECT {"nkey":"UAAA","sig":""}\r\nPUB no.login 1\r\nx\r\n',
        b'CONNECT {"jwt":"eyJ.e30.x"}\r\nPUB no.login 1\r\nx\r\n',
        LOGIN + b"CONNECT {}\r\nPUB no.login 1\r\nx\r\n",
    ],
)
def test_without_a_login_nothing_is_done(broker: Broker, said: bytes) -> None:
    with Raw(broker.nats_port, user=BOB[0], **{"pass": BOB[1]}) as witness:
        witness.send(b"SUB no.> 1\r\n")
        assert witness.synced() == []
        with Raw(broker.nats_port, connect=False) as client:
            client.send(said)
            assert client.rest().strip() == b"-ERR 'Authorization Violation'"
        assert witness.synced() == []


async def connected(broker: Broker, user: tuple[str, str]) -> Any:
    return await nats.connect(
        broker.nats_url, user=user[0], password=user[1], connect_timeout=WAIT_S, allow_reconnect=False
    )


async def asked(client: Any, call: str, body: Any = None) -> dict[str, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    answer: dict[str, Any] = json.loads((await client.request(f"$JS.API.{call}", data, timeout=WAIT_S)).data)
    return answer


async def test_streams_of_another_namespace_are_not_there(broker: Broker) -> None:
    bob, eve = await connected(broker, BOB), await connected(broker, EVE)
    js = bob.jetstream(timeout=WAIT_S)
    await js.add_stream(name="plans", subjects=["plans.>"], allow_direct=True)
    for n in range(3):
        await js.publish("plans.a", b"%d" % n)
    pull = await js.pull_subscribe("plans.>", "worker")
    message, *_ = await pull.fetch(1, timeout=WAIT_S)
    listening = await eve.subscribe("plans.>")
    for call, body in (
        ("STREAM.INFO.plans", None),
        ("STREAM.DELETE.plans", None),
        ("STREAM.PURGE.plans", None),
        ("STREAM.MSG.GET.plans", {"seq": 1}),
        ("STREAM.MSG.DELETE.plans", {"seq": 1}),
        ("STREAM.UPDATE.plans", {"name": "plans", "subjects": ["plans.>"], "max_msgs": 1}),
        ("CONSUMER.INFO.plans.worker", None),
        ("CONSUMER.DELETE.plans.worker", None),
        ("CONSUMER.CREATE.plans.mine", {"stream_name": "plans", "config": {"durable_name": "mine"}}),
    ):
        assert (await asked(eve, call, body))["error"]["err_code"] == 10059, call
    assert (await asked(eve, "STREAM.NAMES"))["streams"] in (None, [])
    for call in ("DIRECT.GET.plans", "CONSUMER.MSG.NEXT.plans.worker"):
        with pytest.raises(nats.errors.NoRespondersError):
            await eve.request(f"$JS.API.{call}", b'{"seq":1}', timeout=WAIT_S)
    with pytest.raises((nats.errors.NoRespondersError, nats.errors.TimeoutError)):
        await eve.request(message.reply, b"+ACK", timeout=2)
    mirror = await asked(eve, "STREAM.CREATE.m", {"name": "m", "mirror": {"name": "plans"}})
    assert mirror["error"]["err_code"] == 10052
    own = await asked(eve, "STREAM.CREATE.plans", {"name": "plans", "subjects": ["plans.>"]})
    assert own["state"]["messages"] == 0
    await js.publish("plans.a", b"3")
    info = await js.consumer_info("plans", "worker")
    assert (info.num_ack_pending, (await js.stream_info("plans")).state.messages) == (1, 4)
    assert (await asked(eve, "STREAM.INFO.plans"))["state"]["messages"] == 0
    with pytest.raises(nats.errors.TimeoutError):
        await listening.next_msg(0.2)
    await bob.close()
    await eve.close()


async def test_a_consumers_client_that_dies_in_a_pull_gives_everything_back(broker: Broker) -> None:
    bob = await connected(broker, BOB)
    js = bob.jetstream(timeout=WAIT_S)
    await js.add_stream(name="jobs", subjects=["jobs"])
    config = {"durable_name": "w", "ack_policy": "explicit", "ack_wait": 500_000_000}
    await asked(bob, "CONSUMER.CREATE.jobs.w", {"stream_name": "jobs", "config": config})
    for _ in range(5):  # each asks for ten, is sent four, and dies over them
        with Raw(broker.nats_port, user=BOB[0], **{"pass": BOB[1]}) as dying:
            dying.send(b'SUB in.> 1\r\nPUB $JS.API.CONSUMER.MSG.NEXT.jobs.w in.a 12\r\n{"batch":10}\r\n')
            assert dying.synced() == []
            for n in range(4):
                await js.publish("jobs", b"%d" % n)
            dying.line()
            dying.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while (await js.consumer_info("jobs", "w")).num_waiting:
        assert asyncio.get_running_loop().time() < deadline, "a pull of a client that is gone still waits"
        await asyncio.sleep(0.05)
    pull, found = await js.pull_subscribe("", "w", stream="jobs"), dict[int, int]()
    while len(found) < 20:
        assert asyncio.get_running_loop().time() < deadline, sorted(found)
        for message in await pull.fetch(20, timeout=WAIT_S):
            await message.ack_sync(timeout=WAIT_S)
            assert message.metadata.sequence.stream not in found, "it came again after its ack was confirmed"
            found[message.metadata.sequence.stream] = message.metadata.num_delivered
    assert sorted(found) == list(range(1, 21)) and max(found.values()) > 1
    info = await js.consumer_info("jobs", "w")
    assert (info.num_pending, info.num_ack_pending) == (0, 0)
    await bob.close()
