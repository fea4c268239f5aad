"""The cluster's own certificate: made of its secret, the same at every broker, and the only one that brokers trust.

An Ed25519 key is 32 bytes, and its signatures are the same each time. So whoever knows the secret, which lies in PostgreSQL,
makes the same certificate, and nothing has to be handed out, renewed or kept in a file.
"""

from __future__ import annotations

import hmac
import ssl
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from mainstem.model.errors import ConfigError

ALPN = "mainstem-relay/1"  # brokers that speak another one do not begin
NAME = "mainstem cluster"


def make_certificate(secret: bytes) -> tuple[bytes, bytes]:
    """Certificate and key, as PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise ConfigError(
            "the library for certificates is not installed", fix="pip install 'mainstem[cluster]'"
        ) from None
    key = Ed25519PrivateKey.from_private_bytes(hmac.digest(secret, b"relay certificate", "sha256"))
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1)
    builder = builder.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(9999, 1, 1, tzinfo=UTC)
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    certificate = builder.sign(key, None).public_bytes(pem)
    return certificate, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)


def relay_contexts(secret: bytes) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For the side that listens and the side that connects: each shows the certificate, and takes no other."""
    certificate, key = make_certificate(secret)
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with tempfile.TemporaryDirectory(
        prefix="mainstem-"
    ) as directory:  # ssl reads keys from files only; its mode is 0700
        file = Path(directory, "relay.pem")
        file.write_bytes(certificate + key)
        for context in contexts:
            context.load_cert_chain(file)
    for context in contexts:
        context.load_verify_locations(cadata=certificate.decode())
        context.check_hostname = False  # the certificate says which cluster, addresses may change
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols([ALPN])
    return contexts
