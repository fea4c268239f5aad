"""What only a command line can fail with."""

from __future__ import annotations

from mainstem.model.errors import MainstemError

EX_FAILED, EX_UNAVAILABLE, EX_CONFIG = 1, 69, 78

EXTRAS = {  # what is imported → the extra that brings it
    **dict.fromkeys(("pyspark", "py4j", "pyarrow", "pandas", "pyiceberg", "obstore", "yaml", "fastavro"), "pipeline"),
    "duckdb": "ask",
    **dict.fromkeys(("paho", "confluent_kafka", "pika"), "clients"),
}


class Unreachable(MainstemError):
    """Nobody answers at the address."""

    code = "MS-6001"


class WrongPeer(MainstemError):
    """Somebody answers, but it is not a Mainstem, or not that protocol."""

    code = "MS-6002"


class MissingExtra(MainstemError):
    """A part of Mainstem that needs packages which are not installed."""

    code = "MS-6003"


def missing_part(module: str) -> MissingExtra | None:
    """What to install for a module that is not there; None if no part of Mainstem brings it."""
    package, _, rest = module.partition(".")
    if package in EXTRAS:
        extra = EXTRAS[package]
        return MissingExtra(
            f"this command needs {package}, which is not installed", fix=f"pip install 'mainstem[{extra}]'"
        )
    if package == "mainstem" and rest.rpartition(".")[2].startswith("_"):
        return MissingExtra(
            f"the compiled module {module} is not built",
            fix="apt install gcc python3-dev, then make setup; or install a wheel",
        )
    return None


class Refused(MainstemError):
    """The broker answered, and said no."""

    code = "MS-6004"


class SystemRefused(MainstemError):
    """A file, a directory or the command's own output: the operating system said no."""

    code = "MS-6005"
