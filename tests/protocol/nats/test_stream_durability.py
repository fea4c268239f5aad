"""When a stream's publishes are acked: by its metadata, the command and HTTP, at its creation and while it is used."""

from __future__ import annotations

import asyncio
import json
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import StreamConfig, StreamSource
from nats.js.errors import APIError

from mainstem.testing import Broker
from mainstem.testing.process import BrokerProcess
from tests.crossing.commands import http, mainstem
from tests.protocol.nats.test_jetstream import connected, unique

WORD = "mainstem-durability"


def in_force(broker: Broker, name: str) -> str:
    """As the log itself has it."""
    assert broker.app is not None
    return next(str(one.log.durability) for one in broker.app.broker.streams.by_log.values() if one.name == name)


async def run(broker: Any, *arguments: str) -> str:
    return await asyncio.to_thread(mainstem, broker, *arguments)


async def ask(broker: Any, method: str, path: str, body: Any = None) -> Any:
    return await asyncio.to_thread(http, broker, method, path, body)


async def refused(broker: Any, method: str, path: str, body: Any = None) -> int:
    with pytest.raises(urllib.error.HTTPError) as failure:
        await ask(broker, method, path, body)
    code = failure.value.code
    failure.value.close()
    return code


async def test_a_streams_metadata_says_it_also_by_an_update(broker: Broker) -> None:
    client, name = await connected(broker.nats_url), unique("kept")
    js = client.jetstream()

    def config(durability: str) -> StreamConfig:
        return StreamConfig(name=name, subjects=[name], metadata={WORD: durability} if durability else None)

    with pytest.raises(APIError) as failure:
        await js.add_stream(config("sometimes"))
    assert failure.value.err_code == 10052
    await js.add_stream(config("interval:250"))
    assert in_force(broker, name) == "interval:250"
    for said, holds in (("os", "os"), ("os", "os"), ("none", "none"), ("sync", "sync"), ("os", "os"), ("", "sync")):
        await js.update_stream(config(said))
        assert in_force(broker, name) == holds
        assert (await js.publish(name, b"x")).stream == name
    with pytest.raises(APIError) as failure:
        await js.update_stream(config("sometimes"))
    assert failure.value.err_code == 10052
    assert in_force(broker, name) == "sync"
    assert (await js.stream_info(name)).state.messages == 6
    await client.close()


async def test_the_command_shows_and_changes_it_while_clients_publish(broker: Broker) -> None:
    client, name = await connected(broker.nats_url), unique("s")
    js = client.jetstream()
    config = StreamConfig(name=name, subjects=[f"{name}.>"], metadata={WORD: "os"})
    await js.add_stream(config)
    published = 0
    for durability in ("sync", "interval:20", "none", "sync"):
        acks = [asyncio.create_task(js.publish(f"{name}.{n}", b"x")) for n in range(50)]
        assert f"durability {durability}" in await run(broker, "stream", "alter", name, "--durability", durability)
        published += len(await asyncio.gather(*acks))
        assert in_force(broker, name) == durability
        assert json.loads(await run(broker, "stream", "describe", name, "--json"))["durability"] == durability
    rows = [json.loads(line) for line in (await run(broker, "stream", "ls", "--json")).splitlines()]
    assert [(row["durability"], row["messages"]) for row in rows if row["name"] == name] == [("sync", published)]
    await js.add_stream(config)  # a client that declares it again is not refused, and changes nothing
    config.max_msgs = 1_000
    await js.update_stream(config)  # nor does an update that says of it what it said before
    assert in_force(broker, name) == "sync"
    await client.close()


async def test_a_stream_is_created_with_it_by_the_command_and_by_http(broker: Broker) -> None:
    client, name = await connected(broker.nats_url), unique("c")
    js = client.jetstream()
    said = await run(broker, "stream", "create", name, "--subject", f"{name}.>", "--durability", "os")
    assert said == f"created stream {name} of {name}.>, durability os\n"
    assert in_force(broker, name) == "os"
    assert (await js.publish(f"{name}.1", b"x")).seq == 1
    await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))  # it is what a client would have made
    other = await ask(broker, "POST", "/v1/streams", {"name": f"{name}2", "storage": "memory"})
    assert (other["subjects"], other["storage"], other["engine"]) == ([f"{name}2"], "memory", "memory")
    assert other["durability"] == "sync"
    for body, code in (
        ({"name": name}, 409),
        ({"name": "o", "subjects": [f"{name}.x"]}, 400),  # another stream's
        ({"name": "a.b"}, 400),
        ({"name": "o", "subjects": [5]}, 400),
        ({"name": "o", "durability": "sometimes"}, 400),
        ({"name": "o", "storage": "tape"}, 400),
    ):
        assert await refused(broker, "POST", "/v1/streams", body) == code, body
    assert await refused(broker, "PATCH", f"/v1/streams/{name}", {"durability": "sometimes"}) == 400
    assert await refused(broker, "PATCH", "/v1/streams/none", {"durability": "os"}) == 404
    assert in_force(broker, name) == "os"
    await client.close()


async def test_a_mirror_has_its_origins(broker: Broker) -> None:
    client, name = await connected(broker.nats_url), unique("m")
    js = client.jetstream()
    await js.add_stream(name=name, subjects=[name])
    mirror = StreamConfig(name=f"{name}v", mirror=StreamSource(name=name))
    await js.add_stream(mirror)
    assert (await ask(broker, "GET", f"/v1/streams/{name}v"))["mirror_of"] == name
    assert await refused(broker, "PATCH", f"/v1/streams/{name}v", {"durability": "os"}) == 400
    mirror.metadata = {WORD: "os"}
    with pytest.raises(APIError, match="a mirror here is a view"):
        await js.update_stream(mirror)
    await ask(broker, "PATCH", f"/v1/streams/{name}", {"durability": "os"})
    assert (await ask(broker, "GET", f"/v1/streams/{name}v"))["durability"] == "os"
    await client.close()


@pytest.mark.slow
async def test_it_outlives_a_kill_and_a_clean_stop(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = await connected(broker.nats_url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="a", subjects=["a"], metadata={WORD: "os"}))
        await js.add_stream(StreamConfig(name="b", subjects=["b"]))
        await js.update_stream(StreamConfig(name="b", subjects=["b"], metadata={WORD: "interval:50"}))
        await run(broker, "stream", "alter", "a", "--durability", "sync")
        await client.close()
        for end in (broker.kill, broker.stop):
            end()
            broker.start()
            rows = (await ask(broker, "GET", "/v1/streams"))["items"]
            assert [(row["name"], row["durability"]) for row in rows] == [("a", "sync"), ("b", "interval:50")]
