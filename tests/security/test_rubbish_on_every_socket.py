"""Spoilt conversations on every port at once, while a canary asks each port whether it still answers.

`MAINSTEM_FUZZ_S` is how long (30 s by itself; an hour in `make test-all`), `MAINSTEM_FUZZ_SEED` repeats a run.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time

import pytest

from fuzz.streams import PROTOCOLS, one_stream, pieces_of
from mainstem.testing import BrokerProcess
from tests.security.canary import ask_all

SECONDS = float(os.environ.get("MAINSTEM_FUZZ_S", "30"))
SLOW_SECONDS = float(os.environ.get("MAINSTEM_FUZZ_S", "3600"))
HEAR_S = 0.02  # how long a spoilt client waits for words that may not come
PAUSE_S = 0.25  # between two questions of the canary
REPORT = "could not be handled"


def test_the_broker_answers_all_the_while(attacked: BrokerProcess) -> None:
    fuzz(attacked, SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(SLOW_SECONDS + 300)
def test_the_broker_answers_for_an_hour(attacked: BrokerProcess) -> None:
    fuzz(attacked, SLOW_SECONDS)


def fuzz(broker: BrokerProcess, seconds: float) -> None:
    seed = int(os.environ.get("MAINSTEM_FUZZ_SEED", random.randrange(1 << 32)))
    stop = threading.Event()
    sent: dict[str, list[bytes]] = {protocol: [] for protocol in PROTOCOLS}
    threads = [
        threading.Thread(
            target=spoil, args=(broker, protocol, random.Random(f"{seed} {protocol}"), sent[protocol], stop)
        )
        for protocol in PROTOCOLS
    ]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ask_all(broker)
            time.sleep(PAUSE_S)
    except BaseException as error:
        error.add_note(f"MAINSTEM_FUZZ_SEED={seed}; last sent: { {name: last[-3:] for name, last in sent.items()} }")
        raise
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert broker.running
    assert REPORT not in broker.log(), f"MAINSTEM_FUZZ_SEED={seed}\n" + broker.log()[-4000:]
    assert all(len(streams) for streams in sent.values()), "a port was left in peace"


def spoil(broker: BrokerProcess, protocol: str, rng: random.Random, sent: list[bytes], stop: threading.Event) -> None:
    while not stop.is_set():
        data = one_stream(protocol, rng)
        sent.append(data)
        del sent[:-100]
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", broker.ports[protocol]), 5) as client:
            client.settimeout(HEAR_S)
            for piece in pieces_of(data, rng):
                client.sendall(piece)
            while client.recv(65_536):
                pass
