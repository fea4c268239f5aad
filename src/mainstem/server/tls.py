"""TLS: one certificate for all listeners, read at the start and again on SIGHUP.

A listener with TLS is the plain one's twin on a port of its own (mqtts, wss, kafkas, ...): the same server behind
it, so that limits, counters and logins are the same. With `client_ca` nobody connects without a certificate it signed,
unless they are optional, and with `client_crl` nobody by one that was revoked. Who a client is tells its login, or by
rules of `client_users` that certificate.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NoReturn

from mainstem.model.errors import ConfigError
from mainstem.server.protocols import doors
from mainstem.server.settings import Tls

BAD_CERTIFICATE = "MS-4010"
TWINS = {door.tls_name: door.name for door in doors()}  # listener → whose server


def make_context(tls: Tls) -> ssl.SSLContext | None:
    """None where no certificate is configured: then no listener has TLS."""
    if not tls.certificate and (tls.key or tls.client_ca):
        _refuse("[tls] has a key or client_ca, but no certificate", 'certificate = "FILE" in [tls]')
    if tls.client_users and not tls.client_ca:
        _refuse("[tls] has client_users, but no client_ca that could have signed them", 'client_ca = "FILE" in [tls]')
    if tls.client_crl and not tls.client_ca:
        _refuse("[tls] has client_crl, but no client_ca whose list it is", 'client_ca = "FILE" in [tls]')
    if not tls.certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, tls)
    if tls.client_ca:
        _check_readable(tls.client_ca, "client_ca")
        try:
            context.load_verify_locations(tls.client_ca)
        except ssl.SSLError as error:
            _refuse(f"tls.client_ca: {tls.client_ca} holds no certificate ({_reason(error)})", "give a PEM file")
        optional = tls.client_certificates == "optional"
        context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
        if tls.client_crl:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
            context.options |= ssl.OP_NO_TICKET  # who comes back by a ticket shows no certificate
            context.num_tickets = 0
            load_revoked(context, tls)
    return context


def load_revoked(context: ssl.SSLContext, tls: Tls) -> None:
    """Handshakes from now on are refused to who is on the list. Of several lists of one signer the newest counts."""
    if not tls.client_crl:
        return
    _check_readable(tls.client_crl, "client_crl")
    if b"-----BEGIN X509 CRL" not in Path(tls.client_crl).read_bytes():
        _refuse(f"tls.client_crl: {tls.client_crl} holds no list", "openssl crl -inform DER -in LIST -out LIST.pem")
    try:
        context.load_verify_locations(tls.client_crl)
    except ssl.SSLError as error:
        _refuse(f"tls.client_crl: {tls.client_crl} holds no list ({_reason(error)})", "give a PEM file")


def load_certificate(context: ssl.SSLContext, tls: Tls) -> None:
    """Handshakes from now on show it. On failure the context keeps what it had."""
    key = tls.key or tls.certificate  # one file may hold both
    _check_readable(tls.certificate, "certificate")
    _check_readable(key, "key")
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for one in (trial, context):  # a context that failed halfway would serve a certificate without its key
        try:
            one.load_cert_chain(tls.certificate, key, password=lambda: "")
        except ssl.SSLError as error:
            if "KEY_VALUES_MISMATCH" in str(error):
                _refuse(
                    f"tls.key: {key} does not belong to the certificate {tls.certificate}",
                    f"compare: openssl x509 -in {tls.certificate} -pubkey -noout; openssl pkey -in {key} -pubout",
                )
            _refuse(
                f"tls.certificate {tls.certificate} with tls.key {key} cannot be used ({_reason(error)})",
                "both must be PEM files, the key without a password: openssl pkey -in KEY -out PLAIN_KEY",
            )


def _check_readable(file: str, name: str) -> None:
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        _refuse(f"tls.{name}: {file} cannot be read ({error.strerror})", "give a file that this user may read")


def _reason(error: ssl.SSLError) -> str:
    return str(error.reason or error.strerror or error).lower().replace("_", " ")


def _refuse(what: str, fix: str) -> NoReturn:
    raise ConfigError(what, fix=fix, code=BAD_CERTIFICATE)
