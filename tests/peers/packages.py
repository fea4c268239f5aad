"""Packages of public registries that carry their project's own suite, in a cache outside the checkout.

The registries' own clients fetch them, from wherever this machine has them configured to.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.protocol.kafka.java_clients import CACHE

DOWNLOAD_S_MAX = 300
BUILD_S_MAX = 900
CARGO_TOML = """[package]
name = "suites"
version = "0.0.0"
edition = "2021"
[lib]
path = "lib.rs"
[dependencies]
{name} = "={version}"
"""


class Unavailable(Exception):
    """Why it is not here."""


def crate(name: str, version: str) -> Path:
    """A folder of its own with a crate's files."""
    folder = _made(f"{name}-{version}")
    if not (folder / "vendor").exists():
        (folder / "Cargo.toml").write_text(CARGO_TOML.format(name=name, version=version.partition("+")[0]))
        (folder / "lib.rs").touch()
        _fetch(folder, "cargo", "vendor", "--quiet", "fetched")
        (folder / "fetched").rename(folder / "vendor")
    return folder / "vendor" / name


def source_of_python(name: str, version: str) -> Path:
    """What a project published as source, before it was built."""
    folder = _made(f"{name}-{version}")
    if not (folder / "source").exists():
        kind = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation")
        _fetch(folder, sys.executable, "-m", "pip", "download", "--quiet", *kind, "--dest", ".", f"{name}=={version}")
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as found:
            found.extractall(folder / "unpacked", filter="data")
        archive.unlink()
        (folder / "unpacked").rename(folder / "source")
    (sources,) = (folder / "source").iterdir()
    return sources


def build(folder: Path, done: Path, *commands: list[str]) -> None:
    """Once; `done` is what there is afterwards."""
    for command in commands if not done.exists() else ():
        if shutil.which(command[0]) is None and not command[0].startswith("."):
            raise Unavailable(f"{command[0]} is not installed")
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False)
        assert ran.returncode == 0, f"{' '.join(command)}: {ran.stdout[-2_000:]}{ran.stderr[-2_000:]}"


def _made(name: str) -> Path:
    folder = CACHE / "suites" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _fetch(folder: Path, *command: str) -> None:
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} is not installed")
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DOWNLOAD_S_MAX, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{' '.join(command)} took more than {DOWNLOAD_S_MAX} s") from error
    if ran.returncode:
        raise Unavailable(f"{' '.join(command)}: {ran.stderr[-300:]}")
