"""Packages of public registries that carry their project's own suite, in a cache outside the checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import httpx

from tests.protocol.kafka.java_clients import CACHE

DOWNLOAD_S_MAX = 120
BUILD_S_MAX = 900


class Unavailable(Exception):
    """Why it is not here."""


def crate(name: str, version: str) -> Path:
    """A folder of its own with a crate's files."""
    return _unpacked(f"https://static.crates.io/crates/{name}/{name}-{version}.crate", f"{name}-{version}")


def source_of_python(name: str, version: str) -> Path:
    """What a project published on PyPI, before it was built."""
    archive = f"{name.replace('-', '_')}-{version}"
    page = _get(f"https://pypi.org/simple/{name}/").text
    found = re.search(rf'href="([^"#]*/{re.escape(archive)}\.tar\.gz)', page)
    if found is None:
        raise Unavailable(f"PyPI has no source of {name} {version}")
    return _unpacked(found[1], archive)


def build(folder: Path, done: Path, *commands: list[str]) -> None:
    """Once; `done` is what there is afterwards."""
    for command in commands if not done.exists() else ():
        if shutil.which(command[0]) is None and not command[0].startswith("."):
            raise Unavailable(f"{command[0]} is not installed")
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False)
        assert ran.returncode == 0, f"{' '.join(command)}: {ran.stdout[-2_000:]}{ran.stderr[-2_000:]}"


def _unpacked(address: str, name: str) -> Path:
    folder = CACHE / "suites" / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        archive = folder.with_suffix(".tar.gz.part")
        archive.write_bytes(_get(address).content)
        with tarfile.open(archive) as found:
            found.extractall(folder.parent, filter="data")
        archive.unlink()
    return folder


def _get(address: str) -> httpx.Response:
    try:
        return httpx.get(address, timeout=DOWNLOAD_S_MAX, follow_redirects=True).raise_for_status()
    except httpx.HTTPError as error:
        raise Unavailable(f"{address}: {error}") from error
