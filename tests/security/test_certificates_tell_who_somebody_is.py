"""A client's certificate is its login on every listener with TLS, by the rules of the configuration."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from mainstem.testing import Broker
from tests.protocol.test_tls import TLS_PORTS
from tests.security.knocking import KNOCKS, Secure
from tests.users import ANN, add_users, allow

WAIT_S = 20


class Authority:
    """Signs whatever it is asked to, as PEM files."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.authority = folder, trustme.CA()
        self.ca = folder / f"{name}.pem"
        self.authority.cert_pem.write_to_path(self.ca)

    def sign(self, name: str, *identities: str) -> tuple[Path, Path]:
        made = self.authority.issue_cert(*identities, common_name=name)
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return certificate, key

    def revoke(self, file: Path, *revoked: Secure, days_ago: int = 0) -> None:
        """The list of what is revoked, as PEM."""
        now = datetime.now(UTC) - timedelta(days=days_ago)
        signer = x509.load_pem_x509_certificate(self.authority.cert_pem.bytes())
        crl = x509.CertificateRevocationListBuilder().issuer_name(signer.subject)
        crl = crl.last_update(now).next_update(now + timedelta(days=30))
        for one in revoked:
            assert one.certificate is not None
            number = x509.load_pem_x509_certificate(one.certificate[0].read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
            crl = crl.add_revoked_certificate(entry.build())
        key = load_pem_private_key(self.authority.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        file.write_bytes(crl.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "ca")


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[Broker]:
    certificate, key = authority.sign("server", "localhost", "127.0.0.1")
    settings = (
        *TLS_PORTS,
        f"tls.certificate={certificate}",
        f"tls.key={key}",
        f"tls.client_ca={authority.ca}",
        "tls.client_certificates=optional",
        "tls.client_users=san.dns:{user}.devices.acme.net,cn:{user}",
    )
    with Broker(*settings) as broker:
        add_users(broker)
        allow(broker, "of/%u/#", "publish", "create")
        assert broker.app is not None and broker.loop is not None
        access = broker.app.broker.access

        async def add() -> None:
            await access.add_user("pump-7", "pw", rules=access.user("ann").rules)

        asyncio.run_coroutine_threadsafe(add(), broker.loop).result(WAIT_S)
        yield broker


@pytest.mark.parametrize("protocol", KNOCKS)
def test_the_common_name_or_a_dns_name_is_the_user(broker: Broker, authority: Authority, protocol: str) -> None:
    knock = KNOCKS[protocol]
    ann = Secure(authority.ca, authority.sign("ann", "ann.example.net"))
    assert knock(broker, "of/ann/1", "", "", ann)
    assert not knock(broker, "of/pump-7/1", "", "", ann)
    pump = Secure(authority.ca, authority.sign("whoever", "pump-7.devices.acme.net"))
    assert knock(broker, "of/pump-7/1", "", "", pump)


@pytest.mark.parametrize("protocol", KNOCKS)
def test_who_is_no_user_or_has_no_certificate_logs_in_by_other_means(
    broker: Broker, authority: Authority, protocol: str
) -> None:
    knock = KNOCKS[protocol]
    stranger = Secure(authority.ca, authority.sign("nobody", "nobody.example.net"))
    assert not knock(broker, "of/ann/1", "", "", stranger)
    assert not knock(broker, "of/ann/1", "", "", Secure(authority.ca))
    assert knock(broker, "of/ann/1", *ANN, stranger)
    assert knock(broker, "of/ann/1", *ANN, Secure(authority.ca))


@pytest.mark.parametrize("port", ["mqtts", "wss", "kafkas", "amqps", "natss", "https"])
def test_a_certificate_that_somebody_else_signed_does_not_even_connect(
    broker: Broker, authority: Authority, tmp_path: Path, port: str
) -> None:
    forged = Secure(authority.ca, Authority(tmp_path, "other").sign("ann", "ann.example.net"))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(broker.ports[port], forged)


def test_a_revoked_certificate_does_not_connect(authority: Authority, tmp_path: Path) -> None:
    """And of two lists, read by a restart or SIGHUP, the newer one counts."""
    certificate, key = authority.sign("revoking", "localhost")
    kept, lost = (Secure(authority.ca, authority.sign(name, f"{name}.example.net")) for name in ("kept", "lost"))
    crl = tmp_path / "crl.pem"
    authority.revoke(crl, days_ago=1)
    settings = (
        *TLS_PORTS,
        f"tls.certificate={certificate}",
        f"tls.key={key}",
        f"tls.client_ca={authority.ca}",
        f"tls.client_crl={crl}",
    )
    with Broker(*settings) as broker:
        assert broker.app is not None and broker.loop is not None
        assert greeted(broker, kept) and greeted(broker, lost)
        authority.revoke(crl, lost)
        broker.loop.call_soon_threadsafe(broker.app.reload_certificate, broker.app.config.tls)
        deadline = time.monotonic() + WAIT_S
        while greeted(broker, lost) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert greeted(broker, kept) and not greeted(broker, lost)


def greeted(broker: Broker, secure: Secure) -> bool:
    try:
        connect(broker.ports["natss"], secure)  # which speaks first
    except (ssl.SSLError, ConnectionError):
        return False
    return True


def connect(port: int, secure: Secure) -> None:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as plain,
        secure.context().wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        if not secured.recv(1):  # with TLS 1.3 the client hears of it only now
            raise ConnectionError("closed")
