"""`--quota NAME=VALUE`, for namespaces and users."""

from __future__ import annotations

from typing import Any

import click

from mainstem.model.errors import InvalidArgument
from mainstem.server.units import parse_size_bytes

NONE = "none"

quota_option = click.option(
    "--quota",
    "quotas",
    multiple=True,
    metavar="NAME=VALUE",
    help="A limit: publish_bytes_per_s=10MiB, connections_max=100; `none` takes it away. Repeatable.",
)


def read_quotas(pairs: tuple[str, ...]) -> dict[str, Any]:
    """As the API wants them; which there are is the broker's to say."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, given, text = pair.partition("=")
        if not given:
            raise InvalidArgument(f"--quota {pair!r} must be NAME=VALUE", fix="--quota publish_bytes_per_s=10MiB")
        if name == "over_rate":
            found[name] = text
        elif text == NONE:
            found[name] = None
        else:
            try:
                found[name] = parse_size_bytes(text)
            except ValueError as error:
                raise InvalidArgument(f"{name}: {error}") from None
    return found
