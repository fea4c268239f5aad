"""Guesses wait longer and longer, in every protocol, and nobody else waits with the guesser."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Iterator

import httpx
import pytest

from mainstem.protocols.kafka.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from mainstem.testing import Broker
from tests.protocol.kafka.raw import RawClient
from tests.protocol.mqtt.raw import Raw, connect_packet
from tests.users import ANN, ROOT, add_users

GUESSES = 40


@pytest.fixture
def guarded() -> Iterator[Broker]:
    with Broker() as broker:
        add_users(broker)
        yield broker


def scram_guess(broker: Broker, user: str, password: str) -> tuple[int, str]:
    """(error code, message) of a whole SCRAM-SHA-256 exchange."""
    with RawClient(broker) as client:
        assert client.ask("SaslHandshake", 1, SaslHandshakeRequest(mechanism="SCRAM-SHA-256")).error_code == 0
        bare = f"n={user},r=abc"
        first = client.ask("SaslAuthenticate", 2, SaslAuthenticateRequest(auth_bytes=f"n,,{bare}".encode()))
        if first.error_code:
            return first.error_code, first.error_message
        server = first.auth_bytes.decode()
        found = re.fullmatch("r=(.*),s=(.*),i=(.*)", server)
        assert found is not None
        nonce, salt, rounds = found.groups()
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(rounds))
        key = hmac.digest(salted, b"Client Key", "sha256")
        final = f"c=biws,r={nonce}"
        signature = hmac.digest(hashlib.sha256(key).digest(), f"{bare},{server},{final}".encode(), "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
        last = client.ask("SaslAuthenticate", 2, SaslAuthenticateRequest(auth_bytes=f"{final},p={proof}".encode()))
        return last.error_code, last.error_message or ""


def test_scram_guesses_wait(guarded: Broker) -> None:
    answers = [scram_guess(guarded, "root", f"guess {n}") for n in range(GUESSES)]
    assert all(code for code, _ in answers)
    assert sum("wait" in message for _, message in answers) >= GUESSES - 15
    code, message = scram_guess(guarded, *ROOT)
    assert code and "wait" in message, "the right password must not tell itself apart while it waits"
    assert scram_guess(guarded, *ANN)[0] == 0, "another user at the same address was locked out"


def test_http_guesses_lock_out_nobody_else(guarded: Broker) -> None:
    with httpx.Client(base_url=guarded.http_url) as http:
        answers = [http.get("/v1/topics", auth=("root", f"guess {n}")).status_code for n in range(GUESSES)]
        assert set(answers) == {401, 503}
        assert http.get("/v1/topics", auth=ANN).status_code in (200, 403)


def test_a_guesser_of_many_names_locks_out_nobody(guarded: Broker) -> None:
    with httpx.Client(base_url=guarded.http_url) as http:
        for n in range(30):
            assert http.get("/v1/topics", auth=(f"nobody{n}", "guess")).status_code == 401
        assert http.get("/v1/topics", auth=ROOT).status_code == 200


def test_the_wait_ends(guarded: Broker) -> None:
    """It grows from a second on: soon after the tenth failure the right password is let in."""
    for n in range(10):
        with Raw(guarded.mqtt_port) as client:
            client.send(connect_packet("c", username="root", password=f"guess {n}".encode()))
            assert client.socket.recv(4)[3] != 0
    deadline = time.monotonic() + 20
    while True:
        with Raw(guarded.mqtt_port) as client:
            client.send(connect_packet("c", username="root", password=b"secret"))
            if client.socket.recv(4)[3] == 0:
                return
        assert time.monotonic() < deadline, "locked out"
        time.sleep(0.2)
