"""How long a start waits for an object store that does not serve. One refused request is every day's business of a store;
a store that refuses all of them is somebody's mistake, and whoever starts the broker must hear of it."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from mainstem.storage.tier.store import StoreAway, StoreSettings

logger = logging.getLogger("mainstem.tier")

START_S = 30.0
TRIES_MIN = 2  # a request that hangs may have used up the time
PAUSE_S, PAUSE_S_MAX = 0.25, 5.0  # the first between two tries, and what it doubles to
T = TypeVar("T")


class Patience:
    """`try_again(call)` until it succeeds; all calls together have so many seconds. Not for the loop's thread, which may
    `end` it: whoever stops a broker that starts does not wait for the store."""

    def __init__(self, store: StoreSettings, seconds: float = START_S, ended: threading.Event | None = None) -> None:
        self._store, self._seconds = store, seconds
        self._ended = ended or threading.Event()
        self._left_s = seconds  # only time in which requests fail is counted

    def end(self) -> None:
        self._ended.set()

    def try_again(self, call: Callable[[], T]) -> T:
        began, tries, pause_s = time.monotonic(), 0, PAUSE_S
        while True:
            try:
                found = call()
            except StoreAway as error:
                tries, left_s = tries + 1, self._left_s - (time.monotonic() - began)
                if left_s <= 0 and (tries >= TRIES_MIN or self._seconds <= 0):
                    raise self._given_up(error, tries, time.monotonic() - began) from error
                if tries == 1:
                    logger.warning(
                        "the object store does not serve yet, it is tried again for %.0f s: %s", max(left_s, 0.0), error
                    )
                if self._ended.wait(max(0.0, min(pause_s * random.uniform(0.75, 1.0), left_s))):
                    raise
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            else:
                self._left_s -= time.monotonic() - began if tries else 0.0
                return found

    def _given_up(self, error: StoreAway, tries: int, seconds: float) -> StoreAway:
        where = f"{self._store.url} at {self._store.endpoint}" if self._store.endpoint else self._store.url
        times = "once" if tries == 1 else f"{tries} times within {seconds:.0f} s"
        return StoreAway(
            f"the object store {where} does not serve; asked {times}, it answered: {error.message}",
            fix="see that it runs and takes requests; its address is tier.store and tier.endpoint, "
            "and `mainstem cluster doctor` or `mainstem doctor` asks it again",
        )
