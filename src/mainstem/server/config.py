"""Configuration: defaults < TOML file < environment MAINSTEM_SECTION__KEY < flags. All problems at once."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from mainstem.model.counted import counted
from mainstem.model.errors import ConfigError, MainstemError
from mainstem.model.topic_filter import check_filter
from mainstem.server.settings import ALIASES, SECTIONS, Config, Policy, Setting
from mainstem.server.toml_lines import locate_keys

ENVIRONMENT_PREFIX = "MAINSTEM_"
POLICIES = "policies"
UNKNOWN_KEY, BAD_VALUE, BAD_FILE, MISSING_FILE = (
    "MS-4001",
    "MS-4002",
    "MS-4003",
    "MS-4004",
)


@dataclass(frozen=True, slots=True)
class Problem:
    code: str
    what: str
    where: str  # mainstem.toml:14, or the variable or flag
    line: str = ""  # as it stands in the file
    marked: str = ""  # the part of the line that is wrong
    hint: str = ""

    def render(self) -> str:
        text = f"error[{self.code}] {self.what}\n  {self.where}"
        if self.line:
            text += f"  {self.line.strip()}"
        at = self.line.strip().find(self.marked) if self.marked else -1
        if at >= 0:
            indent = 4 + len(self.where) + at
            text += f"\n{' ' * indent}{'^' * len(self.marked)}" + (f" {self.hint}" if self.hint else "")
        elif self.hint:
            text += f"\n  {self.hint}"
        return text


class ConfigProblems(ConfigError):
    """Every problem found; the text shows each with its place and a way out."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        number = counted(len(problems), "problem")
        text = "\n".join(problem.render() for problem in problems)
        code = problems[0].code
        text += f"\n{number}; nothing was started. Check again: mainstem config check    More: mainstem explain {code}"
        super().__init__(text, code=code)


@dataclass(frozen=True, slots=True)
class Given:
    """One value someone gave for one key, before it is understood."""

    path: tuple[str, ...]  # (section, key) or ("policies", filter, key)
    raw: object
    source: str  # what `config show` prints
    where: str
    line: str = ""


def load_config(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> Config:
    """The effective configuration, or ConfigProblems. `flags` are `section.key=value`."""
    problems: list[Problem] = []
    given: list[Given] = []
    if file is not None:
        given += _from_file(file, problems)
    given += _from_environment(environment or {}, problems)
    given += _from_flags(flags, problems)
    config = Config()
    for one in given:
        _apply(config, one, problems)
    if problems:
        raise ConfigProblems(problems)
    return config


def setting_of(path: tuple[str, ...]) -> tuple[str, Setting] | None:
    """The attribute and meaning of a key, its aliases included; None if there is no such key."""
    section = Policy if path[0] == POLICIES else SECTIONS.get(path[0])
    if section is None or len(path) != (3 if path[0] == POLICIES else 2):
        return None
    name = path[-1].replace(".", "_").replace("-", "_")
    if path[0] in (POLICIES, "topics"):
        name = ALIASES.get(name, name)
    for one in fields(section):
        if one.name == name:
            meaning: Setting = one.metadata["setting"]
            return name, meaning
    return None


# -- layers


def _from_file(file: Path, problems: list[Problem]) -> list[Given]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        problems.append(
            Problem(
                MISSING_FILE,
                "the configuration file is not there",
                str(file),
                hint="give another one: --config FILE",
            )
        )
        return []
    except (OSError, UnicodeDecodeError) as error:
        problems.append(
            Problem(
                MISSING_FILE,
                f"the configuration file cannot be read: {error}",
                str(file),
            )
        )
        return []
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(_not_toml(file, text, str(error)))
        return []
    lines, numbers = text.splitlines(), locate_keys(text)

    def given(path: tuple[str, ...], parts: tuple[str, ...], raw: object) -> Given:
        number = next(
            (numbers[parts[:end]] for end in range(len(parts), 0, -1) if parts[:end] in numbers),
            0,
        )
        where = f"{file.name}:{number}" if number else str(file)
        return Given(path, raw, where, where, lines[number - 1] if number else "")

    found: list[Given] = []
    for section, body in tree.items():
        if not isinstance(body, dict):
            found.append(given((section,), (section,), body))
        elif section == POLICIES:
            for filter_, policy in body.items():
                for parts, raw in _leaves(policy):
                    found.append(
                        given(
                            (section, filter_, ".".join(parts)),
                            (section, filter_, *parts),
                            raw,
                        )
                    )
        else:
            for parts, raw in _leaves(body):
                found.append(given((section, ".".join(parts)), (section, *parts), raw))
    return found


def _not_toml(file: Path, text: str, error: str) -> Problem:
    """`tomllib` tells the place in words."""
    found = re.search(r"\(at line (\d+), column \d+\)", error)
    number = int(found[1]) if found else len(text.splitlines())
    line = text.splitlines()[number - 1] if 0 < number <= len(text.splitlines()) else ""
    where = f"{file.name}:{number}" if line else str(file)
    return Problem(BAD_FILE, f"not TOML: {error}", where, line, hint="see https://toml.io for the syntax")


def _leaves(node: object, parts: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], object]]:
    """`retention.ms = 5` parses to nested tables: flatten back."""
    if isinstance(node, dict) and (node or not parts):
        return [leaf for key, value in node.items() for leaf in _leaves(value, (*parts, key))]
    return [(parts, node)]


def _from_environment(environment: Mapping[str, str], problems: list[Problem]) -> list[Given]:
    found = []
    for name, raw in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX) or "__" not in name:
            continue  # MAINSTEM_URL and its like are not settings
        section, _, key = name[len(ENVIRONMENT_PREFIX) :].lower().partition("__")
        found.append(Given((section, key), raw, name, f"environment {name}"))
    return found


def _from_flags(flags: Sequence[str], problems: list[Problem]) -> list[Given]:
    found = []
    for flag in flags:
        name, equals, raw = flag.partition("=")
        section, _, rest = name.strip().partition(".")
        where = f"--set {flag}"
        if not equals or not rest:
            problems.append(
                Problem(
                    BAD_VALUE,
                    "a flag must read section.key=value",
                    where,
                    hint="for example --set topics.durability=os",
                )
            )
            continue
        path: tuple[str, ...] = (section, rest)
        if section == POLICIES:
            filter_, _, key = rest.rpartition(".")
            path = (section, filter_.strip('"'), key)
        found.append(Given(path, raw, "--set", where))
    return found


# -- understanding


def _apply(config: Config, given: Given, problems: list[Problem]) -> None:
    known = setting_of(given.path)
    if known is None:
        problems.append(_unknown(given))
        return
    name, setting = known
    if given.path[0] == POLICIES:
        try:
            check_filter(given.path[1].encode())
        except MainstemError as error:
            problems.append(Problem(BAD_VALUE, f"[policies] {error.message}", given.where, given.line))
            return
    try:
        value = setting.kind.parse(given.raw)
    except ValueError as error:
        key = given.path[-1]
        what = f"[{'.'.join(given.path[:-1])}] {key}: {error}"
        problems.append(Problem(BAD_VALUE, what, given.where, given.line, _value_in(given.line)))
        return
    config.sources[".".join((*given.path[:-1], name))] = given.source
    if given.path[0] == POLICIES:
        setattr(config.policies.setdefault(given.path[1], Policy()), name, value)
    else:
        setattr(getattr(config, given.path[0]), name, value)


def _unknown(given: Given) -> Problem:
    section = given.path[0]
    if section != POLICIES and section not in SECTIONS:
        near = difflib.get_close_matches(section, [*SECTIONS, POLICIES], 1)
        hint = f"did you mean [{near[0]}]?" if near else f"sections are {', '.join([*SECTIONS, POLICIES])}"
        return Problem(
            UNKNOWN_KEY,
            f"unknown section `{section}`",
            given.where,
            given.line,
            section,
            hint,
        )
    key = given.path[-1] if len(given.path) > 1 else ""
    names = [one.name for one in fields(Policy if section == POLICIES else SECTIONS[section])]
    if not key:
        return Problem(
            BAD_VALUE,
            f"`{section}` is a section, not a value",
            given.where,
            given.line,
            section,
            f"write [{section}]",
        )
    near = difflib.get_close_matches(key.replace(".", "_"), names, 1)
    spelled = near[0].replace("_", ".") if near and "." in key else "".join(near)
    elsewhere = [other for other, kind in SECTIONS.items() if any(one.name == key for one in fields(kind))]
    if elsewhere:
        hint = f"did you mean `{elsewhere[0]}.{key}`?"
    elif near:
        hint = f"did you mean `{spelled}`?"
    else:
        hint = "see all keys: mainstem config show"
    return Problem(
        UNKNOWN_KEY,
        f"unknown key `{key}` in [{section}]",
        given.where,
        given.line,
        key,
        hint,
    )


def _value_in(line: str) -> str:
    return line.partition("=")[2].partition(" #")[0].strip()


# -- showing


@dataclass(frozen=True, slots=True)
class Shown:
    key: str
    value: str
    source: str  # "default", or where it was given
    default: str


def show_config(config: Config) -> list[Shown]:
    """Every setting with its value and where that came from, in the order of the reference."""
    shown = []
    for section, kind in SECTIONS.items():
        for one in fields(kind):
            key = f"{section}.{one.name}"
            show = one.metadata["setting"].kind.show
            value = show(getattr(getattr(config, section), one.name))
            shown.append(Shown(key, value, config.sources.get(key, "default"), show(one.default)))
    for filter_, policy in config.policies.items():
        for one in fields(Policy):
            value = getattr(policy, one.name)
            if value is not None:
                key = f"{POLICIES}.{filter_}.{one.name}"
                shown.append(
                    Shown(
                        key,
                        one.metadata["setting"].kind.show(value),
                        config.sources.get(key, "default"),
                        "",
                    )
                )
    return shown
