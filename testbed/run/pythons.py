"""The Python of the image, with the packages of the image, if the tests run on another version."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

from testbed.base import cache, host, paths, process

_LOCK = paths.ROOT / "locks" / "runtime.txt"
_TIMEOUT = 600


def of_image() -> Path | str:
    """Return the Python of a virtual environment with the image's minor version, made once; or why there is none."""
    base = re.search(
        r"^ARG BASE=python:(3\.\d+)", (paths.ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE
    )
    if base is None:
        return "the Dockerfile names no python:3.N as its base"
    version = base[1]
    found = next((each for each in _candidates(version) if _is(each, version)), None)
    if found is None:
        return f"there is no python{version} on PATH or among pyenv's; install one (pyenv install {version})"
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return Path(sys.executable)
    uv = host.uv()
    if uv is None:
        return "there is no uv to install its packages with; start through `make`, which brings one"
    key = hashlib.sha256(b"\0".join([str(found).encode(), _LOCK.read_bytes()])).hexdigest()[:12]
    return cache.made(f"python-{version}-{key}", functools.partial(_make, uv, found)) / "bin" / "python"


def _candidates(version: str) -> list[Path]:
    on_path = shutil.which(f"python{version}")
    roots = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")]
    # A shim of pyenv stands on PATH also for versions that are not selected, and then only fails.
    of_pyenv = [each for root in roots for each in sorted(root.glob(f"versions/{version}.*/bin/python{version}"))]
    return [*([Path(on_path)] if on_path else []), *of_pyenv]


def _is(python: Path, version: str) -> bool:
    return process.output([str(python), "-c", "import sys; print(sys.version)"], timeout=60).startswith(f"{version}.")


def _make(uv: Path, python: Path, folder: Path) -> None:
    offline = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    # Relocatable: it is renamed once it is complete.
    venv = [str(uv), "venv", "-q", "--clear", "--relocatable", "--python", str(python), str(folder)]
    process.run(venv, timeout=60, env=offline)
    target = ["--python", str(folder / "bin" / "python")]
    process.run([str(uv), "pip", "sync", "-q", *target, "--require-hashes", str(_LOCK)], timeout=_TIMEOUT, env=offline)
