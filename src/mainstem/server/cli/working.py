"""Long work that the broker does while a command waits: how far it is, and how long it will take."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from mainstem.model.errors import MainstemError
from mainstem.server.cli.api import Api
from mainstem.server.cli.output import Progress

WORK_S_MAX = 24 * 3600.0
SHOWN_AFTER_S = 1.0
ASKED_EACH_S = 0.3


def followed(api: Api, kind: str, what: str, request: Callable[[], Any]) -> Any:
    """The answer of a request that may take long. After a moment the broker is asked how far its work is."""
    answers: list[Any] = []
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            answers.append(request())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=ask, name=kind, daemon=True)
    thread.start()
    thread.join(SHOWN_AFTER_S)
    if thread.is_alive():
        with Progress(kind, 0, unit="B") as progress:
            while thread.is_alive():
                with contextlib.suppress(MainstemError):  # who may begin it may not see it, or it has just ended
                    for one in api.get("/v1/work")["items"]:
                        if (one["kind"], one["what"]) == (kind, what):
                            progress.set(one["done_bytes"], one["total_bytes"])
                thread.join(ASKED_EACH_S)
    if failures:
        raise failures[0]
    return answers[0]
