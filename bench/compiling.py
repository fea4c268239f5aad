"""Compiles a bench's own loop into a temporary folder: what C calls has no Python name, on purpose."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType

from bench.machine import ROOT


def compiled(name: str) -> ModuleType:
    """The module bench/<name>.pyx."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    with tempfile.TemporaryDirectory() as folder:
        extension = Extension(name, [str(ROOT / "bench" / f"{name}.pyx")])
        modules = cythonize(extension, build_dir=folder, include_path=[str(ROOT / "src")], quiet=True)
        build = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
        build.build_lib = build.build_temp = folder
        build.ensure_finalized()
        build.run()
        spec = importlib.util.spec_from_file_location(name, next(Path(folder).glob(f"{name}*.so")))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
