"""TLS for the command line's clients. `ca`, `cert`, `key` and `insecure` come from options, or MAINSTEM_CA and its kin."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping

from mainstem.model.errors import InvalidArgument
from mainstem.server.cli.failures import WrongPeer

TLS_OPTIONS = ("ca", "cert", "key", "insecure")


def client_context(options: Mapping[str, str]) -> ssl.SSLContext:
    def given(name: str) -> str:
        return options.get(name) or os.environ.get(f"MAINSTEM_{name.upper()}", "")

    try:
        context = ssl.create_default_context(cafile=given("ca") or None)
        if given("cert"):
            context.load_cert_chain(given("cert"), given("key") or None)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror if isinstance(error, FileNotFoundError) else error
        raise InvalidArgument(
            f"the files for TLS cannot be used: {why}", fix="--ca, --cert and --tls-key name PEM files"
        ) from None
    if given("insecure") not in ("", "0", "false"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def secured(plain: socket.socket, host: str, options: Mapping[str, str], where: str) -> socket.socket:
    """The socket after its handshake; what was wrong with the other side is said in words."""
    try:
        return client_context(options).wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise WrongPeer(
            f"{where} shows a certificate that is not trusted: {error.verify_message}",
            fix="--ca FILE with the certificate that signed it, or --insecure to go on without knowing who it is",
        ) from error
    except (OSError, ssl.SSLError) as error:
        raise WrongPeer(f"{where} does not speak TLS as expected ({error})", fix="is it the port with TLS?") from error
