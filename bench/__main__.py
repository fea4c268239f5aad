"""All benches, or those named: `python -m bench [NAME ...]`. Results go to bench/results/<name>.md.

A bench is a module here with a `main()`; what it prints is its result, and its docstring's first line the title. Each runs
in a process of its own, one after the other, so that none heats the caches or the heap of the next.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

from bench.machine import RESULTS, ROOT, write_result

FOLDER = Path(__file__).parent
SECONDS_MAX = 1800
NO_BENCH = ("_load",)  # generators that a bench starts


def benches() -> dict[str, str]:
    """Name → title."""
    found: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem.startswith("_") or path.stem.endswith(NO_BENCH):
            continue
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or path.stem).splitlines()[0].rstrip(".")
    return found


def run(name: str, title: str) -> bool:
    """Show what it prints as it comes, keep it as its result."""
    print(f"== {name}: {title}", flush=True)
    began, lines = time.time(), list[str]()
    command = [sys.executable, "-u", "-m", f"bench.{name}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
            if time.time() - began > SECONDS_MAX:
                process.kill()
                lines.append(f"stopped after {SECONDS_MAX} s\n")
        code = process.wait()
    own = RESULTS / f"{name}.md"
    if code == 0 and not (own.exists() and own.stat().st_mtime >= began):  # some write a page of their own
        write_result(name, title, "".join(lines))
    return code == 0


def main() -> int:
    known = benches()
    wanted = sys.argv[1:] or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"no bench {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = [name for name in wanted if not run(name, known[name])]
    for name in failed:
        print(f"bench {name} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
