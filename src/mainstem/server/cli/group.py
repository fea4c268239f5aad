"""The command tree, and how failures end: 0 done, 1 failed, 2 wrong usage, 69 nobody answers, 78 configuration."""

from __future__ import annotations

import difflib
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import click

from mainstem import __version__
from mainstem.model.errors import ConfigError, InvalidArgument, MainstemError
from mainstem.server.cli import VERBS, load_verb
from mainstem.server.cli.failures import (
    EX_CONFIG,
    EX_FAILED,
    EX_UNAVAILABLE,
    SystemRefused,
    Unreachable,
    missing_part,
)

HELP = """One append-only log, written once; MQTT, Kafka, AMQP 0-9-1, NATS and Spark read it.

\b
Start here:
  mainstem up                                            a broker on this machine
  mainstem sub kafka://localhost/sensors.kitchen.temp    in a second terminal
  mainstem pub mqtt://localhost/sensors/kitchen/temp 21.5
  mainstem demo                                          all of it at once
"""


ELSEWHERE = {  # what others call a verb → ours
    **dict.fromkeys(("delete", "remove", "del", "drop"), ("rm", "forget")),
    "list": ("ls",),
    **dict.fromkeys(("show", "get", "info", "inspect"), ("describe",)),
    **dict.fromkeys(("add", "new", "make"), ("create", "add")),
    "create": ("add",),
    **dict.fromkeys(("update", "set", "edit", "config"), ("alter",)),
}


class OutputClosed(Exception):
    """`mainstem topic ls | head`: whoever read has seen enough."""


class VerbGroup(click.Group):
    """Knows its verbs by name; imports one when it is run, none to list them."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise OutputClosed from error  # left as it is, click would make it a failure

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = load_verb(cmd_name)
        if "_MAINSTEM_COMPLETE" in os.environ:
            from mainstem.server.cli.completing import add_names

            add_names(cmd_name, command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, 1)
            raise click.UsageError(f"no such verb '{args[0]}'" + (f"; did you mean '{near[0]}'?" if near else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


@click.group(
    cls=VerbGroup, help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="mainstem", message="%(prog)s %(version)s")
def root() -> None:
    pass


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit code."""
    verbose = "-vv" in arguments
    arguments = [argument for argument in arguments if argument != "-vv"]
    try:
        status = root.main(args=arguments, prog_name="mainstem", standalone_mode=False)
    except click.exceptions.Abort:
        sys.stderr.write("stopped\n")
        return 130
    except click.ClickException as error:
        error.show()
        sys.stderr.write(meant_verb(error))
        return error.exit_code
    except MainstemError as error:
        if verbose:
            traceback.print_exc()
        return show_error(error)
    except (OutputClosed, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return 130
    except UnicodeEncodeError as error:
        if verbose:
            raise
        if not any("\udc80" <= letter <= "\udcff" for letter in error.object):
            return _show_bug()
        return show_error(
            InvalidArgument(
                f"{os.fsencode(error.object[error.start : error.end])!r} is not UTF-8; names and addresses must be"
            )
        )
    except OSError as error:
        if verbose:
            raise
        where = f"{error.filename}: " if error.filename else ""
        return show_error(SystemRefused(f"{where}{error.strerror or error}", fix="run it again with -vv to see where"))
    except ModuleNotFoundError as error:
        if verbose:
            raise
        missing = missing_part(error.name or "")
        return show_error(missing) if missing is not None else _show_bug()
    except Exception:
        if verbose:
            raise
        return _show_bug()
    return status if isinstance(status, int) else 0


def meant_verb(error: click.ClickException) -> str:
    """What a group calls the verb that somebody knows from elsewhere, or mistyped."""
    context = getattr(error, "ctx", None)
    found = re.match(r"No such command '([^']+)'", error.message)
    if found is None or context is None or not isinstance(context.command, click.Group):
        return ""
    verbs = context.command.list_commands(context)
    meant = next((one for one in ELSEWHERE.get(found[1], ()) if one in verbs), None)
    if meant is None:
        meant = next(iter(difflib.get_close_matches(found[1], verbs, 1)), None)
    if meant is None or "Did you mean" in error.message:
        return ""
    return f"Did you mean 'mainstem {context.info_name} {meant}'?\n"


def show_error(error: MainstemError) -> int:
    """`error[CODE] what` with the fix below it; the exit code says which kind it was."""
    text = str(error)
    lines = [text if text.startswith("error[") else f"error[{error.code}] {text}"]
    if error.fix:
        lines.append(f"  fix: {error.fix}")
    sys.stderr.write("\n".join(lines) + "\n")
    if isinstance(error, Unreachable):
        return EX_UNAVAILABLE
    return EX_CONFIG if isinstance(error, ConfigError) else EX_FAILED


def _show_bug() -> int:
    with tempfile.NamedTemporaryFile("w", prefix="mainstem-", suffix=".txt", delete=False) as file:
        traceback.print_exc(file=file)
    last = traceback.format_exception_only(*sys.exc_info()[:2])[-1].strip()
    sys.stderr.write(
        f"error[MS-0000] a mistake in Mainstem: {last}\n  the details are in {Path(file.name)}: please report it\n"
    )
    return EX_FAILED
