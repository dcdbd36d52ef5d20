"""The control plane's programs: etcd, kube-apiserver, kubectl. Found, downloaded or built, and kept in the cache."""

import dataclasses
import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from testbed.base import cache, host, process, term
from testbed.controlplane import downloads, golang, kubeversions

KUBE_VERSION = "1.37.2"
"""The newest, which demos and tests run."""
VERSION_VARIABLE = "TESTBED_KUBERNETES"
"""Names another version of the API server for tests: one of kubeversions.known()."""
OLDEST = {"kube-apiserver": (1, 30), "kubectl": (1, 30), "etcd": (3, 4)}
_SOURCES = Path(__file__).with_name("kube")
_DOWNLOADS = "https://dl.k8s.io/release"
_VERSION_ARGUMENTS = {"kube-apiserver": ["--version"], "kubectl": ["version", "--client"], "etcd": ["--version"]}


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


@functools.cache
def _ensure(name: str, version: str = KUBE_VERSION) -> Path:
    # An explicit version takes precedence over an installed one.
    installed = _installed(name) if version == KUBE_VERSION else ()
    return next((path for path in installed if _acceptable(name, path)), None) or made(name, version)


def _installed(name: str) -> Iterator[Path]:
    if folder := os.environ.get("KUBEBUILDER_ASSETS"):
        yield Path(folder) / name
    if on_path := shutil.which(name):
        yield Path(on_path)


def _acceptable(name: str, program: Path) -> bool:
    version = golang.parse_version(process.output([str(program), *_VERSION_ARGUMENTS[name]]))
    return version is not None and version >= OLDEST[name]


def made(name: str, version: str = KUBE_VERSION) -> Path:
    """Return etcd or a program of Kubernetes, from the cache; made on the first call, host.SetupError on failure.

    It is downloaded, else built from Go modules: about six minutes on two cores for kube-apiserver.
    """
    return cache.made(f"kube-{version}-{name}", functools.partial(_make, name, version)) / name


def _make(name: str, version: str, folder: Path) -> None:
    if name == "etcd":
        if _from_debian(folder):
            return
    elif content := downloads.get(f"{_DOWNLOADS}/v{version}/bin/linux/{downloads.architecture()}/{name}", ".sha256"):
        downloads.write(folder / name, content)
        return
    package = "go.etcd.io/etcd/server/v3" if name == "etcd" else f"{kubeversions.KUBERNETES}/cmd/{name}"
    with term.step(f"building {name} {version} from its Go modules (minutes, once)"):
        if version == KUBE_VERSION:
            golang.build(package, folder / name, source=_SOURCES, stamps=_stamps(version))
        else:
            kubeversions.build(package, folder / name, version=version, stamps=_stamps(version))


def _from_debian(folder: Path) -> bool:
    """Get Debian's etcd, unpacked only: installing it would start it as a service."""
    if not host.has_apt():
        return False
    try:
        with term.step("fetching etcd from Debian's etcd-server"):
            host.apt_unpack(["etcd-server"], folder, "etcd")
    except host.SetupError as error:
        term.say(f"  {error}")
        return False
    shutil.copy2(folder / "usr/bin/etcd", folder / "etcd")
    shutil.rmtree(folder / "usr")
    return True


def _stamps(version: str) -> list[str]:
    """Return the linker's settings for a program of Kubernetes, so that it knows its version."""
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return [f"{package}.{key}={value}" for package in packages for key, value in values.items()]
