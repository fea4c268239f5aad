"""A proxy in front of an S3 server that is slow, refuses, cuts answers off or loses them, as asked."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator

READ_BYTES = 1 << 16
REFUSALS = {
    "503": (b"503 Slow Down", b"SlowDown", b"Please reduce your request rate."),
    "500": (b"500 Internal Server Error", b"InternalError", b"We encountered an internal error. Please try again."),
    "nobucket": (b"404 Not Found", b"NoSuchBucket", b"The specified bucket does not exist"),
    "skewed": (b"403 Forbidden", b"RequestTimeTooSkewed", b"The difference between the times is too large."),
}


class FaultProxy:
    """`faults[verb]` is what happens to requests of that verb (`*`: of all):

    delay:S   answered S seconds late         503   refused with SlowDown
    cut       the answer ends halfway          lost  carried out, and the answer never comes
    short     a whole answer with half of it   flipped  one bit of the answer is another
    skewed    refused: the clocks differ       nobucket  refused: SeaweedFS would make the bucket
    500       refused with InternalError       reset     the connection is reset before anything is carried out

    `cut*2` (and any other) happens to the first two requests for the same bytes of an object, and not to later ones.
    """

    def __init__(self, upstream: str, host: str = "127.0.0.1") -> None:
        place, _, port = upstream.removeprefix("http://").partition(":")
        self._upstream = place, int(port)
        self.faults: dict[str, str] = {}
        self.requests: Counter[str] = Counter()
        self._met: Counter[tuple[str, bytes]] = Counter()  # requests for the same bytes, by fault
        self._listener = socket.create_server((host, 0))
        self.port = self._listener.getsockname()[1]
        self.endpoint = f"http://{host}:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def forget(self) -> None:
        """Which requests there were already for the same bytes."""
        self._met.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            buffered = b""
            while True:
                request, buffered = _message(client, buffered)
                if not request:
                    return
                if not self._answer(client, request):
                    return

    def _answer(self, client: socket.socket, request: bytes) -> bool:
        """False: the connection is to be closed."""
        verb = request.split(b" ", 1)[0].decode()
        self.requests[verb] += 1
        fault = self._fault(self.faults.get(verb) or self.faults.get("*", ""), request)
        if fault in REFUSALS:
            status, code, message = REFUSALS[fault]
            body = b"<Error><Code>%b</Code><Message>%b</Message></Error>" % (code, message)
            client.sendall(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
            return True
        if fault == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if fault.startswith("delay:"):
            time.sleep(float(fault.partition(":")[2]))
        with socket.create_connection(self._upstream) as upstream:
            upstream.sendall(request)
            answer, _ = _message(upstream, b"", head_only=verb == "HEAD")
        if fault == "lost":
            return False
        if fault == "cut":
            client.sendall(answer[: len(answer) // 2])
            return False
        client.sendall(_changed(answer, fault) if fault in {"short", "flipped"} else answer)
        return True

    def _fault(self, asked: str, request: bytes) -> str:
        """What happens to this one."""
        fault, _, most = asked.partition("*")
        if not most:
            return fault
        lines = request.partition(b"\r\n\r\n")[0].split(b"\r\n")
        which = fault, b"".join([lines[0], *(line for line in lines if line.lower().startswith(b"range:"))])
        self._met[which] += 1
        return fault if self._met[which] <= int(most) else ""


def _changed(answer: bytes, fault: str) -> bytes:
    """An answer that is whole as HTTP, with half of its body or another one."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not body:
        return answer
    if fault == "flipped":
        middle = len(body) // 2
        body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
    else:
        body = body[: len(body) // 2]
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length:")]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


def _message(peer: socket.socket, data: bytes, *, head_only: bool = False) -> tuple[bytes, bytes]:
    """One whole request or answer, and what came behind it."""
    while b"\r\n\r\n" not in data:
        more = peer.recv(READ_BYTES)
        if not more:
            return b"", b""
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    names = {
        name.strip().lower(): value.strip() for name, _, value in (h.partition(b":") for h in head.split(b"\r\n")[1:])
    }
    if names.get(b"expect") == b"100-continue":
        peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = bytearray(rest)
    if names.get(b"transfer-encoding") == b"chunked":
        while (end := _end_of_chunks(body)) < 0:
            more = peer.recv(READ_BYTES)
            if not more:
                return b"", b""
            body += more
        return head + b"\r\n\r\n" + bytes(body[:end]), bytes(body[end:])
    length = 0 if head_only else int(names.get(b"content-length", b"0"))
    while len(body) < length:
        more = peer.recv(READ_BYTES)
        if not more:
            break
        body += more
    return head + b"\r\n\r\n" + bytes(body[:length]), bytes(body[length:])


def _end_of_chunks(body: bytearray) -> int:
    """Behind the last chunk and the trailers that follow it; -1 while there is more to come."""
    at = 0
    while (line := body.find(b"\r\n", at)) >= 0:
        size = int(bytes(body[at:line]).partition(b";")[0], 16)
        if not size:
            if body[line : line + 4] == b"\r\n\r\n":
                return line + 4
            end = body.find(b"\r\n\r\n", line + 2)
            return end + 4 if end >= 0 else -1
        at = line + 2 + size + 2
    return -1


@contextlib.contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    proxy = FaultProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
