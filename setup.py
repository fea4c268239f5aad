"""Every `.pyx` under src is a compiled module; its path is its name. What did not change is not compiled again.

A built module is kept in the user's cache under a hash of all that went into it: its source, what it cimports and includes,
the flags, the versions of Cython and Python. So a fresh checkout, `pip install` and `make wheel` find what was built before.
"""

import gc
import hashlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import types
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILE = ["-O2", "-g0"]
COMPILE_HOT = ["-O3", "-g0"]  # a twentieth less of the processor's time for each message, a quarter more to compile
HOT = ("broker/delivery/", "broker/queues/", "codec/_batch", "log/_gather", "protocols/")  # what messages go through
SHARED = "mainstem._cyutility"  # what Cython would write into each module again: a third of the time to compile
TRANSLATE = [
    "-3",
    "-I",
    "src",
    "-X",
    "auto_pickle=False",
]  # nobody pickles them: to be able to is an eighth of the code
LINK = ["-s"] if sys.platform == "linux" else []  # stripped
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mainstem" / "modules"
CACHED_MAX = 500  # files, about ten versions of everything; the oldest leave
NO_COMPILER = """
Mainstem's hot modules are compiled, and {missing}.
  Debian, Ubuntu:  apt install gcc python3-dev
  or install a wheel, which needs no compiler: `make wheel` on a machine with one writes it into dist/
"""


class BuildModules(build_ext):
    def initialize_options(self):
        super().initialize_options()
        self.parallel = os.cpu_count()

    def build_extensions(self):
        self._built, self._telling = 0, threading.Lock()
        from Cython.Build.Dependencies import create_dependency_tree

        tree = create_dependency_tree(quiet=True)
        self._keys = {ext.name: self._key(ext, tree) for ext in self.extensions}
        missing = [ext for ext in self.extensions if not self._kept(ext).exists()]
        if missing:
            self._require_compiler()
            self._translators = translators(min(self.parallel, len(missing)))
        super().build_extensions()
        for oldest in sorted(CACHE.glob("*"), key=lambda path: path.stat().st_mtime)[:-CACHED_MAX]:
            oldest.unlink(missing_ok=True)

    def build_extension(self, ext):
        """In a thread of its own; Cython and gcc run in other processes."""
        target, kept = Path(self.get_ext_fullpath(ext.name)), self._kept(ext)
        target.parent.mkdir(parents=True, exist_ok=True)
        if kept.exists():
            os.utime(kept)
            shutil.copy(kept, target)
            how = "kept from before"
        else:
            began = time.monotonic()
            source = str(Path(ext.sources[0]).with_suffix(".c"))
            if ext.name == SHARED:
                command = [sys.executable, "-m", "cython", "-3", "-I", "src", "--generate-shared", source]
                subprocess.run(command, check=True)
            elif not self._translators.apply(translate, (ext.sources[0], source)):
                raise SystemExit(f"{ext.sources[0]} cannot be translated: Cython says why above")
            ext.sources = [source]
            super().build_extension(ext)
            CACHE.mkdir(parents=True, exist_ok=True)
            part = kept.with_suffix(f".{os.getpid()}")
            shutil.copy(target, part)
            part.replace(kept)
            how = f"{time.monotonic() - began:.1f} s"
        with self._telling:
            self._built += 1
            sys.stderr.write(f"[{self._built}/{len(self.extensions)}] {ext.name}  {how}\n")

    def _key(self, ext, tree):
        import Cython

        flags = ext.extra_compile_args
        digest = hashlib.sha256(
            repr((Cython.__version__, sys.version, sysconfig.get_platform(), flags, LINK, SHARED, TRANSLATE)).encode()
        )
        digest.update(os.environ.get("CFLAGS", "").encode())
        known = sorted(tree.all_dependencies(ext.sources[0])) if ext.name != SHARED else []
        for path in [*known, *sorted(Path(ext.sources[0]).parent.glob("*.h"))]:  # headers beside it are not in the tree
            digest.update(os.path.relpath(path).encode() + b"\0" + Path(path).read_bytes())
        return digest.hexdigest()[:40]

    def _kept(self, ext):
        return CACHE / f"{ext.name}-{self._keys[ext.name]}.so"

    def _require_compiler(self):
        compiler = (sysconfig.get_config_var("CC") or "gcc").split()[0]
        compiler = os.environ.get("CC", compiler).split()[0]
        if shutil.which(compiler) is None:
            raise SystemExit(NO_COMPILER.format(missing=f"there is no C compiler here ({compiler} is not on the PATH)"))
        if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
            raise SystemExit(NO_COMPILER.format(missing="Python's header files are not installed"))


def translators(count):
    """Processes that have loaded Cython and its grammar before they were forked: two thirds of what a small module takes."""
    import Cython.Compiler.ParseTreeTransforms  # noqa: F401  its import makes the grammar's tables

    # pip runs this file without making it a module, and they are told what to do by its module and name.
    named = types.ModuleType("mainstem_setup")
    named.translate, translate.__module__ = translate, named.__name__
    sys.modules[named.__name__] = named
    return multiprocessing.get_context("fork").Pool(count, collect_seldom)


def collect_seldom():
    """Cython's trees live until their module is done: to look through them for garbage is a fifth of its time."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def translate(source, target):
    """In one of them: whether Cython made C of it."""
    from Cython.Compiler.CmdLine import parse_command_line
    from Cython.Compiler.Main import compile as make_c

    options, sources = parse_command_line([*TRANSLATE, source, "-o", target, "--shared", SHARED])
    return make_c(sources, options).num_errors == 0


def modules():
    """Those that take longest first, so that no core is left alone with one at the end."""
    sources = sorted(Path("src").rglob("*.pyx"), key=lambda path: -path.stat().st_size)
    named = [(".".join(path.with_suffix("").parts[1:]), str(path)) for path in sources]
    named.insert(0, (SHARED, f"src/{SHARED.replace('.', '/')}.pyx"))
    return [Extension(name, [path], extra_compile_args=flags(path), extra_link_args=LINK) for name, path in named]


def flags(path):
    return COMPILE_HOT if path.startswith(tuple(f"src/mainstem/{hot}" for hot in HOT)) else COMPILE


if __name__ == "__main__":
    # `make setup` compiles them beside pip's installation of the package.
    apart = "MAINSTEM_MODULES_APART" in os.environ
    setup(ext_modules=[] if apart else modules(), cmdclass={"build_ext": BuildModules})
