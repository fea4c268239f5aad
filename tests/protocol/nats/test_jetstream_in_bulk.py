"""Many publishes, deliveries and acks in one write: they go another way than single ones, and mean the same."""

from __future__ import annotations

import json
import time
from typing import Any

from mainstem.testing import Broker
from tests.protocol.nats.raw import WAIT_S, Raw
from tests.protocol.nats.test_jetstream import unique

MANY = 500


class Client(Raw):
    """Asks and is answered, by hand."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(int(broker.nats_url.rsplit(":", 1)[1]))
        self.inbox = unique("_INBOX.b")
        self.send(b"SUB %b.> 1\r\n" % self.inbox.encode())
        self.synced()

    def message(self) -> tuple[str, str, bytes, bytes]:
        """Subject, reply, headers and payload of the next one."""
        words = self.line().split()
        assert words[0] in (b"MSG", b"HMSG"), words
        head = int(words[-2]) if words[0] == b"HMSG" else 0
        data = self.exactly(int(words[-1]) + 2)[:-2]
        reply = words[3] if len(words) == (5 if words[0] == b"MSG" else 6) else b""
        return words[1].decode(), reply.decode(), data[:head], data[head:]

    def ask(self, subject: str, body: Any = None) -> dict[str, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        self.send(b"PUB %b %b.ask %d\r\n%b\r\n" % (subject.encode(), self.inbox.encode(), len(data), data))
        answer: dict[str, Any] = json.loads(self.message()[3])
        assert "error" not in answer, answer
        return answer

    def stream(self, **config: Any) -> str:
        name = unique("bulk")
        self.ask(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], **config})
        return name

    def consumer(self, stream: str, **config: Any) -> None:
        given = {"durable_name": "c", "ack_policy": "explicit", **config}
        self.ask(f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.c", {"stream_name": stream, "config": given})

    def place(self, stream: str) -> dict[str, Any]:
        return self.ask(f"$JS.API.CONSUMER.INFO.{stream}.c")

    def pull(self, stream: str, batch: int, to: str) -> bytes:
        body = json.dumps({"batch": batch, "expires": 30_000_000_000}).encode()
        head = f"PUB $JS.API.CONSUMER.MSG.NEXT.{stream}.c {self.inbox}.{to} {len(body)}\r\n".encode()
        return head + body + b"\r\n"

    def publish_all(self, stream: str, count: int = MANY) -> None:
        self.send(b"".join(published(f"{stream}.a", f"{self.inbox}.p", b"%d" % n) for n in range(count)))
        acks = [json.loads(self.message()[3]) for _ in range(count)]
        assert acks == [{"stream": stream, "seq": n + 1} for n in range(count)]


def published(subject: str, reply: str, payload: bytes, **headers: str) -> bytes:
    if not headers:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(payload), payload)
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"NATS/1.0\r\n{lines}\r\n".encode()
    sizes = b"%d %d" % (len(head), len(head) + len(payload))
    return b"HPUB %b %b %b\r\n%b%b\r\n" % (subject.encode(), reply.encode(), sizes, head, payload)


def acked(reply: str, body: bytes = b"+ACK") -> bytes:
    return b"PUB %b %d\r\n%b\r\n" % (reply.encode(), len(body), body)


def test_publishes_of_one_write_are_acked_in_order_whatever_each_of_them_asks(broker: Broker) -> None:
    with Client(broker) as client:
        name, p = client.stream(max_msg_size=100), client.inbox
        client.send(
            published(f"{name}.a", f"{p}.1", b"plain")
            + published(f"{name}.b", f"{p}.2", b"with an id", Nats_Msg_Id="x")
            + published(f"{name}.a", f"{p}.3", b"any header", Colour="red")
            + published(f"{name}.a", f"{p}.4", b"a duplicate", Nats_Msg_Id="x")
            + published(f"{name}.a", f"{p}.5", b"expected", Nats_Expected_Last_Sequence="3")
            + published(f"{name}.a", f"{p}.6", b"not expected", Nats_Expected_Last_Sequence="3")
            + published(f"{name}.c", f"{p}.7", b"first of c", Nats_Expected_Last_Subject_Sequence="0")
            + published(f"{name}.c", f"{p}.8", b"l" * 101)
            + published(f"{name}.c", f"{p}.9", b"last")
        )
        answers = {}
        for _ in range(9):
            subject, _, _, payload = client.message()
            answers[subject.rpartition(".")[2]] = json.loads(payload)
        assert [answers[str(n)]["seq"] for n in range(1, 10)] == [1, 2, 3, 2, 4, 0, 5, 0, 6]
        assert answers["4"]["duplicate"] is True
        assert [answers[n]["error"]["err_code"] for n in "68"] == [10071, 10054]
        state = client.ask(f"$JS.API.STREAM.INFO.{name}")["state"]
        assert (state["messages"], state["last_seq"], state["num_subjects"]) == (6, 6, 3)


def test_a_stream_that_is_changed_or_deleted_takes_no_more_by_the_short_way(broker: Broker) -> None:
    with Client(broker) as client:
        name = client.stream()
        client.publish_all(name, 3)
        config = {"name": name, "subjects": [f"{name}.>"]}
        client.ask(f"$JS.API.STREAM.UPDATE.{name}", {**config, "sealed": True})
        client.send(published(f"{name}.a", f"{client.inbox}.p", b"late") * 2)
        assert [json.loads(client.message()[3])["error"]["err_code"] for _ in range(2)] == [10109] * 2
        client.ask(f"$JS.API.STREAM.DELETE.{name}")
        client.send(published(f"{name}.a", f"{client.inbox}.p", b"later"))
        assert client.message()[2].startswith(b"NATS/1.0 503")


def test_limits_hold_for_what_was_published_in_bulk(broker: Broker) -> None:
    with Client(broker) as client:
        name = client.stream(max_msgs=10)
        client.publish_all(name)
        deadline = time.monotonic() + WAIT_S
        while True:
            state = client.ask(f"$JS.API.STREAM.INFO.{name}")["state"]
            if state["messages"] == 10:
                break
            assert time.monotonic() < deadline, state
        assert (state["first_seq"], state["last_seq"]) == (MANY - 9, MANY)
        assert state["bytes"] == 10 * (30 + len(name) + 2 + 3)


def test_a_pull_gets_all_at_once_and_acks_of_one_write_are_settled_together(broker: Broker) -> None:
    with Client(broker) as client:
        name = client.stream()
        client.publish_all(name)
        client.consumer(name, max_ack_pending=10_000)
        client.send(client.pull(name, MANY, "pull"))
        got = [client.message() for _ in range(MANY)]
        assert [payload for *_, payload in got] == [b"%d" % n for n in range(MANY)]
        tokens = [reply.split(".") for _, reply, _, _ in got]
        assert [(t[4], t[5], t[6], t[8]) for t in tokens] == [
            ("1", str(n + 1), str(n + 1), str(MANY - n - 1)) for n in range(MANY)
        ]
        info = client.place(name)
        assert (info["num_ack_pending"], info["num_pending"], info["num_waiting"]) == (MANY, 0, 0)
        bodies = (b"+ACK", b"", b"+OK")
        client.send(b"".join(acked(reply, bodies[n % 3]) for n, (_, reply, _, _) in enumerate(got) if n != 7))
        info = client.place(name)
        assert info["num_ack_pending"] == 1
        assert (info["ack_floor"]["consumer_seq"], info["ack_floor"]["stream_seq"]) == (7, 7)
        client.send(acked(got[7][1]))
        info = client.place(name)
        assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, MANY)


def test_of_a_batch_only_what_was_not_acked_in_time_comes_again(broker: Broker) -> None:
    with Client(broker) as client:
        name = client.stream()
        client.publish_all(name, 100)
        client.consumer(name, ack_wait=400_000_000)
        client.send(client.pull(name, 100, "pull"))
        got = [client.message() for _ in range(100)]
        kept = [10, 11, 60]
        client.send(b"".join(acked(reply) for n, (_, reply, _, _) in enumerate(got) if n not in kept))
        client.send(client.pull(name, 3, "again"))
        again = [client.message() for _ in kept]
        assert [int(payload) for *_, payload in again] == kept
        assert [reply.split(".")[4:7] for _, reply, _, _ in again] == [
            ["2", str(n + 1), str(101 + place)] for place, n in enumerate(kept)
        ]
        client.send(acked(again[0][1]) + acked(again[1][1], b"-NAK") + acked(again[2][1], b"+TERM"))
        client.send(client.pull(name, 1, "last"))
        assert int(client.message()[3]) == 11


def test_pulls_that_wait_get_a_message_each_in_turns(broker: Broker) -> None:
    with Client(broker) as client, Client(broker) as a, Client(broker) as b, Client(broker) as c:
        name = client.stream()
        client.consumer(name)
        for one, batch in ((a, 3), (b, 1), (c, 2)):
            one.send(one.pull(name, batch, "pull"))
            one.synced()
        client.send(b"".join(published(f"{name}.a", "", b"%d" % n) for n in range(7)))
        got = [[int(one.message()[3]) for _ in range(count)] for one, count in ((a, 3), (b, 1), (c, 2))]
        assert got == [[0, 3, 5], [1], [2, 4]]
        assert client.place(name)["num_waiting"] == 0


def test_who_may_not_consume_acks_nothing_and_who_listens_to_acks_hears_them(broker: Broker) -> None:
    with Client(broker) as client, Client(broker) as other:
        name = client.stream()
        client.publish_all(name, 4)
        client.consumer(name)
        client.send(client.pull(name, 4, "pull"))
        got = [client.message() for _ in range(4)]
        other.send(b"SUB $JS.ACK.%b.> 7\r\n" % name.encode())
        other.synced()
        client.send(b"".join(acked(reply) for _, reply, _, _ in got[:2]))
        assert [other.message()[0] for _ in range(2)] == [reply for _, reply, _, _ in got[:2]]
        other.send(b"UNSUB 7\r\n")
        other.synced()
        wrong = got[2][1].replace(f".{name}.c.", f".{name}.nobody.")
        client.send(acked(wrong) + acked(got[2][1] + ".x.y.z") + acked("$JS.ACK.too.short"))
        assert client.place(name)["num_ack_pending"] == 2
