"""By an nkey, by TLS that begins inside a plain connection, by WebSocket: with nats-py and by hand."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nkeys
import pytest
import trustme
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as websocket

from mainstem.testing import Broker
from tests.cli.commands import said
from tests.crossing.commands import eventually
from tests.protocol.nats.raw import Raw

WAIT_S = 10


async def connected(url: str, **options: Any) -> Any:
    return await nats.connect(url, connect_timeout=WAIT_S, allow_reconnect=False, **options)


async def carries(client: Any, subject: str) -> None:
    """A message, a large one and a request."""
    subscription = await client.subscribe(subject)
    for payload in (b"one", bytes(700_000), b"three"):
        await client.publish(subject, payload)
        assert (await subscription.next_msg(WAIT_S)).data == payload
    assert b"account" in (await client.request("$SYS.REQ.USER.INFO", b"", timeout=WAIT_S)).data


# -- nkeys


def seed_of() -> tuple[bytes, str]:
    """A new user's seed, and its public key."""
    import os

    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    return bytes(seed), nkeys.from_seed(bytearray(seed)).public_key.decode()


async def test_who_has_the_key_gets_in_and_nobody_else(tmp_path: Path) -> None:
    (seed, nkey), (other, _) = seed_of(), seed_of()
    with Broker(data=tmp_path / "data", engine="segment") as broker:
        as_boss = broker.http_url.replace("//", "//boss:secret@")
        with Raw(broker.nats_port) as raw:
            assert "nonce" not in raw.info
        await asyncio.to_thread(
            said, "user", "add", "boss", "--admin", "--password", "secret", "--url", broker.http_url
        )
        await asyncio.to_thread(said, "user", "add", "dev", "--nkey", nkey, "--url", as_boss)
        for action in ("publish", "consume"):
            await asyncio.to_thread(said, "user", "allow", "dev", action, "#", "--url", as_boss)
        described = await asyncio.to_thread(said, "user", "describe", "dev", "--json", "--url", as_boss)
        assert json.loads(described)["nkey"] == nkey
        with Raw(broker.nats_port, connect=False) as one, Raw(broker.nats_port, connect=False) as two:
            assert len(one.info["nonce"]) == 15
            assert one.info["nonce"] != two.info["nonce"]
        client = await connected(broker.nats_url, nkeys_seed_str=seed.decode())
        await carries(client, "by.key")
        await client.close()
        for wrong in ({"nkeys_seed_str": other.decode()}, {"user": "dev", "password": ""}, {"user": nkey}):
            with pytest.raises((nats.errors.Error, OSError)):
                await connected(broker.nats_url, max_reconnect_attempts=0, **wrong)
        client = await connected(broker.nats_url, user="boss", password="secret")
        await client.close()
    with Broker(data=tmp_path / "data", engine="segment") as broker:  # it was kept
        client = await connected(broker.nats_url, nkeys_seed_str=seed.decode())
        await client.close()
        as_boss = broker.http_url.replace("//", "//boss:secret@")
        await asyncio.to_thread(said, "user", "alter", "dev", "--nkey", "", "--url", as_boss)
        with pytest.raises((nats.errors.Error, OSError)):
            await connected(broker.nats_url, max_reconnect_attempts=0, nkeys_seed_str=seed.decode())


def credentials(path: Path, seed: bytes, nkey: str, **claims: object) -> str:
    """A file as `nsc` writes it; nobody here knows the account that signed it."""
    parts = ({"typ": "JWT", "alg": "ed25519-nkey"}, {"sub": nkey, "iss": "A" * 56, "nats": {"type": "user"}, **claims})
    text = ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts)
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{text}.c2ln\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
    )
    return str(path)


async def test_a_credentials_file_logs_its_key_in_and_no_other(tmp_path: Path) -> None:
    (seed, nkey), (other, unknown) = seed_of(), seed_of()
    with Broker(data=tmp_path / "data", engine="segment") as broker:
        await asyncio.to_thread(said, "user", "add", "boss", "--admin", "--nkey", nkey, "--url", broker.http_url)
        client = await connected(broker.nats_url, user_credentials=credentials(tmp_path / "good", seed, nkey))
        await carries(client, "by.creds")
        await client.close()
        wrong = [
            credentials(tmp_path / "forged", other, nkey),  # it names a key that it cannot sign with
            credentials(tmp_path / "unknown", other, unknown),
            credentials(tmp_path / "old", seed, nkey, exp=1_000_000_000),
        ]
        for one in wrong:
            with pytest.raises((nats.errors.Error, OSError)):
                await connected(broker.nats_url, max_reconnect_attempts=0, user_credentials=one)


def test_a_signature_of_another_nonce_is_none(tmp_path: Path) -> None:
    seed, nkey = seed_of()
    with Broker(data=tmp_path / "data", engine="segment") as broker:
        said("user", "add", "boss", "--admin", "--password", "secret", "--nkey", nkey, "--url", broker.http_url)
        with Raw(broker.nats_port, connect=False) as first, Raw(broker.nats_port, connect=False) as second:
            signed = nkeys.from_seed(bytearray(seed)).sign(first.info["nonce"].encode())
            text = base64.urlsafe_b64encode(signed).decode().rstrip("=")
            hello = b"CONNECT " + json.dumps({"verbose": True, "nkey": nkey, "sig": text}).encode() + b"\r\n"
            second.send(hello)
            assert second.line() == b"-ERR 'Authorization Violation'"
            first.send(hello)
            assert first.line() == b"+OK"


def test_what_is_no_nkey_is_refused_with_the_way_to_one(broker: Broker) -> None:
    from tests.cli.commands import run

    _, nkey = seed_of()
    for wrong in ("UNKNOWN", nkey[:-1] + ("A" if nkey[-1] != "A" else "B"), nkey.lower()):
        ran = run("user", "add", "x", "--admin", "--nkey", wrong, "--url", broker.http_url)
        assert ran.returncode != 0
        assert "nk -gen user" in ran.stderr


# -- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module", params=["available", "required"])
def secured(
    request: pytest.FixtureRequest, authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("tls")
    made = authority.issue_cert("localhost", "127.0.0.1")
    made.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    ports = [f"listeners.{name}_port=0" for name in ("mqtts", "wss", "kafkas", "amqps", "natss", "https")]
    with Broker(*ports, f"tls.certificate={folder / 'server.pem'}", f"nats.tls={request.param}") as broker:
        yield broker


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def upgraded(port: int, authority: trustme.CA) -> tuple[dict[str, Any], ssl.SSLSocket]:
    """INFO, then TLS on the same socket."""
    plain = socket.create_connection(("127.0.0.1", port), WAIT_S)
    info = b""
    while not info.endswith(b"\r\n"):
        info += plain.recv(1)
    return json.loads(info[5:]), trusting(authority).wrap_socket(plain, server_hostname="localhost")


def test_tls_begins_inside_a_plain_connection(secured: Broker, authority: trustme.CA) -> None:
    info, over_tls = upgraded(secured.nats_port, authority)
    assert info.get("tls_required") or info.get("tls_available")
    with over_tls:
        over_tls.sendall(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPUB a 5\r\nhello\r\nPING\r\n')
        said_back = b""
        while b"PONG" not in said_back or b"hello" not in said_back:
            said_back += over_tls.recv(4096)
        assert b"MSG a 1 5\r\nhello\r\n" in said_back


async def test_nats_py_begins_tls_where_it_is_required(secured: Broker, authority: trustme.CA) -> None:
    required = b'"tls_required": true' in await asyncio.to_thread(_info, secured.nats_port)
    if not required:
        client = await connected(secured.nats_url)
        await carries(client, "plain.still")
        await client.close()
        return
    url = f"tls://localhost:{secured.nats_port}"
    client = await connected(url, tls=trusting(authority), tls_hostname="localhost")
    await carries(client, "by.tls")
    await client.close()
    with Raw(secured.nats_port) as raw:
        assert raw.rest() == b"-ERR 'Secure Connection - TLS Required'\r\n"


def _info(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as plain:
        return plain.recv(4096)


async def test_the_other_port_begins_with_tls(secured: Broker, authority: trustme.CA) -> None:
    url = f"tls://localhost:{secured.ports['natss']}"
    client = await connected(url, tls=trusting(authority), tls_hostname="localhost", tls_handshake_first=True)
    await carries(client, "tls.first")
    await client.close()


def test_a_handshake_that_breaks_leaves_nobody_behind(secured: Broker) -> None:
    assert secured.app is not None
    server = secured.app.servers["nats"]
    before = len(server.connections)
    for rubbish in (b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" + bytes(600)):
        with socket.create_connection(("127.0.0.1", secured.nats_port), WAIT_S) as plain:
            plain.recv(4096)
            plain.sendall(rubbish)
    eventually(lambda: len(server.connections) <= before, "they are gone")


# -- WebSocket


async def test_nats_py_comes_in_by_websocket(broker: Broker) -> None:
    client = await connected(f"ws://127.0.0.1:{broker.ports['ws']}/nats")
    await carries(client, "by.ws")
    await client.close()


def test_frames_mean_nothing_and_text_is_taken(broker: Broker) -> None:
    with websocket(f"ws://127.0.0.1:{broker.ports['ws']}/nats") as socket_:
        assert socket_.recv(WAIT_S)[:5] == b"INFO "
        for piece in ('CONNECT {"verbose":false}\r\nSU', "B a 1\r\nPUB a 2\r\nh", b"i\r\nPING\r\n"):
            socket_.send(piece)
        came = b""
        while b"PONG" not in came or b"hi" not in came:
            part = socket_.recv(WAIT_S)
            came += part if isinstance(part, bytes) else part.encode()
        assert b"MSG a 1 2\r\nhi\r\n" in came


def test_other_paths_and_other_pages_are_refused(broker: Broker) -> None:
    for path, origin in (("/other", None), ("/nats", "https://elsewhere.example")):
        with pytest.raises(InvalidStatus):
            websocket(f"ws://127.0.0.1:{broker.ports['ws']}{path}", origin=origin)  # type: ignore[arg-type]


def test_without_nats_there_is_nothing_at_its_path() -> None:
    with Broker("listeners.nats_port=off") as broker, pytest.raises(InvalidStatus):
        websocket(f"ws://127.0.0.1:{broker.ports['ws']}/nats")
