"""The broker's HTTP API, as drivers and tasks call it: one kept connection, every call safe to repeat.

Every request is idempotent by its design (plans are leases, staging is keyed by attempt, commits by batch), so a broker
that restarts is waited for: a call is repeated until it is answered or `retry_s` is over.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from mainstem.codec.compression import Codec, inflate
from mainstem.model import errors
from mainstem.model.errors import MainstemError

DEFAULT_URL = "http://127.0.0.1:7070"
DEFAULT_PORT = 7070
TIMEOUT_S = 60.0
RETRY_S = 30.0
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 2.0
ANSWER_BYTES_MAX = 256 << 20
LOOPBACK = ("localhost", "::1")


class BrokerUnreachable(MainstemError):
    code = "MS-6001"


class BrokerClient:
    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        user: str = "",
        password: str = "",
        namespace: str = "",
        retry_s: float = RETRY_S,
    ) -> None:
        parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
        try:
            port = parts.port or DEFAULT_PORT
        except ValueError:
            port = 0
        if not port or parts.scheme not in ("http", "https"):
            raise errors.InvalidArgument(f"{url!r} is not a broker's address", fix="set option url to http://HOST:PORT")
        self.url = f"{parts.scheme}://{parts.hostname}:{port}"
        self._host, self._port = parts.hostname or "127.0.0.1", port
        self._secure = parts.scheme == "https"
        self._retry_s = retry_s
        self._connection: http.client.HTTPConnection | None = None
        user, password = user or unquote(parts.username or ""), password or unquote(parts.password or "")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"} if user else {}
        self._query = {"namespace": namespace} if namespace else {}

    def get(self, path: str, **query: Any) -> Any:
        return json.loads(self._call("GET", path, query)[0])

    def post(self, path: str, body: Mapping[str, Any], **query: Any) -> Any:
        data = json.dumps(body).encode()
        return json.loads(self._call("POST", path, query, data, "application/json")[0] or b"null")

    def post_lines(self, path: str, body: Mapping[str, Any], **query: Any) -> list[bytes]:
        """For an answer of JSON lines."""
        return self._call("POST", path, query, json.dumps(body).encode(), "application/json")[0].splitlines()

    def delete(self, path: str, **query: Any) -> None:
        self._call("DELETE", path, query)

    def put_bytes(self, path: str, data: bytes, **query: Any) -> Any:
        return json.loads(self._call("PUT", path, query, data, "application/octet-stream")[0])

    def get_bytes(self, path: str, *, packed: bool = False, **query: Any) -> tuple[bytes, Mapping[str, str]]:
        """The body and the headers, whose names are in lower case; `packed`: it may cross the network as zstd."""
        data, headers = self._call("GET", path, query, accepted="zstd" if packed else "identity")
        if headers.get("content-encoding") == "zstd":
            data = inflate(Codec.ZSTD, data, ANSWER_BYTES_MAX)
        return data, headers

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def is_far(self) -> bool:
        """Whether the broker is on another machine, as far as its address says."""
        return self._host not in LOOPBACK and not self._host.startswith("127.")

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        data: bytes | None = None,
        kind: str = "",
        accepted: str = "identity",
    ) -> tuple[bytes, Mapping[str, str]]:
        deadline = time.monotonic() + self._retry_s
        pause_s = PAUSE_S_MIN
        while True:
            try:
                return self._try(method, path, query, data, kind, accepted)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if isinstance(error, ssl.SSLCertVerificationError) or time.monotonic() + pause_s > deadline:
                    raise BrokerUnreachable(
                        f"no broker answers at {self.url} ({error or type(error).__name__})",
                        fix="start it with `mainstem up`, or set option url to http://HOST:PORT",
                    ) from error
            except errors.Overloaded as error:
                if isinstance(error, errors.DiskFull) or time.monotonic() + pause_s > deadline:
                    raise
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    def _try(
        self, method: str, path: str, query: Mapping[str, Any], data: bytes | None, kind: str, accepted: str
    ) -> tuple[bytes, Mapping[str, str]]:
        if self._connection is None:
            make = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._connection = make(self._host, self._port, timeout=TIMEOUT_S)
        given = {name: value for name, value in {**self._query, **query}.items() if value is not None}
        headers = {**self._headers, "Accept-Encoding": accepted, **({"Content-Type": kind} if kind else {})}
        self._connection.request(method, f"{path}?{urlencode(given)}" if given else path, data, headers)
        response = self._connection.getresponse()
        answer = response.read(ANSWER_BYTES_MAX)
        if response.status >= 400:
            raise problem(response.status, answer)
        return answer, {name.lower(): value for name, value in response.getheaders()}


def problem(status: int, data: bytes) -> MainstemError:
    """The error the broker raised, as the class that carries its code here too."""
    try:
        told = json.loads(data)
        message, code, fix = told["detail"], told["code"], told.get("fix") or ""
    except (ValueError, KeyError, TypeError):
        return MainstemError(f"HTTP {status}: {data[:200].decode(errors='replace')}")
    if code == errors.OffsetOutOfRange.code and "start" in told:
        return errors.OffsetOutOfRange(told["asked"], told["start"], told["end"])
    for kind in (
        errors.NotFound,
        errors.InvalidArgument,
        errors.InvalidName,
        errors.NotAuthorized,
        errors.AlreadyExists,
    ):
        if kind.code == code:
            return kind(message, fix=fix)
    if code == errors.DiskFull.code:
        return errors.DiskFull(message, fix=fix)
    if code == errors.Overloaded.code or status == 503:
        return errors.Overloaded(message, fix=fix, code=code)
    return MainstemError(message, fix=fix, code=code)
