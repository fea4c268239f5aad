"""Adding a protocol or an engine is one folder and one entry in a table: a toy of each is added here, and all of the house
knows it.

Options and settings are derived from the tables when their modules load, so each toy runs in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOY_PROTOCOL = """
import asyncio, json, socket, sys, urllib.request
from mainstem.server import protocols as table

class ToyServer:  # the toy answers each line with itself in capitals
    pass

import types
toy = types.ModuleType("toy")
sys.modules["toy"] = toy
door = table.Door("toy", "Toy", 4000, 4001, "toy:ToyServer", "A toy.", "toy {port}", "toys {port}")
spell = lambda name: name.decode().upper()
table.PROTOCOLS += (table.Protocol("toy", (door,), spell, "toy:ToyClient", (), "toy://localhost/a", str.encode),)

from mainstem.protocols.connection import Connection, Server

class ToyConnection(Connection):
    def on_data(self, data):
        self.transport.write(data.upper())
        return True

class ToyServer(Server):
    def __init__(self, broker, config):
        super().__init__(broker.ticker, connections_max=config.limits.connections_max)

    def make_connection(self):
        return ToyConnection(self)

class ToyClient:
    def __init__(self, address):
        self.address = address

toy.ToyServer, toy.ToyClient = ToyServer, ToyClient

from mainstem.server.cli.run import serve
from mainstem.server.clients import open_client, read_address
from mainstem.server.listeners import LABELS, LISTENERS
from mainstem.server.settings import Listeners
from mainstem.server.tls import TWINS
from mainstem.testing import Broker

assert "--toy-port" in {name for option in serve.params for name in option.opts}
assert Listeners().toy_port == 4000 and Listeners().toys_port == 4001
assert TWINS["toys"] == "toy" and LABELS["toy"] == "Toy" and LISTENERS["toy"] == "toy_port"
assert isinstance(open_client(read_address("toy://localhost/a")), ToyClient)
with Broker() as broker:
    with socket.create_connection(("127.0.0.1", broker.ports["toy"])) as one:
        one.sendall(b"hello")
        assert one.recv(100) == b"HELLO"
        get = lambda path: urllib.request.urlopen(broker.http_url + path).read().decode()
        body = json.dumps({"topic": "a/b", "value": "1"}).encode()
        asked = urllib.request.Request(broker.http_url + "/v1/messages", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(asked).read()
        assert json.loads(get("/v1/topics/a%2Fb"))["spellings"]["toy"] == "A/B"
        assert 'mainstem_connections{protocol="toy"} 1' in get("/metrics")
        assert [row["protocol"] for row in json.loads(get("/v1/connections"))["items"]] == ["toy"]
        assert f"toy {broker.ports['toy']}" in get("/")
print("known everywhere")
"""

TOY_ENGINE = """
import json, urllib.request
from mainstem.storage import engines
from mainstem.storage.memory import MemoryEngine

class ToyEngine(MemoryEngine):
    pass

engines.ENGINES["toy"] = engines.EngineKind(
    lambda directory, log_id, options: ToyEngine(log_id),
    on_disk=False, has_segments=False, colour="http", lies_in=lambda directory, names: False,
)

from mainstem.broker.topics.policy import Policy
from mainstem.server.cli.topics import topic
from mainstem.testing import Broker

create = topic.commands["create"]
assert "toy" in next(option for option in create.params if option.name == "engine").type.choices
assert Policy(engine="toy").engine == "toy"
with Broker("policies.a/#.engine=toy") as broker:
    body = json.dumps({"topic": "a/b", "value": "1"}).encode()
    asked = urllib.request.Request(broker.http_url + "/v1/messages", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(asked).read()
    get = lambda path: json.loads(urllib.request.urlopen(broker.http_url + path).read())
    assert [row["value"] for row in get("/v1/messages?topic=a/b&from=earliest")["items"]] == ["1"]
    logs = broker.app.broker.logs.by_id.values()
    assert any(isinstance(log.engine, ToyEngine) and not log.on_disk for log in logs)
print("known everywhere")
"""


def _run(script: str, tmp_path: Path) -> None:
    file = tmp_path / "toy_script.py"
    file.write_text(script)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "known everywhere", done.stderr


def test_a_toy_protocol_is_known_everywhere(tmp_path: Path) -> None:
    _run(TOY_PROTOCOL, tmp_path)


def test_a_toy_engine_is_known_everywhere(tmp_path: Path) -> None:
    _run(TOY_ENGINE, tmp_path)


def test_no_module_asks_for_an_engine_by_name() -> None:
    source = Path(__file__).resolve().parents[3] / "src/mainstem"
    asking = [
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if any(f'{sign} "{name}"' in file.read_text() for sign in ("==", "!=") for name in ("memory", "rocksdb"))
    ]
    assert asking == []
