"""A small client of the HTTP API: standard library only, JSON in and out, problems become errors of the same code."""

from __future__ import annotations

import base64
import difflib
import http.client
import json
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

import click

from mainstem.broker.schemas.faults import SchemaFault
from mainstem.model.errors import InvalidArgument, MainstemError, NotFound
from mainstem.server.cli.contexts import chosen_url
from mainstem.server.cli.failures import Unreachable, WrongPeer

DEFAULT_URL = "http://127.0.0.1:7070"
TIMEOUT_S = 30.0
PAGE_ROWS = 500
NAMED = re.compile(r"/v1/(topics|views|streams|queues|groups|users|sessions)/([^/]+)(?:/.*)?")

url_option = click.option(
    "--url",
    envvar="MAINSTEM_URL",
    default=lambda: chosen_url(DEFAULT_URL),
    show_default=f"of the context in use, else {DEFAULT_URL}",
    metavar="URL",
    help="The broker's HTTP address; http://user:password@host:port to log in (environment MAINSTEM_URL).",
)


class Api:
    def __init__(
        self, url: str = DEFAULT_URL, *, timeout_s: float = TIMEOUT_S, login: tuple[str, str] | None = None
    ) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
            port = parts.port
        except ValueError as error:
            raise InvalidArgument(f"--url {url!r}: {error}", fix="http://HOST:PORT") from None
        if parts.scheme not in ("http", "https"):
            raise InvalidArgument(f"--url {url!r} is not HTTP", fix="http://HOST:PORT, or https://HOST:PORT with TLS")
        self._secure = parts.scheme == "https"
        self.host = parts.hostname or "127.0.0.1"
        self.port = port or (7443 if self._secure else 7070)
        named = f"[{self.host}]" if ":" in self.host else self.host
        self._where = f"{parts.scheme}://{named}:{self.port}"
        self._timeout_s = timeout_s
        self.user = unquote(parts.username or os.environ.get("MAINSTEM_USER", ""))
        self.password = unquote(parts.password or os.environ.get("MAINSTEM_PASSWORD", ""))
        if login is not None:
            self.user, self.password = login
        token = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        self._login = {"Authorization": f"Basic {token}"} if self.user else {}

    def get(self, path: str, **query: Any) -> Any:
        return self._call("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        return self._call("POST", path, body or {}, query)

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._call("PUT", path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._call("PATCH", path, body)

    def delete(self, path: str, **query: Any) -> Any:
        return self._call("DELETE", path, query=query)

    def rows(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Every row of a list, a page at a time."""
        after = None
        while True:
            page = self.get(path, limit=PAGE_ROWS, after=after, **query)
            yield from page["items"]
            after = page.get("next")
            if after is None:
                return

    def events(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Server-sent events, each a JSON object, until the connection ends."""
        connection, response = self._open("GET", path, None, query)
        try:
            for line in response:
                if line.startswith(b"data:"):
                    yield json.loads(line[5:])
        finally:
            connection.close()

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            connection, response = self._open(method, path, body, query)
        except MainstemError as error:
            near = self._near(path) if error.code == NotFound.code else ""
            if near:
                raise MainstemError(error.message, fix=f"did you mean {near}?", code=error.code) from None
            raise
        try:
            data = response.read()
        except OSError as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()
        try:
            return json.loads(data) if data else None
        except ValueError:
            raise WrongPeer(f"{self._where} does not answer like a Mainstem broker") from None

    def _near(self, path: str) -> str:
        """What whoever named a thing that is not there may have meant: of what this user may see, or nothing."""
        found = NAMED.fullmatch(path)
        if found is None:
            return ""
        kind, name = found[1], unquote(found[2])
        spelled = name.replace(".", "/")  # as Kafka and AMQP spell a topic
        with suppress(MainstemError):
            rows = self.get(f"/v1/{kind}", limit=PAGE_ROWS)["items"]
            if kind == "topics" and spelled != name:
                rows += self.get("/v1/topics", filter=spelled, limit=1)["items"]
            names = {row["name"].lower(): row["name"] for row in rows}
            near = [spelled.lower()] if spelled.lower() in names else difflib.get_close_matches(name.lower(), names, 1)
            return str(names[near[0]]) if near else ""
        return ""

    def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, Any] | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self._timeout_s)
        if self._secure:
            from mainstem.server.clients.secured import client_context

            connection = http.client.HTTPSConnection(
                self.host, self.port, timeout=self._timeout_s, context=client_context({})
            )
        given = {key: value for key, value in (query or {}).items() if value is not None}
        target = path + (f"?{urlencode(given)}" if given else "")
        headers = {"Accept": "application/json", **self._login}
        data = None
        if body is not None:
            data = json.dumps(body, ensure_ascii=False).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, target, data, headers)
            response = connection.getresponse()
        except http.client.HTTPException as error:
            raise WrongPeer(
                f"{self._where} does not speak HTTP ({error!r})", fix="is it the port of another protocol, or of TLS?"
            ) from error
        except ssl.SSLCertVerificationError as error:
            raise WrongPeer(
                f"{self._where} shows a certificate that is not trusted: {error.verify_message}",
                fix="MAINSTEM_CA=FILE with the certificate that signed it, or MAINSTEM_INSECURE=1",
            ) from error
        except ssl.SSLError as error:
            raise WrongPeer(
                f"{self._where} does not speak TLS as expected ({error})", fix="is it the port with TLS?"
            ) from error
        except OSError as error:
            raise self._unreachable(error) from error
        if response.status >= 400:
            _raise_problem(response.status, response.read())
        return connection, response

    def _unreachable(self, error: OSError) -> Unreachable:
        return Unreachable(
            f"no broker answers at {self._where} ({error.strerror or error})",
            fix="mainstem up, or --url http://HOST:PORT",
        )


def segment(name: str) -> str:
    """A name as one part of a path, whatever is in it."""
    return quote(name, safe="")


def _raise_problem(status: int, data: bytes) -> None:
    try:
        problem = json.loads(data)
        if "error_code" in problem:  # of the schema registry, in its clients' words
            raise MainstemError(problem["message"], fix="mainstem schema ls", code=SchemaFault.code)
        message, code, fix = problem["detail"], problem["code"], problem.get("fix", "")
        if status == 401:
            fix = "--url http://USER:PASSWORD@HOST:PORT, or MAINSTEM_USER and MAINSTEM_PASSWORD"
    except (ValueError, KeyError, TypeError):
        raise WrongPeer(f"the answer is HTTP {status}: {data[:200].decode(errors='replace')}") from None
    raise MainstemError(message, fix=fix, code=code)
