"""`mainstem user kept`: rules that Kafka's tools made for names that no user has; adding the user tells of them."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from mainstem.testing import BrokerProcess
from tests.cli.commands import run, said


def test_they_are_told_when_the_user_is_added_also_while_the_broker_is_stopped(tmp_path: Path) -> None:
    data = tmp_path / "data"
    said("user", "add", "root", "--admin", "--data", str(data), "--password", "secret")
    with BrokerProcess(data) as broker:
        url = broker.http_url.replace("://", "://root:secret@")
        assert "no rules are kept" in run("user", "kept", "--url", url).stderr
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        login |= {"sasl.username": "root", "sasl.password": "secret"}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **login})
        wanted = [
            AclBinding(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                AclOperation.READ,
                AclPermissionType.ALLOW,
            )
            for user in ("ann", "bob", "eve")
            for topic in ("a", "b")
        ]
        for future in admin.create_acls(wanted).values():
            future.result(20)
        listed = said("user", "kept", "--url", url)
        assert [line.split()[:3] for line in listed.splitlines() if line.startswith(("ann", "bob", "eve"))] == [
            [user, "/", "2"] for user in ("ann", "bob", "eve")
        ]
        added = said("user", "add", "ann", "--password", "pass", "--url", url)
        assert "it has 2 rules that Kafka's tools made for its name" in added
        assert "removed" in said("user", "rm", "eve", "--yes", "--url", url), "no user has that name, and its rules go"
        assert run("user", "rm", "eve", "--yes", "--url", url).returncode == 1
    added = said("user", "add", "bob", "--password", "pass", "--data", str(data))
    assert "it has 2 rules" in added
    with BrokerProcess(data) as broker:
        url = broker.http_url.replace("://", "://root:secret@")
        assert '"filter": "b"' in said("user", "describe", "bob", "--json", "--url", url)
        assert said("user", "kept", "--json", "--url", url) == ""
