"""One message per field and corner: the rows of the conformance matrix."""

from __future__ import annotations

import datetime
import decimal
from dataclasses import dataclass, field

from tests.crossing.message import Headers, Message


@dataclass(frozen=True, slots=True)
class Probe:
    """`levels` is put behind the run's own first levels; `elsewhere` is how typed headers read in other protocols."""

    row: str
    message: Message = field(default_factory=Message)
    levels: str = "t"
    elsewhere: Headers = field(default_factory=list)


MOMENT_US = 1_700_000_000_123_000
TABLE = {"deep": {"list": [1, {"x": "y"}], "on": True}, "n": -5}
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EVENT = {
    "id": "e-1",
    "source": "/fleet",
    "specversion": "1.0",
    "type": "t.emp",
    "subject": "s",
    "time": "2026-01-02T03:04:05Z",
}
LONG_LEVEL = "station-" + "x" * 240


PROBES = [
    Probe("topic", levels="sensors/dev_1/temp"),
    Probe("topic with dots", levels="10.0.0.1/a.b"),
    Probe("topic with spaces", levels="a b/c d"),
    Probe("topic with empty levels", levels="/a//b/"),
    Probe("topic in UTF-8", levels="größe/温度/😀"),
    Probe("topic with %", levels="50%/of%2F/%25/%2E"),
    Probe("topic that reads like an escape", levels="a__b/x_x20/_./_h"),
    Probe("topic with * and >", levels="*/>/a*b"),
    Probe("topic of 200 levels", levels="/".join("abcdefghij"[n % 10] for n in range(196))),
    Probe("topic beyond Kafka's 249", levels="ü" * 70),
    Probe("topic beyond AMQP's 255", levels=f"{LONG_LEVEL}/{LONG_LEVEL}/end"),
    Probe("value", Message(value=b'{"t": 21.5}')),
    Probe("value, binary", Message(value=bytes(range(256)))),
    Probe("value, empty", Message(value=b"")),
    Probe("value, null", Message(value=None)),
    Probe("value of 900 kB", Message(value=b"0123456789abcdef" * 56_250)),
    Probe("key", Message(key=b"dev-7")),
    Probe("key, binary", Message(key=b"\xff\x00\xfe")),
    Probe("key, empty", Message(key=b"")),
    Probe("headers", Message(headers=[("region", b"eu"), ("unit", "°C".encode()), ("a", b"")])),
    Probe("header, binary", Message(headers=[("h", b"\xff\xfe\x00\x01")])),
    Probe("header with NUL", Message(headers=[("h", b"a\0b")])),
    Probe("header, null", Message(headers=[("h", None)])),
    Probe("headers of one name", Message(headers=[("h", b"1"), ("h", b"2"), ("h", b"1")])),
    Probe("headers of one name, binary and null", Message(headers=[("h", b"\xff"), ("h", None), ("h", b"x")])),
    Probe("header named like a mark", Message(headers=[("h;b64", b"x"), ("i;null", b"y")])),
    Probe("header with an ms- name of the client's", Message(headers=[("ms-mine", b"x")])),
    Probe("header beyond MQTT's 65,535 bytes", Message(headers=[("big", b"x" * 70_000)])),
    Probe("header name beyond AMQP's 255 bytes", Message(headers=[("n" * 300, b"x")])),
    Probe("content type", Message(content_type="application/json")),
    Probe("content encoding", Message(content_encoding="gzip")),
    Probe("payload format", Message(value=b"text", is_text=True)),
    Probe("reply-to", Message(reply_to="answers/10.0.0.1/here")),
    Probe("correlation", Message(correlation=b"c-1")),
    Probe("correlation, binary", Message(correlation=b"\xff\x00\x01")),
    Probe("correlation beyond AMQP's 255 bytes", Message(correlation=b"c" * 300)),
    Probe("message id", Message(message_id="m-1")),
    Probe("expiry", Message(expires_s=3600)),
    Probe("delivery time", Message(deliver_at_ms=MOMENT_US // 1000)),
    Probe("priority", Message(priority=5)),
    Probe("event time, seconds", Message(event_time_us=1_700_000_000_000_000)),
    Probe("event time, milliseconds", Message(event_time_us=MOMENT_US)),
    Probe("event time, microseconds", Message(event_time_us=MOMENT_US + 456)),
    Probe("retain", Message(retain=True)),
    Probe("durability (QoS 0, delivery mode 1)", Message(transient=True)),
    Probe("AMQP type", Message(amqp={"type": "reading"})),
    Probe("AMQP app id", Message(amqp={"app_id": "app"})),
    Probe("AMQP user id", Message(amqp={"user_id": "guest"})),
    Probe("AMQP cluster id", Message(amqp={"cluster_id": "c"})),
    Probe("typed header: integer", Message(typed={"n": 42}), elsewhere=[("n", b"42")]),
    Probe("typed header: boolean", Message(typed={"on": True}), elsewhere=[("on", b"true")]),
    Probe("typed header: decimal", Message(typed={"d": decimal.Decimal("1.25")}), elsewhere=[("d", b"1.25")]),
    Probe(
        "typed header: time",
        Message(typed={"at": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)}),
        elsewhere=[("at", b"1767323045")],
    ),
    Probe(
        "typed header: nested table",
        Message(typed={"table": TABLE}),
        elsewhere=[("table", b'{"deep": {"list": [1, {"x": "y"}], "on": true}, "n": -5}')],
    ),
    Probe("typed header: array", Message(typed={"list": [1, 2]}), elsewhere=[("list", b"[1, 2]")]),
    Probe("CloudEvents attributes", Message(cloud_event=EVENT)),
    Probe("traceparent", Message(headers=[("traceparent", TRACE)])),
    Probe(
        "all at once",
        Message(
            value=b"all",
            key=b"k",
            headers=[("b", b"2"), ("a", b"\xff"), ("traceparent", TRACE)],
            content_type="text/plain",
            content_encoding="identity",
            reply_to="answers/x",
            correlation=b"c",
            message_id="m",
            expires_s=1800,
            priority=9,
            event_time_us=MOMENT_US + 7,
            amqp={"type": "t", "app_id": "a"},
        ),
    ),
]
