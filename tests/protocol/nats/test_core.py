"""Core NATS with nats-py: publish and subscribe, queue groups, requests, limits, rights."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import nats
import nats.errors
import pytest

from mainstem.testing import Broker
from tests.crossing.commands import eventually, http, mainstem
from tests.protocol.mqtt.raw import Raw as Mqtt
from tests.protocol.nats.raw import Raw

WAIT_S = 10


def unique(name: str) -> str:
    return f"{name}{uuid.uuid4().hex[:8]}"


async def connected(url: str, **options: Any) -> Any:
    return await nats.connect(url, connect_timeout=WAIT_S, allow_reconnect=False, **options)


async def test_what_is_published_arrives_with_its_headers_in_order(url: str) -> None:
    subject, client = unique("a."), await connected(url)
    subscription = await client.subscribe(subject)
    for n in range(100):
        await client.publish(subject, b"%d" % n, headers={"N": str(n)})
    got = [await subscription.next_msg(WAIT_S) for _ in range(100)]
    assert [(one.subject, one.data, one.headers) for one in got] == [
        (subject, b"%d" % n, {"N": str(n)}) for n in range(100)
    ]
    await client.close()


async def test_wildcards_mean_one_token_or_one_and_more(url: str) -> None:
    root, client = unique("w"), await connected(url)
    heard: dict[str, list[str]] = {"*": [], ">": []}
    for wildcard, into in heard.items():
        await client.subscribe(f"{root}.{wildcard}", cb=noting(into, "subject"))
    for subject in (root, f"{root}.a", f"{root}.a.b"):
        await client.publish(subject, b"")
    await client.flush()
    await _until(lambda: len(heard[">"]) == 2)
    assert heard == {"*": [f"{root}.a"], ">": [f"{root}.a", f"{root}.a.b"]}
    await client.close()


def noting(into: list[str], what: str = "data") -> Any:
    async def note(message: Any) -> None:
        found = getattr(message, what)
        into.append(found.decode() if isinstance(found, bytes) else found)

    return note


async def _until(condition: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_each_message_goes_to_one_member_of_a_queue_group(url: str) -> None:
    subject, clients = unique("q."), [await connected(url) for _ in range(3)]
    heard: list[list[str]] = [[] for _ in clients]
    for client, into in zip(clients, heard, strict=True):
        await client.subscribe(subject, queue="workers", cb=noting(into))
        await client.flush()
    everyone: list[str] = []
    await clients[0].subscribe(subject, cb=noting(everyone))
    await clients[0].flush()
    for n in range(300):
        await clients[1].publish(subject, b"%d" % n)
    await clients[1].flush()
    await _until(lambda: sum(map(len, heard)) == 300 and len(everyone) == 300)
    assert sorted(int(n) for one in heard for n in one) == list(range(300))
    assert all(heard), "each member got some"
    for client in clients:
        await client.close()


async def test_a_request_is_answered_and_one_to_nobody_fails_at_once(url: str) -> None:
    subject, client = unique("r."), await connected(url)

    async def answer(message: Any) -> None:
        await message.respond(b"re: " + message.data)

    await client.subscribe(subject, cb=answer)
    for _ in range(3):
        assert (await client.request(subject, b"hello", timeout=WAIT_S)).data == b"re: hello"
    assert (await client.request(subject, b"old", timeout=WAIT_S, old_style=True)).data == b"re: old"
    for nobody in (unique("nobody."), "$JS.API.CONSUMER.MSG.NEXT.none.none"):
        with pytest.raises(nats.errors.NoRespondersError):
            await client.request(nobody, b"", timeout=WAIT_S)
    assert b'"account"' in (await client.request("$SYS.REQ.USER.INFO", b"", timeout=WAIT_S)).data
    await client.close()


async def test_unsubscribing_after_a_number_counts_from_the_subscription(url: str) -> None:
    subject, client = unique("u."), await connected(url)
    subscription = await client.subscribe(subject)
    await client.publish(subject, b"1")
    assert (await subscription.next_msg(WAIT_S)).data == b"1"
    await subscription.unsubscribe(limit=3)
    for n in range(2, 6):
        await client.publish(subject, b"%d" % n)
    assert [(await subscription.next_msg(WAIT_S)).data for _ in range(2)] == [b"2", b"3"]
    with pytest.raises(nats.errors.Error):
        await subscription.next_msg(0.3)
    await client.close()


async def test_no_echo_means_not_its_own(url: str) -> None:
    subject, quiet, other = unique("e."), await connected(url, no_echo=True), await connected(url)
    heard: list[str] = []
    await quiet.subscribe(subject, cb=noting(heard))
    await quiet.flush()
    await quiet.publish(subject, b"own")
    await quiet.flush()
    await other.publish(subject, b"other's")
    await _until(lambda: bool(heard))
    assert heard == ["other's"]
    await quiet.close()
    await other.close()


async def test_inboxes_are_never_stored_and_other_subjects_are(broker: Broker, url: str) -> None:
    subject, client = unique("stored."), await connected(url)
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    await client.publish(inbox, b"live")
    assert (await subscription.next_msg(WAIT_S)).data == b"live"
    await client.publish(subject, b"kept", headers={"A": "b"})
    await client.flush()
    topic = subject.replace(".", "/")

    def kept() -> list[Any]:
        return list(http(broker, "GET", "/v1/messages?filter=%23&from=earliest&limit=500")["items"])

    await asyncio.to_thread(eventually, lambda: any(row["topic"] == topic for row in kept()), "it is stored")
    assert not [row for row in kept() if row["topic"].startswith("_INBOX")]
    await client.close()


async def test_a_slow_subscriber_is_served_from_the_log_and_misses_nothing(url: str) -> None:
    subject, slow, fast = unique("slow."), await connected(url), await connected(url)
    go_on, heard = asyncio.Event(), []

    async def take(message: Any) -> None:
        await go_on.wait()
        heard.append(int.from_bytes(message.data[:4], "big"))

    await slow.subscribe(subject, cb=take, pending_bytes_limit=1 << 30, pending_msgs_limit=1 << 20)
    await slow.flush()
    for n in range(200):
        await fast.publish(subject, n.to_bytes(4, "big") + bytes(64 << 10))
        if n % 20 == 0:
            await fast.flush()
    await fast.flush()
    go_on.set()
    await _until(lambda: len(heard) == 200)
    assert heard == list(range(200))
    await slow.close()
    await fast.close()


async def test_who_leaves_live_only_messages_unread_is_cut_off_and_nobody_else(broker: Broker, url: str) -> None:
    inbox, sender, reader = f"_INBOX.{unique('')}", await connected(url), await connected(url)
    before = http(broker, "GET", "/varz")["slow_consumers"]
    count, payload = 120, bytes(900_000)  # 64 MiB may wait, and what sockets hold
    heard: list[int] = []

    async def take(message: Any) -> None:
        heard.append(len(message.data))

    with Raw(broker.nats_port) as slow:
        slow.send(f"SUB {inbox} 1\r\n".encode())
        assert slow.synced() == []
        await reader.subscribe(inbox, cb=take)
        await reader.flush()
        for _ in range(count):
            await sender.publish(inbox, payload)
            await sender.flush()
        await _until(lambda: len(heard) == count)
        assert len(await asyncio.to_thread(slow.rest)) < count * len(payload)  # and then the end
    assert await asyncio.to_thread(lambda: http(broker, "GET", "/varz")["slow_consumers"]) == before + 1
    await sender.close()
    await reader.close()


async def test_live_only_subjects_are_for_nats_alone(broker: Broker, url: str) -> None:
    client = await connected(url)
    with Mqtt.connected(broker.mqtt_port) as other:
        other.subscribe(("#", 0), ("+/x", 0), ("_INBOX/#", 0), ("$JS/#", 0))
        for subject in ("_INBOX.x", "_R_.x", "$JS.x", "$SYS.x", "live.end"):
            await client.publish(subject, subject.encode())
        await client.flush()
        assert b"live.end" in (await asyncio.to_thread(other.packet))[1]  # the first that came
    await client.close()


async def test_who_may_do_what(tmp_path: Any) -> None:
    with Broker(data=tmp_path / "data", engine="segment") as broker:
        await asyncio.to_thread(http, broker, "POST", "/v1/users", {"name": "boss", "password": "b", "admin": True})
        for body in ({"name": "dev", "password": "secret"},):
            await asyncio.to_thread(_as_boss, broker, "POST", "/v1/users", body)
        for action in ("publish", "consume"):
            rule = {"actions": [action], "filter": "mine/#", "allow": True}
            await asyncio.to_thread(_as_boss, broker, "POST", "/v1/users/dev/rules", rule)
        errors: list[str] = []

        async def note(error: Exception) -> None:
            errors.append(str(error))

        for wrong in ({}, {"user": "dev", "password": "wrong"}, {"token": "dev:wrong"}):
            with pytest.raises((nats.errors.Error, OSError)):
                await connected(broker.nats_url, max_reconnect_attempts=0, **wrong)
        for right in ({"user": "dev", "password": "secret"}, {"token": "dev:secret"}):
            client = await connected(broker.nats_url, error_cb=note, **right)
            subscription = await client.subscribe("mine.>")
            await client.publish("mine.a", b"1")
            assert (await subscription.next_msg(WAIT_S)).data == b"1"
            await client.publish("other.a", b"2")
            await client.subscribe("other.>")
            await client.subscribe(">")
            await client.flush()
            await client.close()
        assert [error for error in errors if 'publish to "other.a"' in error.lower()]
        assert [error for error in errors if 'subscription to "other.>"' in error.lower()]


def _as_boss(broker: Broker, method: str, path: str, body: Any) -> Any:
    import base64
    import json
    import urllib.request

    login = base64.b64encode(b"boss:b").decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {login}"}
    asked = urllib.request.Request(broker.http_url + path, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
        return json.loads(answer.read())


def test_the_command_line_publishes_and_subscribes(broker: Broker) -> None:
    import subprocess
    import sys

    subject = unique("cli.")
    address = f"nats://{broker.host}:{broker.nats_port}/{subject}"
    waiting = subprocess.Popen(
        [sys.executable, "-m", "mainstem", "sub", address, "-n", "1"], stdout=subprocess.PIPE, text=True
    )
    assert broker.app is not None
    namespace = broker.app.broker.namespace("/")
    eventually(lambda: namespace.listened(subject.replace(".", "/").encode()), "it is subscribed")
    mainstem(broker, "pub", address, "21.5")
    said, _ = waiting.communicate(timeout=30)
    assert "21.5" in said
