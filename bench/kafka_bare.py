"""The bound of a broker whose answers lie in a file as they are sent: it has the kernel send them, and does nothing else.

The file is one recorded answer of a Fetch. Whatever comes on a connection gets it by `sendfile`, once for as many bytes as a
request has: what remains is the cost of the operating system, and of a dozen lines of Python for a megabyte.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from multiprocessing import get_context
from threading import Thread

from bench.kafka_load import connect, fetch_request

CORE = 1


def recorded_answer(port: int, request: bytes) -> bytes:
    stream = connect(port, request)
    with stream.socket:
        stream.socket.setblocking(True)
        stream.socket.sendall(request)
        return stream.exactly(stream.answer_bytes)


def answer(peer: socket.socket, request_bytes: int, file: int, size: int) -> None:
    with peer, contextlib.suppress(ConnectionError):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")  # not paced, as Mainstem's are not
        while len(peer.recv(request_bytes, socket.MSG_WAITALL)) == request_bytes:
            sent = 0
            while sent < size:
                sent += os.sendfile(peer.fileno(), file, sent, size - sent)


def answer_forever(listener: socket.socket, request_bytes: int, file: int, size: int) -> None:
    os.sched_setaffinity(0, {CORE})
    while True:
        peer, _ = listener.accept()
        Thread(target=answer, args=(peer, request_bytes, file, size), daemon=True).start()


@contextlib.contextmanager
def bare_server(port: int, topic: str) -> Iterator[tuple[int, int]]:
    """Port and process of one that answers as the broker at `port` does to the first fetch of `topic`."""
    request = fetch_request(topic)
    data = recorded_answer(port, request)
    with tempfile.TemporaryFile() as file, socket.create_server(("127.0.0.1", 0)) as listener:
        file.write(data)
        file.flush()
        arguments = (listener, len(request), file.fileno(), len(data))
        process = get_context("fork").Process(target=answer_forever, args=arguments, daemon=True)
        process.start()
        try:
            assert process.pid is not None
            yield listener.getsockname()[1], process.pid
        finally:
            process.terminate()
            process.join(10)
