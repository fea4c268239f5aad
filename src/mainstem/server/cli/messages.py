"""`pub` and `sub`: any protocol by its URL."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mainstem.model.counted import counted
from mainstem.model.errors import InvalidArgument, NotFound
from mainstem.server.cli.values import Duration
from mainstem.server.clients.client import Address, Client, Message, Start, read_address, read_start

PACE_MIN_S = 0.005  # a shorter pause is made up for by the next
PROGRESS_FROM = 1_000  # messages; less is over before a bar is drawn
WAIT_FOR_TOPIC_S = 0.5  # between two looks for a topic or queue that does not exist yet
PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def tls_options(command: Any) -> Any:
    """For mqtts://, kafkas:// and amqps://."""
    for name, text in reversed(
        (
            ("ca", "TLS: PEM file with the certificates to trust (environment MAINSTEM_CA); the system's by default."),
            ("cert", "TLS: PEM file with a certificate of our own, where the broker asks for one (MAINSTEM_CERT)."),
            ("key", "TLS: PEM file with its private key (MAINSTEM_KEY)."),
        )
    ):
        flag = "--tls-key" if name == "key" else f"--{name}"
        command = click.option(flag, f"tls_{name}", type=click.Path(), metavar="FILE", help=text)(command)
    return click.option("--insecure", is_flag=True, help="TLS: do not check who the broker is.")(command)


def _take_tls(address: Address, given: dict[str, Any]) -> None:
    for name in ("ca", "cert", "key"):
        value = given.pop(f"tls_{name}")
        if value:
            address.options[name] = value
    if given.pop("insecure"):
        address.options["insecure"] = "1"


@click.command()
@click.argument("url")
@click.argument("payload", required=False)
@click.option("--key", "-k", help="The record's key.")
@click.option(
    "--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="A header, or user property. Repeatable."
)
@click.option("--count", "-n", type=click.IntRange(min=0), default=1, show_default=True, help="Publish so many times.")
@click.option("--every", type=Duration(), metavar="DURATION", help="Pause between messages: 500ms, 1s.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="So many messages a second.")
@click.option(
    "--file", "file", metavar="FILE", help="The payload is this file, as @FILE; with --lines each of its lines."
)
@click.option(
    "--template", is_flag=True, help="Fill in {{n}}, {{ts}}, {{time}}, {{random}}, {{uuid}} in payload and key."
)
@click.option("--lines", is_flag=True, help="Publish each line of the input as a message of its own.")
@click.option(
    "--json", "as_json", is_flag=True, help='The input is JSON lines: {"value": ..., "key": ..., "headers": {...}}.'
)
@click.option("--qos", type=click.IntRange(0, 1), default=1, show_default=True, help="MQTT: 0 is not acknowledged.")
@click.option("--retain", is_flag=True, help="MQTT: keep it as the topic's retained message.")
@tls_options
def pub(
    url: str, payload: str | None, count: int, every: int | None, rate: float | None, file: str | None, **given: Any
) -> None:
    """Publish PAYLOAD to URL and wait until the broker has it.

    \b
    mainstem pub mqtt://localhost/sensors/kitchen/temp 21.5
    mainstem pub kafka://localhost/orders @order.json -k 42 -H source=web
    mainstem pub amqp://localhost/jobs.images --lines < jobs.txt
    mainstem pub mqtt://localhost/load '{{n}} at {{time}}' --template --count 1000

    PAYLOAD is text, @FILE, or - for standard input (the default if something is piped in). The path of the URL is the
    topic as the protocol spells it; amqp:// publishes to amq.topic, or ?exchange=NAME.
    """
    from mainstem.server.cli.output import Progress
    from mainstem.server.clients import open_client

    address = read_address(url)
    _take_tls(address, given)
    _require_path(url, address, "exchange")
    if given["retain"] and address.scheme != "mqtt":
        raise InvalidArgument(f"--retain is MQTT's; {address.scheme}:// keeps every message anyway")
    if address.scheme == "mqtt":
        address.options.update(qos=str(given["qos"]), retain="1" if given["retain"] else "0")
    if file is not None and payload is not None:
        raise InvalidArgument("PAYLOAD and --file are two payloads", fix="give one of them")
    payload = f"@{file}" if file is not None else payload
    if every and rate:
        raise InvalidArgument("--every and --rate both say how fast", fix="give one of them")
    pace = Pace(every / 1000 if every else 1 / rate if rate else 0.0)
    messages = list(_inputs(payload, **given)) if count > 1 else _inputs(payload, **given)
    sent = 0
    with contextlib.closing(open_client(address)) as client, _progress(Progress, count) as progress:
        for _ in range(count):
            for message in messages:
                sent += 1
                message = _filled(message, sent) if given["template"] else message
                message.topic = message.topic or address.path
                client.publish(message)
                progress(sent)
                pace.wait(client)
        client.flush()
    if sent != 1 and count < PROGRESS_FROM:  # else the progress has said it
        click.echo(f"published {counted(sent, 'message')}", err=True)


class Pace:
    """So many seconds between two messages on the average; what was published is sent before it waits."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._due_s = time.monotonic()

    def wait(self, client: Client) -> None:
        if not self._pause_s:
            return
        self._due_s += self._pause_s
        left_s = self._due_s - time.monotonic()
        if left_s > PACE_MIN_S or self._pause_s > PACE_MIN_S:
            client.flush()
            time.sleep(max(self._due_s - time.monotonic(), 0.0))


def _require_path(url: str, address: Address, instead: str) -> None:
    """An exchange or a queue of AMQP may do without a key."""
    if not address.path and not (address.scheme == "amqp" and instead in address.options):
        base = url.partition("?")[0].rstrip("/")
        more = f", or {base}/?{instead}=NAME" if address.scheme == "amqp" else ""
        raise InvalidArgument(f"{url} names no topic", fix=f"{base}/TOPIC{more}")


@contextlib.contextmanager
def _progress(kind: Any, count: int) -> Iterator[Any]:
    """A bar only where there is something to wait for."""
    if count < PROGRESS_FROM:
        yield lambda done: None
        return
    with kind("published", count, unit="messages") as progress:
        yield progress.set


def _inputs(
    payload: str | None, key: str | None, headers: tuple[str, ...], lines: bool, as_json: bool, **_: Any
) -> Iterator[Message]:
    pairs: list[tuple[str, bytes | None]] = []
    for header in headers:
        name, mark, text = header.partition("=")
        if not mark:
            raise InvalidArgument(f"header {header!r} must be NAME=VALUE")
        pairs.append((name, os.fsencode(text)))
    key_bytes = None if key is None else os.fsencode(key)
    for value in _values(payload, lines or as_json):
        if not as_json:
            yield Message(value, key=key_bytes, headers=list(pairs))
            continue
        yield _from_json(value, key_bytes, pairs)


def _values(payload: str | None, lines: bool) -> Iterator[bytes]:
    if payload is not None and payload.startswith("@"):
        data: Any = _open_file(payload[1:])
    elif payload == "-" or (payload is None and not sys.stdin.isatty()):
        data = sys.stdin.buffer
    elif payload is None:
        raise InvalidArgument("nothing to publish", fix="give a payload, @FILE, or pipe something in")
    else:
        yield os.fsencode(payload)
        return
    with data:
        if lines:
            for line in data:
                yield line.rstrip(b"\r\n")
        else:
            yield data.read()


def _open_file(name: str) -> Any:
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise InvalidArgument(f"{name} cannot be read: {error.strerror}") from None


def _from_json(line: bytes, key: bytes | None, headers: list[tuple[str, bytes | None]]) -> Message:
    """What `sub --json` prints can be published again: base64 where bytes are no text, headers as pairs too."""
    shown = line[:80].decode(errors="replace")
    try:
        given = json.loads(line)
        if not isinstance(given, dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise InvalidArgument(f"not a JSON object: {shown}") from None
    if not given.keys() & {"value", "value_base64"}:
        raise InvalidArgument(f"neither value nor value_base64 in {shown}", fix='{"value": null} publishes no value')
    try:
        own = _json_bytes(given, "key")
        more = given.get("headers") or {}
        pairs = [(str(name), None if one is None else str(one).encode()) for name, one in _pairs(more)]
        return Message(
            _json_bytes(given, "value"), str(given.get("topic") or ""), key if own is None else own, [*headers, *pairs]
        )
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"cannot be published: {shown} ({error})") from None


def _pairs(headers: Any) -> Any:
    return headers.items() if isinstance(headers, dict) else headers


def _json_bytes(given: dict[str, Any], name: str) -> bytes | None:
    value = given.get(name)
    if value is None:
        import base64

        encoded = given.get(f"{name}_base64")
        return None if encoded is None else base64.b64decode(encoded, validate=True)
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()


def _filled(message: Message, number: int) -> Message:
    import uuid

    now = time.time()
    values = {
        "n": str(number),
        "ts": str(int(now * 1000)),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)),
        "random": str(random.randrange(1_000_000)),
        "uuid": str(uuid.uuid4()),
    }

    def fill(data: bytes | None) -> bytes | None:
        if data is None:
            return None
        text = PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), data.decode(errors="surrogateescape"))
        return text.encode(errors="surrogateescape")

    return Message(fill(message.value), message.topic, fill(message.key), message.headers)


@click.command()
@click.argument("url")
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="WHERE",
    help="earliest, latest, -10, 5m, @offset, ts:<RFC 3339>.",
)
@click.option("--count", "-n", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option("--idle", type=Duration(least_ms=1), metavar="DURATION", help="Stop when nothing came for so long.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines with topic, key, value, headers, offset.")
@click.option(
    "--format",
    "template",
    metavar="TEMPLATE",
    callback=lambda _context, _option, given: _checked_template(given),
    help="For example '{{topic}} {{key}} {{value}}'.",
)
@click.option("--verbose", "-v", is_flag=True, help="Topic, key and headers beside the value.")
@click.option("--decode", is_flag=True, help="Show values of the schema registry's serialisers as JSON.")
@click.option(
    "--url",
    "url_of_api",
    envvar="MAINSTEM_URL",
    default="http://127.0.0.1:7070",
    metavar="URL",
    help="The broker's HTTP address; asked where MQTT or AMQP are to count back (--from -10), and with --decode.",
)
@tls_options
def sub(url: str, start: str, count: int | None, idle: int | None, url_of_api: str, decode: bool, **shown: Any) -> None:
    """Consume from URL and print what arrives, live or from history.

    \b
    mainstem sub mqtt://localhost/sensors/#
    mainstem sub kafka://localhost/sensors.kitchen.temp --from -10
    mainstem sub kafka://localhost/all-sensors --from 5m --json      a view is a Kafka topic
    mainstem sub amqp://localhost/sensors.*.temp                     a pattern of amq.topic
    mainstem sub amqp://localhost/sensors.*.temp --from -10          and what it means of history
    mainstem sub amqp://localhost/?queue=jobs                        a queue; what is printed is acknowledged

    What does not exist yet is waited for. Stop with Ctrl-C.
    """
    address = read_address(url)
    _take_tls(address, shown)
    _require_path(url, address, "queue")
    idle_s = idle / 1000 if idle else None
    seen = 0
    begin = read_start(start)
    wanted: set[tuple[str, int]] = set()
    if begin.kind == "last" and address.scheme != "kafka":
        begin, wanted = _count_back(url_of_api, address, begin.value)
    _note_queue(address)
    with contextlib.suppress(KeyboardInterrupt), _subscribed(address, begin, idle_s) as client:
        if client is None:
            return
        for message in client.messages(idle_s):
            if wanted and (message.topic, message.facts.get("offset")) not in wanted:
                continue  # of the same moment, and older
            wanted.clear()
            if decode:
                _decode(url_of_api, message)
            click.echo(_show(message, **shown))
            seen += 1
            if count is not None and seen >= count:
                break


def _checked_template(given: str | None) -> str | None:
    """One without a field would print the same line for each message."""
    if given is not None and not PLACEHOLDER.search(given):
        raise click.BadParameter(f"{given!r} names no field; write them in two braces: '{{{{topic}}}} {{{{value}}}}'")
    return given


def _note_queue(address: Address) -> None:
    """Who names a queue as if it were a topic would wait for what the queue has taken already."""
    from mainstem.server.clients import open_client
    from mainstem.server.clients.amqp import AmqpClient

    if address.scheme != "amqp" or {"queue", "exchange"} & address.options.keys() or set("*#") & set(address.path):
        return
    scheme = "amqps" if address.secure else "amqp"
    with contextlib.closing(open_client(address)) as client:
        if isinstance(client, AmqpClient) and client.has_queue(address.path):
            click.echo(
                f"note: {address.path} is a queue, too. This prints what is published to the topic from now on; to take the "
                f"queue's messages: mainstem sub '{scheme}://{address.host}:{address.port}/?queue={address.path}'",
                err=True,
            )


@contextlib.contextmanager
def _subscribed(address: Address, begin: Start, idle_s: float | None) -> Iterator[Client | None]:
    """A client that consumes; waits for a topic or queue that does not exist yet, None if `--idle` came first."""
    from mainstem.server.clients import open_client

    began = time.monotonic()
    name = address.options.get("queue") or address.path
    waits = False
    while True:
        with contextlib.closing(open_client(address)) as client:
            try:
                # Whatever is in what was created meanwhile came after we asked.
                client.subscribe(address.path, Start("earliest") if waits and begin.kind == "latest" else begin)
            except NotFound:
                if not waits:
                    click.echo(f"waiting: {name} does not exist yet; Ctrl-C stops", err=True)
                waits = True
            else:
                yield client
                return
        if idle_s is not None and time.monotonic() - began >= idle_s:
            yield None
            return
        time.sleep(WAIT_FOR_TOPIC_S)


def _count_back(url: str, address: Address, count: int) -> tuple[Start, set[tuple[str, int]]]:
    """Where the last so many records begin, and which they are: MQTT starts at a microsecond, AMQP at a second."""
    from collections import deque

    from mainstem.model.topic import amqp_key, filter_of_amqp, topic_of_amqp
    from mainstem.server.cli.api import Api

    amqp, view = address.scheme == "amqp", address.options.get("queue", "")
    if view:
        subject = {"view": topic_of_amqp(view.encode()).decode()}
    else:
        subject = {"filter": filter_of_amqp(address.path.encode()).decode() if amqp else address.path}
    api, found = Api(url), deque[dict[str, Any]](maxlen=count)
    start: str | None = f"-{count}"
    while start:
        page = api.get("/v1/messages", **subject, **{"from": start}, limit=500)
        found.extend(page["items"])
        start = page["next"] if page["items"] else None
    if not found:
        return Start("latest"), set()
    spelled = (lambda topic: amqp_key(topic.encode()).decode()) if amqp else str
    return Start("stamp", found[0]["stamp"] // 1000), {(spelled(one["topic"]), one["offset"]) for one in found}


def _decode(url: str, message: Message) -> None:
    """What begins like a serialised value is asked for; what is none stays as it is."""
    if message.value is None or message.value[:1] != b"\0" or len(message.value) < 5:
        return
    import base64

    from mainstem.server.cli.api import Api

    (found,) = Api(url).post("/v1/decode", {"values": [base64.b64encode(message.value).decode()]})["items"]
    if found is not None:
        message.value = found["json"].encode()
        message.facts["schema"] = f"{found['subject']} {found['version']}"


def _show(message: Message, as_json: bool, template: str | None, verbose: bool) -> str | bytes:
    if not (as_json or template is not None or verbose or sys.stdout.isatty()):
        return message.value or b""  # for a file or another program: as it came
    value = "" if message.value is None else message.value.decode(errors="replace")
    if as_json:
        return json.dumps(_json_of(message), ensure_ascii=False)
    key = "" if message.key is None else message.key.decode(errors="replace")
    if template is not None:
        facts = {"topic": message.topic, "key": key, "value": value, **{k: str(v) for k, v in message.facts.items()}}
        return PLACEHOLDER.sub(lambda match: facts.get(match[1], match[0]), template)
    if not verbose:
        return value
    headers = " ".join(f"{name}={(one or b'').decode(errors='replace')}" for name, one in message.headers)
    at = f" @{message.facts['offset']}" if "offset" in message.facts else ""
    return f"{message.topic}{at}  {f'{key}  ' if key else ''}{f'[{headers}]  ' if headers else ''}{value}"


def _json_of(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": message.topic}
    for name, data in (("key", message.key), ("value", message.value)):
        try:
            row[name] = None if data is None else data.decode()
        except UnicodeDecodeError:
            import base64

            row[name] = None
            row[f"{name}_base64"] = base64.b64encode(data or b"").decode()
    row["headers"] = [[name, None if one is None else one.decode(errors="replace")] for name, one in message.headers]
    return {**row, **message.facts}
