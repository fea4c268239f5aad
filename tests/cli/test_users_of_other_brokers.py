"""`mainstem user import`: passwords that mosquitto and RabbitMQ kept go on working, with Kafka's SCRAM from then on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mainstem.testing import Broker
from tests.cli.commands import run, said
from tests.security.knocking import KNOCKS, kafka
from tests.unit.broker.test_identity import RABBIT
from tests.users import ROOT, add_users


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto_passwd is not installed")
def test_users_of_mosquitto_and_rabbitmq_keep_their_passwords(tmp_path: Path) -> None:
    passwords, definitions = tmp_path / "passwd", tmp_path / "definitions.json"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(passwords), "mia", "her password"], check=True)
    definitions.write_text(RABBIT)
    with Broker() as broker:
        add_users(broker)
        url = broker.http_url.replace("://", "://{}:{}@".format(*ROOT))
        said("namespace", "add", "shop", "--url", url)
        said("namespace", "add", "lab", "--url", url)
        assert "added 1 user" in said("user", "import", str(passwords), "--namespace", "shop", "--url", url)
        again = run("user", "import", str(passwords), "--url", url)
        assert again.returncode == 1 and "mia: user mia exists" in again.stderr
        said("user", "allow", "mia", "publish", "create", "a/#", "--url", url)
        assert not kafka(broker, "a/1", "mia", "her password", mechanism="SCRAM-SHA-256")
        assert not KNOCKS["mqtt"](broker, "a/1", "mia", "another")
        assert KNOCKS["mqtt"](broker, "a/1", "mia", "her password")
        assert kafka(broker, "a/1", "mia", "her password", mechanism="SCRAM-SHA-256")
        done = run("user", "import", str(definitions), "--url", url)
        assert done.returncode == 0 and "added 3 users" in done.stdout
        assert "ann2: no rule was made for write" in done.stderr
        assert "lab" in said("user", "describe", "ann2", "--url", url)
        assert KNOCKS["amqp"](broker, "a/1", "bob", "pw")
        assert not KNOCKS["amqp"](broker, "a/1", "ann2", "pw", vhost="shop")  # in, but may not write
