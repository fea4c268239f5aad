"""How a store is reached: whose credentials are used, and which headers are sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from mainstem.model.errors import ConfigError
from mainstem.storage.tier.store import ObjectStore, StoreSettings

ROLE = "/latest/meta-data/iam/security-credentials/"


class Told(BaseHTTPRequestHandler):
    """Answers every PUT, and keeps its headers. It is the metadata service of a cloud's machine, too, which has a role."""

    seen: list[dict[str, str]]

    def do_GET(self) -> None:
        until = (datetime.now(UTC) + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ")
        keys = {"AccessKeyId": "KEYOFTHEROLE", "SecretAccessKey": "secret", "Token": "token", "Expiration": until}
        found = {ROLE: "a-role", f"{ROLE}a-role": json.dumps({"Code": "Success", "Type": "AWS-HMAC", **keys})}
        self.answer(found.get(self.path, "").encode())

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/latest/api/token":
            self.answer(b"a token of the metadata service")
            return
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        self.answer(b"")

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    Told.seen = []
    server = HTTPServer(("127.0.0.1", 0), Told)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(autouse=True)
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    (tmp_path / "config").write_text("[profile mine]\nregion = eu-south-9\n")
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = DEFAULTKEY\naws_secret_access_key = s%cret\n"
        "[mine]\naws_access_key_id = MYKEY\naws_secret_access_key = s%cret\n"
    )
    return tmp_path


def signer(endpoint: str, **settings: str) -> str:
    ObjectStore(StoreSettings("s3://bucket/x", endpoint, **settings)).put("key", b"data")  # type: ignore[arg-type]
    return Told.seen[-1]["authorization"]


def test_credentials_come_from_the_environment_else_from_the_profile(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Credential=DEFAULTKEY/" in signer(endpoint)
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert "Credential=MYKEY/" in signer(endpoint)
    assert "/eu-south-9/s3/" in signer(endpoint)
    assert "/us-east-1/s3/" in signer(endpoint, region="us-east-1"), "what is set counts"
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "FROMENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "Credential=FROMENVIRONMENT/" in signer(endpoint)


def test_without_a_key_the_role_of_the_machine_signs(endpoint: str, aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (aws / "credentials").write_text("")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", endpoint)
    assert "Credential=KEYOFTHEROLE/" in signer(endpoint)
    assert Told.seen[-1]["x-amz-security-token"] == "token"


def test_a_profile_that_is_not_there_or_cannot_be_read_is_told(aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match="no AWS profile nobody"):
        ObjectStore(StoreSettings("s3://bucket/x"))
    (aws / "credentials").write_text("no section at all")
    with pytest.raises(ConfigError, match="cannot be read"):
        ObjectStore(StoreSettings("s3://bucket/x"))


def test_the_store_is_asked_for_encryption(endpoint: str) -> None:
    signer(endpoint)
    assert "x-amz-server-side-encryption" not in Told.seen[-1]
    signer(endpoint, encryption="AES256")
    assert Told.seen[-1]["x-amz-server-side-encryption"] == "AES256"
    signer(endpoint, encryption="aws:kms", kms_key="my-key")
    assert Told.seen[-1]["x-amz-server-side-encryption"] == "aws:kms"
    assert Told.seen[-1]["x-amz-server-side-encryption-aws-kms-key-id"] == "my-key"
