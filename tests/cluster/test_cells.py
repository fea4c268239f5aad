"""Several cells: namespaces with an owner of their own, served by every broker, each failing over by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import paho.mqtt.client as mqtt
import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from paho.mqtt.enums import CallbackAPIVersion

from tests.cluster.kit import Cluster
from tests.cluster.load import KafkaPublisher, MqttPublisher, start_all
from tests.cluster.reading import judge
from tests.contract.postgres_server import PostgresServer

pytestmark = pytest.mark.timeout(300)  # of a busy machine
NAMESPACE = "tenant"


@pytest.fixture
def cluster(tmp_path: Path, postgres: PostgresServer) -> Iterator[Cluster]:
    with Cluster(tmp_path, postgres, "a", "b") as started:
        said = started.run("namespace", "add", NAMESPACE, "--cell", "new", by="b")
        assert f"in cell {NAMESPACE}" in said
        yield started


def test_two_namespaces_have_two_owners_and_one_that_is_killed_costs_the_other_nothing(cluster: Cluster) -> None:
    assert cluster.until(lambda: cluster.owner_of(NAMESPACE)) == "b", "it goes to the broker that owns nothing yet"
    first, second = start_all(cluster), start_all(cluster, NAMESPACE)
    for one in (*first, *second):
        one.wait_acked(10)
    sessions = [one.sessions for one in first]
    os.kill(cluster.process_of(2), signal.SIGKILL)
    for one in second:
        one.wait_acked(10)
    cluster["b"].kill()
    for one in second:
        one.wait_acked(10)
    assert cluster.owner_of(NAMESPACE) == "a"
    for one in (*first, *second):
        one.wait_acked(5)
        one.stop()
    assert [one.sessions for one in first] == sessions, "clients of the other namespace noticed nothing"
    assert judge([*first, *second], cluster["a"].ports) == {}


def test_users_of_a_cell_log_in_by_any_broker_and_see_only_their_namespace(cluster: Cluster) -> None:
    cluster.run("user", "add", "root", "--admin", "--password", "secret")
    login = "root:secret@"
    ports = [cluster[name].ports for name in ("a", "b")]
    for name, namespace in (("device", NAMESPACE), ("other", "/")):
        body = {"name": name, "password": "any", "namespace": namespace}
        post(ports[0], "/v1/users", body, login)
        rule = {"allow": True, "actions": ["publish", "consume", "create", "describe", "configure"], "filter": "#"}
        post(ports[1], f"/v1/users/{name}/rules", rule, login)
    publishers = start_all(cluster, NAMESPACE)
    for one in publishers:
        one.wait_acked(5)
        one.stop()
    assert judge(publishers, ports[0]) == {}, "read through the broker that does not own the cell"
    for each in ports:
        topics = get(each, f"/v1/topics?namespace={NAMESPACE}", login)["items"]
        assert "payments" in {row["name"] for row in topics}
        assert "payments" not in {row["name"] for row in get(each, "/v1/topics", login)["items"]}
        assert [row["name"] for row in get(each, "/v1/namespaces", login)["items"]] == ["/", NAMESPACE]
        scram = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "device"}
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{each['kafka']}", **scram, "sasl.password": "any"})
        assert "payments" in admin.list_topics(timeout=20).topics
        assert web_socket_receives(each, cluster)
    scram["sasl.username"] = "other"
    wrong = AdminClient({"bootstrap.servers": f"127.0.0.1:{ports[1]['kafka']}", **scram, "sasl.password": "wrong"})
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=3)


def web_socket_receives(ports: dict[str, int], cluster: Cluster) -> bool:
    """By WebSocket into the other cell and back."""
    got: list[bytes] = []
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"ws-{ports['ws']}", transport="websockets")
    client.ws_set_options(path="/mqtt")
    client.username_pw_set("device", "any")
    client.on_message = lambda _client, _data, message: got.append(message.payload)
    client.on_subscribe = lambda *_: client.publish("ws/one", b"hello", qos=1)
    client.on_connect = lambda *_: client.subscribe("ws/#", qos=1)
    client.connect("127.0.0.1", ports["ws"])
    client.loop_start()
    try:
        cluster.until(lambda: got)
    finally:
        client.disconnect()
        client.loop_stop()
    return got == [b"hello"]


def post(ports: dict[str, int], path: str, body: dict[str, Any], login: str = "") -> Any:
    return ask(ports, path, login, json.dumps(body).encode())


def get(ports: dict[str, int], path: str, login: str = "") -> Any:
    return ask(ports, path, login)


def ask(ports: dict[str, int], path: str, login: str, body: bytes | None = None) -> Any:
    import base64

    headers = {"content-type": "application/json"}
    if login:
        headers["authorization"] = "Basic " + base64.b64encode(login.rstrip("@").encode()).decode()
    try:
        with urlopen(Request(f"http://127.0.0.1:{ports['http']}{path}", body, headers), timeout=30) as answer:
            return json.load(answer)
    except HTTPError as error:
        raise AssertionError(f"{error.code}: {error.read().decode()}") from None


@pytest.mark.slow
def test_a_broker_that_joins_gets_a_cell_and_one_that_drains_keeps_none(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("one", "two"):
        cluster.run("namespace", "add", name, "--cell", "new")
    cells = {NAMESPACE, "one", "two"}
    cluster.until(lambda: all(cluster.owner_of(one) for one in cells))
    publishers = [
        kind(cluster, kind.protocol, name) for name in sorted(cells) for kind in (MqttPublisher, KafkaPublisher)
    ]
    for one in publishers:
        one.start()
    for one in publishers:
        one.wait_acked(5)
    joined = cluster.add("c")
    cluster.until(lambda: "c" in {cluster.owner_of(one) for one in cells})
    reason = cluster.ask("SELECT reason FROM cell WHERE owner = 'c'")["reason"]
    assert "it is moved to c" in reason
    assert "carries" in reason
    command = [sys.executable, "-m", "mainstem", "cluster", "drain", "b", "--cluster", cluster.dsn]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    cluster.until(lambda: {cluster.owner_of(one) for one in (*cells, "main")} <= {"a", "c"})
    for one in publishers:
        one.wait_acked(5)
        one.stop()
    assert joined.running
    assert judge(publishers, cluster["b"].ports) == {}, "read through the drained one"


@pytest.mark.slow
def test_a_cell_that_was_paused_acknowledges_nothing_when_it_goes_on(cluster: Cluster) -> None:
    publishers = start_all(cluster, NAMESPACE)
    for one in publishers:
        one.wait_acked(5)
    paused, front = cluster.process_of(2), cluster["b"]
    front.signal(signal.SIGSTOP)  # else it ends the process as soon as another broker owns the cell
    os.kill(paused, signal.SIGSTOP)
    cluster.until(lambda: cluster.owner_of(NAMESPACE) == "a")
    for one in publishers:
        one.wait_acked(5)
    os.kill(paused, signal.SIGCONT)
    cluster.until(lambda: psutil.Process(paused).status() == psutil.STATUS_ZOMBIE)
    front.signal(signal.SIGCONT)
    for one in publishers:
        one.wait_acked(5)
        one.stop()
    assert judge(publishers, cluster["b"].ports) == {}


@pytest.mark.slow
def test_a_process_that_hangs_is_replaced_by_its_broker_where_there_is_no_other(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    with Cluster(tmp_path, postgres, "a") as cluster:
        cluster.run("namespace", "add", NAMESPACE, "--cell", "new")
        publishers = start_all(cluster, NAMESPACE)
        for one in publishers:
            one.wait_acked(5)
        hung = cluster.process_of(2)
        os.kill(hung, signal.SIGSTOP)
        cluster.until(lambda: cluster.process_of(2) not in (0, hung))
        for one in publishers:
            one.wait_acked(5)
            one.stop()
        assert judge(publishers, cluster["a"].ports) == {}


@pytest.mark.slow
def test_a_namespace_that_is_removed_leaves_nothing_to_the_next_one_of_its_name(cluster: Cluster) -> None:
    publishers = start_all(cluster, NAMESPACE)
    for one in publishers:
        one.wait_acked(5)
        one.stop()
    cluster.run("namespace", "rm", NAMESPACE, "--with-data", "--yes")
    cluster.until(lambda: cluster.ask("SELECT count(*) AS n FROM place")["n"] == 0)
    cluster.run("namespace", "add", NAMESPACE, "--cell", "new")
    assert cluster.ask("SELECT count(*) AS n FROM cell")["n"] == 2, "the empty cell is used again"
    cluster.until(lambda: get(cluster["a"].ports, f"/v1/topics?namespace={NAMESPACE}")["items"] == [])


def test_a_namespace_that_is_removed_and_added_again_at_once_is_there(cluster: Cluster) -> None:
    ports = cluster["a"].ports
    assert get(ports, f"/v1/topics?namespace={NAMESPACE}")["items"] == []
    for _ in range(5):
        url = f"http://127.0.0.1:{ports['http']}/v1/namespaces/{NAMESPACE}"
        with urlopen(Request(url, method="DELETE"), timeout=30):
            pass
        post(ports, "/v1/namespaces", {"name": NAMESPACE, "cell": "new"})
        assert get(ports, f"/v1/topics?namespace={NAMESPACE}")["items"] == []
