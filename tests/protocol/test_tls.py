"""TLS on every protocol, with stock clients and a certificate authority of our own."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import httpx
import paho.mqtt.client as paho
import pika
import pytest
import trustme
from confluent_kafka.admin import AdminClient
from paho.mqtt.enums import CallbackAPIVersion

from mainstem.model.errors import ConfigError
from mainstem.server.settings import Tls
from mainstem.server.tls import make_context
from mainstem.testing import Broker

TLS_PORTS = tuple(f"listeners.{name}_port=0" for name in ("mqtts", "wss", "kafkas", "amqps", "natss", "https"))
WAIT_S = 30


class Files:
    """A certificate authority, and certificates it signed, as PEM files."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.folder = folder
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)
        self.certificate, self.key = self.issue("server", "localhost", "127.0.0.1")

    def issue(self, name: str, *identities: str) -> tuple[Path, Path]:
        made = self.authority.issue_cert(*identities)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return certificate, key

    @property
    def settings(self) -> tuple[str, ...]:
        return (*TLS_PORTS, f"tls.certificate={self.certificate}", f"tls.key={self.key}")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def broker(files: Files) -> Iterator[Broker]:
    with Broker(*files.settings) as broker:
        yield broker


def until(happened: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (found := happened()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found
    return found


def mqtt_receives(
    port: int, files: Files, *, transport: str = "tcp", certificate: tuple[Path, Path] | None = None
) -> bytes:
    """A retained message, published and received by paho over TLS."""
    client = paho.Client(CallbackAPIVersion.VERSION2, transport=transport)  # type: ignore[arg-type]
    own = {"certfile": str(certificate[0]), "keyfile": str(certificate[1])} if certificate else {}
    client.tls_set(ca_certs=str(files.ca), **own)  # type: ignore[arg-type]
    if transport == "websockets":
        client.ws_set_options(path="/mqtt")
    got: list[bytes] = []
    client.on_message = lambda _, __, message: got.append(message.payload)
    client.connect("localhost", port)
    client.loop_start()
    try:
        client.subscribe("tls/mqtt", qos=1)
        client.publish("tls/mqtt", b"over tls", qos=1, retain=True).wait_for_publish(WAIT_S)
        return bytes(until(lambda: got)[0])
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.parametrize(("listener", "transport"), [("mqtts", "tcp"), ("wss", "websockets")])
def test_paho_over_tls(broker: Broker, files: Files, listener: str, transport: str) -> None:
    assert mqtt_receives(broker.ports[listener], files, transport=transport) == b"over tls"


def test_pika_over_tls(broker: Broker, files: Files) -> None:
    options = pika.SSLOptions(ssl.create_default_context(cafile=str(files.ca)), "localhost")
    parameters = pika.ConnectionParameters("localhost", broker.ports["amqps"], ssl_options=options)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare("over-tls")
    channel.confirm_delivery()
    channel.basic_publish("", "over-tls", b"x" * 300_000)
    _, _, body = channel.basic_get("over-tls", auto_ack=True)
    assert body == b"x" * 300_000
    connection.close()


def test_confluent_kafka_over_tls(broker: Broker, files: Files) -> None:
    """Also that metadata names the port with TLS: else the client would go on with the plain one."""
    shared = {
        "bootstrap.servers": f"localhost:{broker.ports['kafkas']}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(files.ca),
        "broker.address.family": "v4",
    }
    producer = confluent_kafka.Producer(shared)
    failed: list[Any] = []
    for number in range(100):
        producer.produce("tls.kafka", str(number) * 1000, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(WAIT_S) == 0
    assert failed == [None] * 100
    consumer = confluent_kafka.Consumer({**shared, "group.id": "tls", "auto.offset.reset": "earliest"})
    consumer.subscribe(["tls.kafka"])
    got: list[Any] = []
    deadline = time.monotonic() + WAIT_S
    while len(got) < 100 and time.monotonic() < deadline:
        got += consumer.consume(100, 0.5)
    assert len(got) == 100
    brokers = consumer.list_topics(timeout=WAIT_S).brokers.values()
    consumer.close()
    assert {one.port for one in brokers} == {broker.ports["kafkas"]}


def test_the_console_over_tls(broker: Broker, files: Files) -> None:
    context = ssl.create_default_context(cafile=str(files.ca))
    with httpx.Client(base_url=f"https://localhost:{broker.ports['https']}", verify=context) as http:
        assert "<h1>Overview" in http.get("/").text
        origin = {"origin": f"https://localhost:{broker.ports['https']}"}
        assert http.post("/v1/messages", json={"topic": "a", "value": "x"}, headers=origin).status_code == 200
        foreign = {"origin": "https://elsewhere.example"}
        assert http.post("/v1/messages", json={"topic": "a", "value": "x"}, headers=foreign).status_code == 403


def test_kafka_tells_each_listeners_clients_a_port_of_their_own(files: Files) -> None:
    """Behind a proxy: who came by TLS must not be sent to the plain port, nor the other way round."""
    given = ("kafka.advertised_host=broker.example", "kafka.advertised_port=1111", "kafka.advertised_tls_port=2222")
    with Broker(*files.settings, *given) as own:
        for name, secure, told in (("kafka", {}, 1111), ("kafkas", {"security.protocol": "ssl"}, 2222)):
            settings = {"bootstrap.servers": f"localhost:{own.ports[name]}", "ssl.ca.location": str(files.ca), **secure}
            brokers = AdminClient({**settings, "log_level": 0}).list_topics(timeout=WAIT_S).brokers.values()
            assert [(str(one.host), one.port) for one in brokers] == [("broker.example", told)]


@pytest.mark.parametrize(("scheme", "topic"), [("mqtts", "tls/cli/a"), ("kafkas", "tls.cli.b"), ("amqps", "tls.cli.c")])
def test_pub_and_sub_over_tls(broker: Broker, files: Files, scheme: str, topic: str) -> None:
    url = f"{scheme}://localhost:{broker.ports[scheme]}/{topic}"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mainstem", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert run("pub", url, scheme, "--ca", str(files.ca)).returncode == 0
    said = run("sub", url, "--from", "earliest", "--count", "1", "--ca", str(files.ca))
    assert said.stdout == f"{scheme}\n", said.stderr
    refused = run("pub", url, "x")
    assert refused.returncode == 1
    assert "not trusted" in refused.stderr
    assert "--ca FILE" in refused.stderr
    assert run("pub", url, scheme, "--insecure").returncode == 0


def test_who_speaks_no_tls_is_cut_off_and_hurts_nobody(broker: Broker, files: Files) -> None:
    with socket.create_connection(("127.0.0.1", broker.ports["mqtts"])) as plain:
        plain.sendall(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
        plain.settimeout(WAIT_S)
        while plain.recv(1024):  # an alert, then the end
            pass
    assert mqtt_receives(broker.ports["mqtts"], files) == b"over tls"


def test_with_a_client_ca_only_clients_with_a_certificate_get_in(files: Files) -> None:
    with Broker(*files.settings, f"tls.client_ca={files.ca}") as broker:
        own = files.issue("client", "device-1")
        assert mqtt_receives(broker.ports["mqtts"], files, certificate=own) == b"over tls"
        context = ssl.create_default_context(cafile=str(files.ca))
        with pytest.raises((httpx.HTTPError, ssl.SSLError)):
            httpx.get(f"https://localhost:{broker.ports['https']}/livez", verify=context)
        context.load_cert_chain(*own)
        assert httpx.get(f"https://localhost:{broker.ports['https']}/livez", verify=context).status_code == 200


def test_hangup_shows_the_new_certificate_and_a_bad_one_changes_nothing(files: Files, tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    shutil.copy(files.certificate, certificate)
    shutil.copy(files.key, key)
    ports = [part for name in ("mqtt", "ws", "kafka", "amqp", "nats", "http") for part in (f"--{name}-port", "0")]
    given = [*TLS_PORTS, f"tls.certificate={certificate}", f"tls.key={key}"]
    flags = [part for one in given for part in ("--set", one)]
    command = [sys.executable, "-m", "mainstem", "serve", "--data", str(tmp_path / "data"), *ports, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        port = 0
        while not port:
            line = process.stdout.readline()
            assert line
            if line.split()[:1] == ["mqtts"]:
                port = int(line.rpartition(":")[2])

        def shown() -> bytes:
            context = ssl.create_default_context(cafile=str(files.ca))
            with (
                socket.create_connection(("localhost", port)) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as one,
            ):
                return bytes(one.getpeercert(binary_form=True) or b"")

        def hang_up(wanted: str) -> None:
            process.send_signal(signal.SIGHUP)
            assert process.stderr is not None
            while wanted not in process.stderr.readline():
                pass

        first = shown()
        certificate.write_text("nonsense")
        hang_up("the old one stays")
        assert shown() == first
        newer = files.issue("newer", "localhost", "127.0.0.1")
        shutil.copy(newer[0], certificate)
        shutil.copy(newer[1], key)
        hang_up("reloaded")
        assert shown() != first
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_without_a_certificate_there_is_no_tls_listener() -> None:
    with Broker() as broker:
        assert set(broker.ports) == {"mqtt", "ws", "kafka", "amqp", "nats", "http"}


def test_plain_listeners_can_be_switched_off(files: Files) -> None:
    off = [f"listeners.{name}_port=off" for name in ("mqtt", "ws", "kafka", "amqp", "nats", "http")]
    with Broker(*files.settings, *off) as broker:
        assert set(broker.ports) == {"mqtts", "wss", "kafkas", "amqps", "natss", "https"}
        assert mqtt_receives(broker.ports["mqtts"], files) == b"over tls"


def test_wrong_files_are_told_with_what_is_wrong(files: Files, tmp_path: Path) -> None:
    other, other_key = files.issue("other", "elsewhere")
    nothing = tmp_path / "empty.pem"
    nothing.write_text("")
    good = str(files.certificate)
    for tls, told in (
        (Tls(certificate=str(tmp_path / "none.pem")), "cannot be read"),
        (Tls(certificate=good), "cannot be used"),
        (Tls(certificate=good, key=str(other_key)), "does not belong to the certificate"),
        (Tls(certificate=str(nothing), key=str(files.key)), "cannot be used"),
        (Tls(certificate=good, key=str(files.key), client_ca=str(nothing)), "holds no certificate"),
        (Tls(key=str(files.key)), "no certificate"),
    ):
        with pytest.raises(ConfigError, match=told) as raised:
            make_context(tls)
        assert raised.value.fix
    assert other.exists()
