"""Every command that an error, an explanation, a help text or a page tells is one that the parser takes."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mainstem.server.cli.group import root

ROOT = Path(__file__).parents[2]
HOLE = "HOLE"  # what a program fills in
ENDS = re.compile(r"\s(?:#|\||&&|>|<|;|→)\s?.*|[…]")
STOPS = {"or", "and", "then", "with", "to", "on", "again", "for", "is", "as", "in"}


def told_in_code() -> Iterator[tuple[str, str]]:
    """(where, text) of every string of the sources that names a command, as it reads once its holes are filled."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            text = ""
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            elif isinstance(node, ast.JoinedStr):
                text = "".join(str(one.value) if isinstance(one, ast.Constant) else HOLE for one in node.values)
            for line in text.splitlines():
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", line


def told_in_pages() -> Iterator[tuple[str, str]]:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = re.sub(r"\\\n\s*", " ", path.read_text())
        for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL):
            for line in block.splitlines():
                yield str(path.relative_to(ROOT)), line
        for span in re.findall(r"`(mainstem [^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            yield str(path.relative_to(ROOT)), span


def commands(text: str) -> Iterator[list[str]]:
    """What stands behind each `mainstem`, up to where prose goes on."""
    for found in re.finditer(r"(?<![\w./@:\[-])mainstem +(?=[a-z])([^\n`]+)", text):
        said = ENDS.sub("", found[1])
        try:
            words = shlex.split(said.replace("'", '"') if said.count("'") % 2 else said)
        except ValueError:
            words = said.split()
        yield words


def command_of(words: list[str]) -> tuple[click.Command, list[str], str | None]:
    """The command that the words lead to, the rest of them, and what is wrong on the way."""
    command: click.Command = root
    context = click.Context(root)
    while isinstance(command, click.Group) and words:
        word = words[0].rstrip(".,:;)")
        if word.startswith("-") or word.isupper() or "|" in word or word in ("", HOLE):
            return command, [], None
        inner = command.get_command(context, word)
        if inner is None:
            return command, [], f"there is no '{word}' in mainstem {command.name if command is not root else ''}"
        command, ended = inner, words[0] != word
        words = [] if ended else words[1:]
    return command, words, None


def is_prose(word: str) -> bool:
    return word in STOPS or not re.match(r"[-A-Z0-9{/$\"'#+.<\[]|.*(?:://|/|=|\.\w|HOLE|-|_)", word)


def problem(words: list[str]) -> str | None:
    if not words or words[0].rstrip(".,:;)") not in root.list_commands(click.Context(root)):
        return None  # "mainstem up" is a command, "mainstem is" a sentence
    command, rest, wrong = command_of(words)
    if wrong is not None or isinstance(command, click.Group):
        return wrong
    known = {name: one for one in command.params for name in (*one.opts, *one.secondary_opts)}
    takes_value = False
    for word in rest:
        bare = word.strip("[]").rstrip(".,:;)")
        if takes_value:
            takes_value = False
        elif bare.startswith("--") and len(bare) > 2:
            name, equals, _ = bare.partition("=")
            for one in name.split("|"):
                if one not in known and one not in ("--help", "-vv"):
                    return f"mainstem {command.name} has no {one}"
            option = known.get(name.split("|")[0])
            takes_value = isinstance(option, click.Option) and not option.is_flag and not option.count and not equals
        elif is_prose(bare):
            return None
        if word != bare and word.endswith((".", ",", ":", ";", ")")):
            return None
    return None


def test_every_command_told_in_the_sources_exists() -> None:
    wrong = {
        f"{where}: {problem(words)}: mainstem {' '.join(words)}"
        for where, text in told_in_code()
        for words in commands(text)
        if problem(words)
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_every_command_told_in_the_pages_exists() -> None:
    wrong = {
        f"{where}: {problem(words)}: mainstem {' '.join(words)}"
        for where, text in told_in_pages()
        for words in commands(text)
        if problem(words)
    }
    assert not wrong, "\n".join(sorted(wrong))


def whole(text: str) -> str | None:
    """A command that fills its line or its code span, as somebody would copy it; None for prose and synopses."""
    said = ENDS.sub("", re.sub(r"\s{2,}\w.*", "", text.strip().removeprefix("$ ")))  # a help explains behind spaces
    if not said.startswith("mainstem ") or re.search(r"[|<…]|\[-|HOLE|&&", said):
        return None
    if re.search(r"\w[,;] ", re.sub(r"'[^']*'|\"[^\"]*\"", "", said)):
        return None
    try:
        words = shlex.split(said)
    except ValueError:
        return None
    return said if len(words) > 1 and words[1] in root.list_commands(click.Context(root)) else None


def test_a_shell_takes_every_command_as_it_is_written() -> None:
    """Backticks and dollars in double quotes, stars and brackets without quotes: bash must not make something else of it."""
    said = sorted({line for where in (told_in_pages(), told_in_code()) for _, text in where if (line := whole(text))})
    script = """mainstem() { printf '%s\\037' mainstem "$@"; }
    while IFS= read -r line; do (eval "$line") 2>&1; printf '\\036'; done"""
    with tempfile.TemporaryDirectory() as empty:  # so that a star means itself
        ran = subprocess.run(
            ["bash", "-c", script], input="\n".join(said) + "\n", capture_output=True, text=True, cwd=empty, check=True
        )
    made = [answer.split("\x1f")[:-1] for answer in ran.stdout.split("\x1e")[:-1]]
    assert len(said) > 100
    assert len(made) == len(said)
    assert not [f"{line} → {words}" for line, words in zip(said, made, strict=True) if words != shlex.split(line)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mainstem topic delete a", "no 'delete'"),
        ("mainstem log repair 7 --nonsense", "has no --nonsense"),
        ("run mainstem topic rm a, then go on", None),
        ("mainstem doctor checks both", None),
    ],
)
def test_the_check_itself_sees_what_is_wrong(text: str, told: str | None) -> None:
    (words,) = commands(text)
    found = problem(words)
    assert (found is None) == (told is None)
    assert told is None or told in str(found)
