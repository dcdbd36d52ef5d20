"""Programs of a whole cluster beside the control plane's core: others of Kubernetes, containerd, helm, kind.

Each is taken from the cache, else from PATH (those that run on this machine), else from its project's downloads, else
built from Go modules.
"""

import dataclasses
import functools
import hashlib
import http.client
import io
import os
import platform
import shutil
import socket
import tarfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from testbed.base import cache, host, process, term
from testbed.controlplane import assets, golang

CONTAINERD_VERSION = "2.4.2"
HELM_VERSION = "3.21.4"
KIND_VERSION = "0.33.0"
NFD_VERSION = "0.18.3"
NFD_CRDS = "nfd-api-crds.yaml"
KUBE_ON_HOST = ("kube-controller-manager", "kube-scheduler")
KUBE_ON_NODE = ("kubelet", "kube-proxy")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_KUBE_DOWNLOADS = "https://dl.k8s.io/release"
_CONNECT_TIMEOUT = 5.0
_READ_TIMEOUT = 30.0
_MAX_DOWNLOAD = 256 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """One project's programs: their download, and the module to build them from."""

    name: str
    version: str
    programs: tuple[str, ...]
    url: str  # of a program, or of a .tar.gz with all of them
    checksum_suffix: str
    module: str
    module_checksum: str
    stamps: Mapping[str, str]
    tags: str = ""


def architecture() -> str:
    """Return Go's name of this machine's architecture; host.SetupError if no programs exist for it."""
    machine = platform.machine()
    host.need(
        machine in _ARCHITECTURES,
        f"there are no programs for {machine}",
        f"use a machine with one of: {', '.join(_ARCHITECTURES)}",
    )
    return _ARCHITECTURES[machine]


def _helm() -> Release:
    name = f"helm-v{HELM_VERSION}-linux-{architecture()}.tar.gz"
    # Without a version of Kubernetes, `helm template` renders for 1.20.
    major, minor, _ = assets.KUBE_VERSION.split(".")
    parts = {"k8sVersionMajor": major, "k8sVersionMinor": minor}
    packages = ("helm.sh/helm/v3/pkg/chartutil", "helm.sh/helm/v3/pkg/lint/rules")
    kube = {f"{package}.{part}": text for package in packages for part, text in parts.items()}
    return Release(
        name="helm",
        version=HELM_VERSION,
        programs=("helm",),
        url=f"https://get.helm.sh/{name}",
        checksum_suffix=".sha256sum",
        module="helm.sh/helm/v3",
        module_checksum="h1:T/GcIEXU/gNjJnkITlIZ3e9xqkZjhFTmISuStTZ6+Qg=",
        stamps={"helm.sh/helm/v3/internal/version.version": f"v{HELM_VERSION}"} | kube,
    )


def _containerd() -> Release:
    name = f"containerd-static-{CONTAINERD_VERSION}-linux-{architecture()}.tar.gz"
    return Release(
        name="containerd",
        version=CONTAINERD_VERSION,
        programs=("containerd", "containerd-shim-runc-v2", "ctr"),
        url=f"https://github.com/containerd/containerd/releases/download/v{CONTAINERD_VERSION}/{name}",
        checksum_suffix=".sha256sum",
        module="github.com/containerd/containerd/v2",
        module_checksum="h1:p6Qg+xbEz8lvwdhHDx0U469xENvp4LgGBx+E7djXkGw=",
        stamps={"github.com/containerd/containerd/v2/version.Version": f"v{CONTAINERD_VERSION}"},
        tags="no_btrfs,no_devmapper,no_zfs",
    )


def _kind() -> Release:
    return Release(
        name="kind",
        version=KIND_VERSION,
        programs=("kind",),
        url=f"https://github.com/kubernetes-sigs/kind/releases/download/v{KIND_VERSION}/kind-linux-{architecture()}",
        checksum_suffix=".sha256sum",
        module="sigs.k8s.io/kind",
        module_checksum="h1:AjvDv3vOygb/VKLVQW87lfktIBzkxR8Ump9DjxC8+Lk=",
        stamps={},
    )


def helm() -> Path:
    """A helm of version 3."""
    return on_path("helm", ["version", "--short"], "v3.") or fetched(_helm()) / "helm"


def helm_environment() -> dict[str, str]:
    """Return this process's environment for helm, without variables that would lead it to another cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HELM_KUBE")}


def kind() -> Path:
    """A kind, for machines where docker works."""
    return on_path("kind", ["version"], "kind v0.") or fetched(_kind()) / "kind"


def containerd() -> Path:
    """A folder with containerd, its shim for runc, and ctr; static, for the node's own system."""
    return fetched(_containerd())


def nfd() -> Path:
    """Return a folder with nfd-master of Node Feature Discovery, and NFD_CRDS; built here: releases are images only."""
    kept = f"nfd-{NFD_VERSION}"
    with cache.lock(kept):
        if not cache.find(kept):
            with cache.install(kept) as folder:
                _build_nfd(folder)
    return cache.root() / kept


def _build_nfd(folder: Path) -> None:
    name, version = "sigs.k8s.io/node-feature-discovery", f"v{NFD_VERSION}"
    source = golang.module(name, version, "h1:q5/qpyxrasI/F6838lflFNGAUszpMNRuFwornPLYdxQ=")
    # Its go.mod looks for the module of its API in its own folder, but a module does not include nested modules.
    api = golang.module(f"{name}/api/nfd", version, "h1:l+ZtPZTdgsdG2POxY7oh7gdk/ML/FLI5VKwSDBl1fyk=")
    mod_file, inside = folder / "go.mod", f"{name}/api/nfd => ./api/nfd"
    text = (source / "go.mod").read_text(encoding="utf-8")
    host.need(
        inside in text, f"go.mod of {name} has no line with {inside!r}", "look for a newer version of the testbed"
    )
    mod_file.write_text(text.replace(inside, f"{name}/api/nfd => {api}"), encoding="utf-8")
    shutil.copyfile(source / "go.sum", folder / "go.sum")
    stamps = [f"{name}/pkg/version.version={version}"]
    with term.step(f"building nfd-master {NFD_VERSION} from its Go modules (minutes, once)"):
        golang.build("./cmd/nfd-master", folder / "nfd-master", source=source, stamps=stamps, mod_file=mod_file)
    shutil.copyfile(source / "deployment" / "base" / "nfd-crds" / NFD_CRDS, folder / NFD_CRDS)


def promtool() -> Path:
    """Return Prometheus' checker of metrics and rules: that of PATH, else Debian's, unpacked without its server."""
    return on_path("promtool", ["--version"], "promtool, version ") or _of_prometheus()


def _of_prometheus() -> Path:
    with cache.lock("promtool"):
        if not cache.find("promtool"):
            with term.step("fetching promtool"), cache.install("promtool") as folder:
                unpacked = folder / "unpacked"
                unpacked.mkdir()
                host.apt_unpack(["prometheus"], unpacked, "the check of metrics and alerts")
                program = unpacked / "usr" / "bin" / "promtool"
                host.need(program.exists(), "the package prometheus holds no promtool", "put a promtool on PATH")
                program.rename(folder / "promtool")
                shutil.rmtree(unpacked)
    return cache.root() / "promtool" / "promtool"


def kube_on_host(name: str) -> Path:
    """One of KUBE_ON_HOST, of the control plane's minor version."""
    minor = assets.KUBE_VERSION.rpartition(".")[0]
    return on_path(name, ["--version"], f"Kubernetes v{minor}.") or _kube_program(name)


def kube_on_node(name: str) -> Path:
    """Return one of KUBE_ON_NODE; never this machine's own, which may need libraries that the node lacks."""
    return _kube_program(name)


def on_path(name: str, arguments: list[str], says: str) -> Path | None:
    found = shutil.which(name)
    if not found:
        return None
    try:
        said = process.run([found, *arguments], timeout=30)
    except (process.ProcessError, OSError):
        return None
    return Path(found) if said.stdout.startswith(says) else None


def _kube_program(name: str) -> Path:
    kept = f"kube-{assets.KUBE_VERSION}-{name}"
    with cache.lock(kept):
        if not cache.find(kept):
            with cache.install(kept) as folder:
                url = f"{_KUBE_DOWNLOADS}/v{assets.KUBE_VERSION}/bin/linux/{architecture()}/{name}"
                if content := _download(url, ".sha256"):
                    _write(folder / name, content)
                else:
                    with term.step(f"building {name} from its Go modules (minutes, once)"):
                        package = f"k8s.io/kubernetes/cmd/{name}"
                        golang.build(package, folder / name, source=assets.SOURCES, stamps=assets.kube_stamps())
    return cache.root() / kept / name


def fetched(release: Release) -> Path:
    kept = f"{release.name}-{release.version}"
    with cache.lock(kept):
        if not cache.find(kept):
            with cache.install(kept) as folder:
                if content := _download(release.url, release.checksum_suffix):
                    _unpack(release, content, folder)
                else:
                    _build(release, folder)
    return cache.root() / kept


def _build(release: Release, folder: Path) -> None:
    source = golang.module(release.module, f"v{release.version}", release.module_checksum)
    stamps = [f"{name}={value}" for name, value in release.stamps.items()]
    for program in release.programs:
        package = f"./cmd/{program}" if (source / "cmd" / program).is_dir() else "."
        with term.step(f"building {program} {release.version} from its Go modules (minutes, once)"):
            golang.build(package, folder / program, source=source, stamps=stamps, tags=release.tags)


def _unpack(release: Release, content: bytes, folder: Path) -> None:
    if not release.url.endswith(".tar.gz"):
        _write(folder / release.programs[0], content)
        return
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        members = {Path(member.name).name: member for member in archive.getmembers() if member.isfile()}
        for program in release.programs:
            found = archive.extractfile(members[program]) if program in members else None
            host.need(found, f"{release.url} holds no {program}", "look for a newer version of the testbed")
            if found:
                _write(folder / program, found.read())


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o755)


@functools.cache
def _connects(name: str) -> bool:
    """Return whether a server answers quickly, directly or through the configured proxy."""
    if urllib.request.getproxies().get("https"):
        return True
    try:
        socket.create_connection((name, 443), timeout=_CONNECT_TIMEOUT).close()
    except OSError:
        term.say(f"no downloads from {name}: it can't be reached; continuing without it")
        return False
    return True


def _download(url: str, checksum_suffix: str) -> bytes | None:
    """Return the content of URL if it has the checksum beside it; None if it is unavailable for any reason."""
    if not _connects(urllib.parse.urlsplit(url).netloc):
        return None
    try:
        with term.step(f"downloading {url}"):
            checksum = _get(url + checksum_suffix).split()[0].decode("ascii")
            content = _get(url)
    except (OSError, http.client.HTTPException, ValueError, IndexError) as error:
        term.say(f"  no luck; continuing without it: {error}")
        return None
    if hashlib.sha256(content).hexdigest() != checksum:
        term.say("  no luck; continuing without it: the checksum does not match")
        return None
    return content


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_READ_TIMEOUT) as answer:  # noqa: S310 - the URLs above, all https
        content = bytes(answer.read(_MAX_DOWNLOAD + 1))
    if len(content) > _MAX_DOWNLOAD:
        raise ValueError(f"{url} is larger than {_MAX_DOWNLOAD} bytes")
    return content
