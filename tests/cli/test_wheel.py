"""Installing: a source tree needs gcc and says so; a wheel needs none, and the README's first commands run on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.cli.test_readme import README

ROOT = Path(__file__).parents[2]


def test_without_a_compiler_the_install_names_gcc_and_the_wheel(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(tmp_path / "lib")],
        cwd=ROOT,
        env={**os.environ, "CC": "no-such-compiler", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "no-such-compiler is not on the PATH" in done.stderr
    assert "apt install gcc" in done.stderr
    assert "wheel" in done.stderr
    assert "Traceback" not in done.stderr


def build(tree: Path, cache: Path, into: Path) -> str:
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(into)],
        cwd=tree,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_wheel_runs_where_there_is_no_compiler(tmp_path: Path) -> None:
    for number in (1, 2):
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / f"tree{number}")], check=True)
    count = len(list((tmp_path / "tree1" / "src").rglob("*.pyx")))
    build(tmp_path / "tree1", tmp_path / "cache", tmp_path / "dist")
    again = build(tmp_path / "tree2", tmp_path / "cache", tmp_path / "again")
    assert again.count("kept from before") == count, "a second checkout compiled what had not changed"
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.stat().st_size < 12 << 20, "it is not stripped"

    bare = tmp_path / "bin"  # a PATH with a shell's few words and no compiler
    bare.mkdir()
    for word in ("sh", "bash", "env", "uname", "cat", "sleep"):
        (bare / word).symlink_to(shutil.which(word) or f"/bin/{word}")
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    environment = {"PATH": f"{home}/bin:{bare}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    environment |= {
        name: value for name, value in os.environ.items() if name.lower().startswith(("pip_", "http", "ssl"))
    }
    assert shutil.which("gcc", path=environment["PATH"]) is None
    pip = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    clients = ["paho-mqtt>=2.1,<3", "confluent-kafka>=2.12,<3"]
    subprocess.run([*pip, str(wheel), *clients], env=environment, check=True, cwd=tmp_path)
    first_commands(tmp_path, environment, home / "bin" / "mainstem")


def first_commands(folder: Path, environment: dict[str, str], mainstem: Path) -> None:
    running = subprocess.Popen(
        [str(mainstem), "up"], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert running.stdout is not None
        text = ""
        while "Try:" not in text:
            line = running.stdout.readline()
            assert line, text
            text += line
        ports = dict(re.findall(r"\b(mqtt|kafka|amqp|http) +(\d+)", text))
        script = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)[1].replace("source .venv/bin/activate\n", "")
        for name, port in ports.items():
            script = script.replace(f"{name}://localhost/", f"{name}://localhost:{port}/")
        url = {"MAINSTEM_URL": f"http://127.0.0.1:{ports['http']}"}
        done = subprocess.run(
            ["bash", "-ec", script], cwd=folder, env=environment | url, capture_output=True, text=True, check=False
        )
        assert done.stdout.count("21.5") >= 2, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    finally:
        running.terminate()
        running.wait(60)
