"""NATS's bytes by hand: nats-py's headers are a dict, in which no name stands twice."""

from __future__ import annotations

import contextlib
import threading
from base64 import b64encode
from typing import Any

from mainstem.model.topic import nats_subject, topic_of_nats
from mainstem.testing.broker import Endpoints
from tests.crossing.message import EXACT, MAPPED, CannotSay, Ear, Heard, Message
from tests.crossing.mqtt_speaker import Pairs, unmarked
from tests.crossing.mqtt_speaker import marked as marked_text
from tests.protocol.nats.raw import Raw

TEXTS = {"Content-Type": "content_type", "Content-Encoding": "content_encoding", "Nats-Msg-Id": "message_id"}
NUMBERS = {"Ms-Priority": "priority", "Ms-Deliver-At": "deliver_at_ms", "Ms-Ts": "event_time_us"}
OWN = ("Nats-Msg-Id",)  # that NATS itself gives a meaning


class NatsSpeaker:
    name = "nats"

    def __init__(self, endpoints: Endpoints) -> None:
        self._port = endpoints.ports["nats"]
        # With no_responders, what nobody listens to and asks for a reply would not be stored.
        self._client = Raw(self._port, no_responders=False)

    def close(self) -> None:
        self._client.socket.close()

    # -- saying

    def say(self, message: Message) -> None:
        if message.value is None:
            raise CannotSay("a null payload")
        for name in ("typed", "is_text", "retain"):
            if getattr(message, name):
                raise CannotSay(name)
        pairs = _pairs(message)
        subject = nats_subject(message.topic.encode())
        reply = nats_subject(message.reply_to.encode()) + b" " if message.reply_to is not None else b""
        block = b"".join([b"NATS/1.0\r\n", *(f"{name}: {text}\r\n".encode() for name, text in pairs), b"\r\n"])
        sizes = b"%d %d" % (len(block), len(block) + len(message.value))
        self._client.send(b"HPUB %b %b%b\r\n%b%b\r\n" % (subject, reply, sizes, block, message.value))
        assert self._client.synced() == []

    def raw_of(self, message: Message) -> Any:
        reply = nats_subject(message.reply_to.encode()).decode() if message.reply_to is not None else ""
        return message.topic, message.value, reply, _pairs(message)

    # -- hearing

    def listen(self, *topics: str) -> Ear:
        listener = Raw(self._port)
        for number, topic in enumerate(topics):
            listener.send(b"SUB %b %d\r\n" % (nats_subject(topic.encode()), number + 1))
        assert listener.synced() == []
        listener.socket.settimeout(None)

        def close() -> None:
            with contextlib.suppress(OSError):
                listener.socket.shutdown(2)
            thread.join()
            listener.socket.close()

        ear = Ear(close)

        def read() -> None:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    words = listener.line().split()
                    if words[0] == b"PING":
                        listener.send(b"PONG\r\n")
                    elif words[0] in (b"MSG", b"HMSG"):
                        head = int(words[-2]) if words[0] == b"HMSG" else 0
                        data = listener.exactly(int(words[-1]) + 2)
                        reply = words[3] if len(words) == 5 + (words[0] == b"HMSG") else b""
                        ear.put(_read(words[1], reply, data[:head], data[head:-2]))

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return ear

    def history(self, *topics: str) -> Ear:
        raise NotImplementedError("core NATS has no history")


def marked(name: str, value: bytes | None) -> tuple[str, str]:
    """As a line can carry it: text that has no space around it and no control characters, or a mark."""
    name, text = marked_text(name, value)
    if value is not None and (text != text.strip() or any(ord(one) < 32 or ord(one) == 127 for one in text)):
        return f"{name};b64", b64encode(value).decode()
    return name, text


def _pairs(message: Message) -> Pairs:
    pairs = [marked(name, value) for name, value in message.headers]
    pairs += (marked(f"ce-{name}", value.encode()) for name, value in message.cloud_event.items())
    pairs += (marked(f"amqp-{name.replace('_', '-')}", value.encode()) for name, value in message.amqp.items())
    if message.key is not None:
        pairs.append(marked("Ms-Key", message.key))
    if message.correlation is not None:
        pairs.append(marked("Correlation-Id", message.correlation))
    for name, attribute in (TEXTS | NUMBERS).items():
        value = getattr(message, attribute)
        if value is not None:
            pairs.append(marked(name, str(value).encode()))
    if message.expires_s is not None:
        pairs.append(("Nats-TTL", str(message.expires_s)))
    return pairs


def _read(subject: bytes, reply: bytes, block: bytes, payload: bytes) -> Heard:
    topic = topic_of_nats(subject).decode()
    lines = [line.partition(b": ") for line in block.split(b"\r\n")[1:-2]]
    pairs = [(name.decode(), text.decode()) for name, _, text in lines]
    heard = Heard(Message(topic, payload), (topic, payload, reply.decode(), pairs))
    if reply:
        heard.found("reply_to", topic_of_nats(reply).decode(), EXACT)
    names = [unmarked(*pair)[0] for pair in pairs]
    for name, text in pairs:
        plain, value, place = unmarked(name, text)
        if value is None or names.count(plain) > 1 or not _read_field(heard, plain, value, text):
            heard.add_header(plain, value, place)
    return heard


def _read_field(heard: Heard, name: str, value: bytes, text: str) -> bool:
    if name in TEXTS:
        heard.found(TEXTS[name], value.decode(), EXACT if name in OWN else MAPPED)
    elif name in NUMBERS:
        heard.found(NUMBERS[name], int(text), MAPPED)
    elif name == "Nats-TTL":
        heard.found("expires_s", int(text), EXACT)
    elif name == "Correlation-Id":
        heard.found("correlation", value, MAPPED)
    elif name == "Ms-Key":
        heard.found("key", value, MAPPED)
    elif name == "Ms-Null":
        heard.found("value", None, MAPPED)
    elif name in ("Ms-Format", "Ms-Retain"):
        heard.found({"Ms-Format": "is_text", "Ms-Retain": "retain"}[name], True, MAPPED)
    elif name.startswith("ce-"):
        heard.message.cloud_event[name.removeprefix("ce-")] = text
        heard.places["cloud_event"] = EXACT
    elif name.startswith("amqp-"):
        heard.message.amqp[name.removeprefix("amqp-").replace("-", "_")] = value.decode()
        heard.places["amqp"] = MAPPED
    elif name == "Ms-Origin":
        heard.origin = text
    elif name == "Ms-Amqp-Headers":
        heard.amqp_headers = value
    else:
        return False
    return True
