"""Names of objects for the shell: `mainstem queue describe jo<TAB>` asks the broker, briefly; silent where none answers."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem

from mainstem.model.errors import MainstemError
from mainstem.server.cli.api import DEFAULT_URL, Api
from mainstem.server.cli.contexts import chosen_url

TIMEOUT_S = 1.0
ROWS_MAX = 200
NOUNS = {  # noun → its list, and the field that names one
    "topic": ("/v1/topics", "name"),
    "view": ("/v1/views", "name"),
    "stream": ("/v1/streams", "name"),
    "queue": ("/v1/queues", "name"),
    "group": ("/v1/groups", "name"),
    "session": ("/v1/sessions", "name"),
    "cursor": ("/v1/cursors", "name"),
    "conn": ("/v1/connections", "id"),
    "user": ("/v1/users", "name"),
    "role": ("/v1/roles", "name"),
    "namespace": ("/v1/namespaces", "name"),
    "trace": ("/v1/topics", "name"),
}
NAMING = ("name", "client_id", "connection", "topic")
MAKES = ("create", "add")  # these take a name that is not there yet


def add_names(noun: str, command: click.Command) -> None:
    """Its arguments that name an object offer those that exist."""
    if noun not in NOUNS:
        return
    verbs = dict(command.commands) if isinstance(command, click.Group) else {noun: command}
    for verb, one in verbs.items():
        for parameter in one.params:
            if isinstance(parameter, click.Argument) and parameter.name in NAMING and verb not in MAKES:
                parameter.shell_complete = _Names(*NOUNS[noun])  # type: ignore[method-assign]


class _Names:
    def __init__(self, path: str, field: str) -> None:
        self._path, self._field = path, field

    def __call__(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        url = ctx.params.get("url") or os.environ.get("MAINSTEM_URL") or chosen_url(DEFAULT_URL)
        asked: dict[str, Any] = {"limit": ROWS_MAX}
        if self._path == "/v1/topics":
            asked["search"] = incomplete or None
        with suppress(MainstemError, OSError, KeyError):
            rows = Api(url, timeout_s=TIMEOUT_S).get(self._path, **asked)["items"]
            return [CompletionItem(row[self._field]) for row in rows if row[self._field].startswith(incomplete)]
        return []
