"""The object store, as the tier uses it: put, read a range, delete. Over `obstore`: s3://, gs://, az://, file://.

Every call waits, so none is made on the loop. What it raises says what to do next:

    StoreAway       not reachable, slow, throttling, cut off: try again later, without end
    ObjectMissing   the object is not there
    ConfigError     the store refuses us: a wrong bucket, a missing right, a wrong key (with the fix)
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from mainstem.model.errors import ConfigError, CorruptFrame, Overloaded
from mainstem.model.histogram import Histogram, times_histogram

SCHEMES = ("s3", "gs", "az", "file")
PUT_BYTES_MAX = 128 << 20  # in one request; a larger object goes in pieces of PIECE_BYTES
PIECE_BYTES = 64 << 20
CONNECT_S = 5
T = TypeVar("T")


class StoreAway(Overloaded):
    """The object store does not answer, or asks us to come later."""

    code = "MS-3002"


class ObjectMissing(CorruptFrame):
    """An object that the registry names is not in the store."""

    code = "MS-5004"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    url: str
    endpoint: str = ""
    region: str = ""
    path_style: bool = True
    encryption: str = ""  # AES256, aws:kms, aws:kms:dsse
    kms_key: str = ""
    timeout_s: float = 30.0  # of one request


@dataclass(slots=True)
class StoreMeters:
    """Counts since the start, by verb; `failures` are tries that did not succeed."""

    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("PUT", "GET", "DELETE"), 0))
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("PUT", "GET", "DELETE"), 0))
    bytes_out: int = 0
    bytes_in: int = 0
    latency: dict[str, Histogram] = field(
        default_factory=lambda: {verb: times_histogram() for verb in ("PUT", "GET", "DELETE")}
    )


class ObjectStore:
    """Any thread may call."""

    def __init__(self, settings: StoreSettings) -> None:
        self.url = settings.url.rstrip("/")
        self.meters = StoreMeters()
        self._lock = threading.Lock()
        self._obstore, self._store = _open(settings)

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        def send() -> None:
            if len(data) <= PUT_BYTES_MAX:
                self._obstore.put(self._store, key, data, use_multipart=False)
            else:
                pieces = _pieces(memoryview(data))
                self._obstore.put(self._store, key, pieces, chunk_size=PIECE_BYTES, max_concurrency=1)

        self._request("PUT", key, send, out=len(data))

    def create(self, key: str, data: bytes) -> bool:
        """False: it is there already. A store that knows no conditional request takes it all the same: look again."""

        def send() -> bool:
            try:
                self._obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except self._obstore.exceptions.AlreadyExistsError:
                return False
            return True

        try:
            return self._request("PUT", key, send, out=len(data))
        except StoreAway:
            self.put(key, data)
            return True

    def get(self, key: str, start: int, length: int) -> bytes:
        """Exactly these bytes; CorruptFrame where the object ends before."""
        return bytes(self.get_view(key, start, length))

    def get_view(self, key: str, start: int, length: int) -> memoryview:
        """The same where they lie: the library's buffer, which lives as long as the view."""

        def receive() -> memoryview:
            return memoryview(self._obstore.get_range(self._store, key, start=start, length=length))

        data = self._request("GET", key, receive)
        self.meters.bytes_in += len(data)
        if len(data) != length:
            raise CorruptFrame(f"{self.url}/{key}: {len(data)} of {length} bytes at {start}: it was cut off")
        return data

    def get_all(self, key: str) -> bytes:
        return bytes(self.view_all(key))

    def view_all(self, key: str) -> memoryview:
        """All of it where it arrived: copying 64 MiB keeps everybody from the interpreter for 30 ms."""

        def receive() -> memoryview:
            return memoryview(self._obstore.get(self._store, key).bytes())

        data = self._request("GET", key, receive)
        self.meters.bytes_in += len(data)
        return data

    def size(self, key: str) -> int:
        return self._request("GET", key, lambda: int(self._obstore.head(self._store, key)["size"]))

    def delete(self, key: str) -> None:
        """No error if it is not there."""
        with contextlib.suppress(ObjectMissing):
            self._request("DELETE", key, lambda: self._obstore.delete(self._store, key))

    def _request(self, verb: str, key: str, call: Callable[[], T], *, out: int = 0) -> T:
        began = time.perf_counter_ns()
        done = False
        try:
            found = call()
            done = True
            return found
        except Exception as error:
            raise self._told(error, key, verb) from error
        finally:
            with self._lock:
                self.meters.requests[verb] += 1
                self.meters.failures[verb] += not done
                self.meters.bytes_out += out
                self.meters.latency[verb].add(time.perf_counter_ns() - began)

    def _told(self, error: Exception, key: str, verb: str) -> Exception:
        known = self._obstore.exceptions
        place, reason = f"{self.url}/{key}", _first_line(error)
        if isinstance(error, (known.NotFoundError, FileNotFoundError)):
            if verb == "PUT" or any(word in str(error) for word in NO_BUCKET):
                return ConfigError(f"{place}: the store refuses: {reason}", fix=_make_bucket(self.url))
            return ObjectMissing(f"{place} is not in the store", fix="mainstem log verify shows what it held")
        if isinstance(error, (known.PermissionDeniedError, known.UnauthenticatedError)) or _is_refusal(error):
            return ConfigError(f"{place}: the store refuses: {reason}", fix=_fix_of(reason, self.url))
        return StoreAway(f"{place}: {reason}", fix="it is tried again; mainstem doctor looks at the store")


def check_url(url: str) -> None:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES or not rest:
        raise ConfigError(
            f"tier.store {url!r} is not an address of an object store",
            fix="tier.store = s3://BUCKET/PREFIX (or gs://, az://, file:///DIRECTORY)",
        )


def _open(settings: StoreSettings) -> tuple[Any, Any]:
    check_url(settings.url)
    try:
        import obstore
        import obstore.exceptions
        from obstore.store import LocalStore, from_url
    except ImportError:
        raise ConfigError(
            "tier.store is set, and the library for object stores is not installed", fix="pip install 'mainstem[tier]'"
        ) from None
    if settings.url.startswith("file://"):
        directory = Path(settings.url.removeprefix("file://"))
        if not directory.is_dir():
            raise ConfigError(f"tier.store: the directory {directory} is not there", fix=f"mkdir -p {directory}")
        return obstore, LocalStore(directory, automatic_cleanup=False)
    try:
        client = {
            "timeout": timedelta(seconds=settings.timeout_s),
            "connect_timeout": timedelta(seconds=CONNECT_S),
            "allow_http": settings.endpoint.startswith("http://"),
        }
        tries = {"max_retries": 0, "retry_timeout": timedelta(seconds=settings.timeout_s)}
        make: Any = from_url  # its types name every option of every provider
        return obstore, make(settings.url, config=_config(settings), client_options=client, retry_config=tries)
    except Exception as error:
        raise ConfigError(f"tier.store {settings.url}: {_first_line(error)}", fix="mainstem doctor") from error


def _config(settings: StoreSettings) -> dict[str, Any]:
    """What is not set comes from the environment, the profile or the instance's role."""
    if settings.url.startswith("gs://") and settings.endpoint:  # another server than Google's asks for no token
        nobody = {"client_email": "", "private_key": "", "private_key_id": ""}
        key = {"gcs_base_url": settings.endpoint, "disable_oauth": True, **nobody}
        return {"service_account_key": json.dumps(key)}
    if not settings.url.startswith("s3://"):
        return {"endpoint": settings.endpoint} if settings.endpoint else {}
    config: dict[str, Any] = {"virtual_hosted_style_request": not settings.path_style, "checksum_algorithm": "SHA256"}
    config |= _profile()
    if settings.endpoint:
        config["endpoint"] = settings.endpoint
    if settings.region:
        config["region"] = settings.region
    if settings.encryption:
        config["server_side_encryption"] = settings.encryption
    if settings.kms_key:
        config["sse_kms_key_id"] = settings.kms_key
    return config


PROFILE = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
}


def _profile() -> dict[str, str]:
    """Of AWS's own files, which the library does not read: `AWS_PROFILE`, or `default` where the environment has no key."""
    if not os.environ.get("AWS_PROFILE") and os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    name, home = os.environ.get("AWS_PROFILE") or "default", Path("~/.aws").expanduser()
    files = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        files.read(os.environ.get("AWS_CONFIG_FILE") or home / "config")
        found = dict(files[f"profile {name}"]) if f"profile {name}" in files else {}
        files.clear()
        files.read(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials")
    except configparser.Error as error:
        raise ConfigError(f"the AWS profile {name} cannot be read: {_first_line(error)}", fix="mend ~/.aws") from None
    found |= dict(files[name]) if name in files else {}
    if not found and os.environ.get("AWS_PROFILE"):
        raise ConfigError(f"there is no AWS profile {name}", fix="aws configure --profile NAME, or unset AWS_PROFILE")
    return {ours: found[theirs] for theirs, ours in PROFILE.items() if theirs in found}


def _pieces(data: memoryview) -> Iterator[bytes]:
    for at in range(0, len(data), PIECE_BYTES):
        yield bytes(data[at : at + PIECE_BYTES])


NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
REFUSALS = (*NO_BUCKET, "InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "RequestTimeTooSkewed")
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile or role of this machine",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or the identity of this machine",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or the service account of this machine",
}
UNKNOWN_CALLER = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthorizationFailure", "AuthenticationFailed")


def _is_refusal(error: Exception) -> bool:
    return any(word in str(error) for word in REFUSALS)


def _fix_of(reason: str, url: str) -> str:
    if "RequestTimeTooSkewed" in reason:
        return "set this machine's clock: timedatectl set-ntp true"
    if any(word in reason for word in NO_BUCKET):
        return _make_bucket(url)
    if any(word in reason for word in UNKNOWN_CALLER):
        return f"check {CREDENTIALS[url.partition('://')[0]]}"
    return f"allow PutObject, GetObject and DeleteObject on {url}/*"


def _make_bucket(url: str) -> str:
    bucket = url.partition("://")[2].partition("/")[0]
    return f"make the bucket {bucket}, or name another: tier.store"


def _first_line(error: Exception) -> str:
    """Of what the library tells: the server's code where it names one, else its first line, without debug output."""
    text = str(error)
    code = re.search(r"<Code>(\w+)</Code>", text)
    message = re.search(r"<Message>([^<]*)</Message>", text)
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    if code:
        return f"{code[1]}: {message[1].splitlines()[0]}" if message and message[1] else code[1]
    return first[:300]
