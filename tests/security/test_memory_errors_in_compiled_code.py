"""The compiled modules built with ASan and UBSan, under the fuzz targets: a read past a buffer ends the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("fuzz_mqtt", "fuzz_amqp", "fuzz_kafka", "fuzz_nats", "fuzz_batch", "fuzz_sessions")
SECONDS = os.environ.get("MAINSTEM_SANITIZED_S", "20")
FLAGS = "-O1 -g -fsanitize=address,undefined -fno-sanitize=alignment -fno-sanitize-recover=all -fno-omit-frame-pointer"
COPIED = ("src/mainstem", "fuzz", "tests/oracles", "setup.py", "pyproject.toml", "README.md", "LICENSE")
NO_BUILD = shutil.ignore_patterns("*.so", "*.c", "__pycache__")


def runtime(name: str) -> str:
    """The library's path where gcc has it; its bare name where it has not."""
    told = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=False)
    return told.stdout.strip()


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with its modules built so, in place."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc here")
    if not all(Path(runtime(name)).is_absolute() for name in ("libasan.so", "libubsan.so")):
        pytest.skip("gcc has no sanitizer runtime here: apt install libasan8 libubsan1, or those of its version")
    tree = tmp_path_factory.mktemp("sanitized")
    for name in COPIED:
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=NO_BUILD)
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, target)
    (tree / "tests" / "__init__.py").touch()
    environment = {**os.environ, "CFLAGS": FLAGS, "LDFLAGS": FLAGS, "XDG_CACHE_HOME": str(tree / "cache")}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    built = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-4000:]
    return tree


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS)
def test_no_target_reads_or_writes_where_it_must_not(sanitized: Path, target: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{sanitized / 'src'}:{sanitized}",
        "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libubsan.so')}",
        "PYTHONMALLOC": "malloc",  # each object is an allocation of its own, so that what lies past it is nobody's
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    command = [sys.executable, "-m", f"fuzz.{target}", SECONDS, "1"]
    done = subprocess.run(command, cwd=sanitized, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert "nothing found" in done.stdout
