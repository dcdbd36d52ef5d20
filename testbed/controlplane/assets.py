"""The control plane's programs: etcd, kube-apiserver, kubectl. Found, fetched or built, and kept in the cache."""

import dataclasses
import functools
import os
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from testbed.base import cache, host, process, term
from testbed.controlplane import golang, kubeversions

KUBE_VERSION = "1.37.2"
"""The newest, which demos and tests run."""
VERSION_VARIABLE = "TESTBED_KUBERNETES"
"""Names another version of the API server for tests: one of kubeversions.known()."""
ENVTEST_TOOL = "sigs.k8s.io/controller-runtime/tools/setup-envtest@v0.25.1"
ENVTEST_HOST = "https://github.com"
SOURCES = Path(__file__).with_name("kube")
BUILDS = {
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "etcd": "go.etcd.io/etcd/server/v3",
}
OLDEST = {"kube-apiserver": (1, 30), "kubectl": (1, 30), "etcd": (3, 4)}
_VERSION_ARGUMENTS = {"kube-apiserver": ["--version"], "kubectl": ["version", "--client"], "etcd": ["--version"]}
_STALL_TIMEOUT = 30.0
_PROBE_TIMEOUT = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Assets:
    """The paths of the control plane's programs."""

    etcd: Path
    kube_apiserver: Path
    kubectl: Path


def ensure() -> Assets:
    """Return all three programs, from the first source that has each; host.SetupError if one is unavailable.

    The API server has the version that TESTBED_KUBERNETES names, else the newest.
    """
    host.need_linux()
    apiserver = _ensure("kube-apiserver", _version())
    return Assets(etcd=_ensure("etcd"), kube_apiserver=apiserver, kubectl=_ensure("kubectl"))


def version() -> tuple[int, int]:
    """Return the major and minor version of the API server that tests run."""
    major, minor, *_ = _version().split(".")
    return int(major), int(minor)


def _version() -> str:
    return os.environ.get(VERSION_VARIABLE) or KUBE_VERSION


def apiserver(version: str) -> Path:
    """Return kube-apiserver alone, of any version that kubeversions knows; host.SetupError if it is unavailable."""
    host.need_linux()
    return _ensure("kube-apiserver", version)


def kubectl() -> Path:
    """Return kubectl alone, for clusters of others; host.SetupError if it is unavailable."""
    host.need_linux()
    return _ensure("kubectl")


def _ensure(name: str, version: str = KUBE_VERSION) -> Path:
    if present := _present(name, version):
        return present
    with cache.lock("controlplane"):
        if present := _present(name, version):  # Another set-up made it while this one waited.
            return present
        for source in (_from_envtest, _from_debian, _from_modules):
            if made := source(name, version):
                return made
    raise AssertionError("the last source returns a program or raises")


def _present(name: str, version: str) -> Path | None:
    return next((path for path in _places(name, version) if path.is_file() and _acceptable(name, path)), None)


def _places(name: str, version: str) -> Iterator[Path]:
    # An explicit version takes precedence over an installed one.
    if version == KUBE_VERSION:
        if folder := os.environ.get("KUBEBUILDER_ASSETS"):
            yield Path(folder) / name
        if on_path := shutil.which(name):
            yield Path(on_path)
    for kept in (f"kube-{version}", f"kube-{version}-{name}"):
        if installed := cache.find(kept):
            yield installed / name


def _acceptable(name: str, program: Path) -> bool:
    try:
        said = process.run([str(program), *_VERSION_ARGUMENTS[name]], timeout=30)
    except (process.ProcessError, OSError):
        return False
    version = golang.parse_version(said.stdout)
    return version is not None and version >= OLDEST[name]


def _from_envtest(name: str, version: str) -> Path | None:
    """Get prebuilt programs by setup-envtest. GitHub has them, which not every network reaches: give up early."""
    if tool := shutil.which("setup-envtest"):
        command = [tool]
    elif go := golang.find():
        command = [str(go), "run", ENVTEST_TOOL]
    else:
        return None
    if not _reaches_github():
        term.say("setup-envtest is of no use here: GitHub can't be reached")
        return None
    bins = cache.root() / "envtest"
    minor = version.rpartition(".")[0]
    command += ["use", "-p", "path", "--bin-dir", str(bins), f"{minor}.x"]
    log = cache.root() / "envtest.log"
    log.unlink(missing_ok=True)
    with (
        term.step("trying setup-envtest for prebuilt programs"),
        process.Process("setup-envtest", command, log=log) as run,
    ):
        done = golang.follow(run, lambda: log.stat().st_size + _size(bins), stall=_STALL_TIMEOUT)
    folders = [line for line in run.output().splitlines() if line.startswith(str(bins))]
    if done != 0 or not folders:
        term.say(f"  no luck; going on without it:\n{run.tail(3)}")
        return None
    made = Path(folders[-1].strip())
    with cache.install(f"kube-{version}") as folder:
        for program in BUILDS:
            shutil.copy2(made / program, folder / program)
    return _present(name, version)


@functools.cache
def _reaches_github() -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(ENVTEST_HOST, method="HEAD"), timeout=_PROBE_TIMEOUT).close()
    except OSError:
        return False
    return True


def _from_debian(name: str, version: str) -> Path | None:
    """Get Debian's etcd, unpacked only: installing it would start it as a service. Kubernetes is not in Debian."""
    if name != "etcd" or not host.has_apt():
        return None
    try:
        with term.step("fetching etcd from Debian's etcd-server"), cache.install(f"kube-{version}-etcd") as folder:
            host.apt_unpack(["etcd-server"], folder, "etcd")
            shutil.copy2(folder / "usr/bin/etcd", folder / "etcd")
            shutil.rmtree(folder / "usr")
    except host.SetupError as error:
        term.say(f"  {error}")
        return None
    return _present(name, version)


def kube_stamps(version: str = KUBE_VERSION) -> list[str]:
    """Return the linker's settings for a program of Kubernetes, so that it knows its version."""
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return [f"{package}.{key}={value}" for package in packages for key, value in values.items()]


def _from_modules(name: str, version: str) -> Path:
    """Build from Go modules; about six minutes on two cores for kube-apiserver."""
    target = f"kube-{version}-{name}"
    stamps = kube_stamps(version)
    with term.step(f"building {name} {version} from its Go modules (minutes, once)"), cache.install(target) as folder:
        if version == KUBE_VERSION:
            golang.build(BUILDS[name], folder / name, source=SOURCES, stamps=stamps)
        else:
            kubeversions.build(BUILDS[name], folder / name, version=version, stamps=stamps)
    if made := _present(name, version):
        return made
    raise host.SetupError(f"the {name} that was built does not run", f"remove {cache.root() / target} and set up again")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
