"""Programs of a whole cluster beside the control plane's core: others of Kubernetes, containerd, helm, kind.

Each is taken from the cache, else from PATH (those that run on this machine), else from its project's downloads, else
built from Go modules.
"""

import dataclasses
import functools
import io
import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from testbed.base import cache, host, process, term
from testbed.controlplane import assets, downloads, golang

CONTAINERD_VERSION = "2.4.2"
HELM_VERSION = "3.21.4"
KIND_VERSION = "0.33.0"
NFD_VERSION = "0.18.3"
NFD_CRDS = "nfd-api-crds.yaml"
KUBE_ON_HOST = ("kube-controller-manager", "kube-scheduler")
KUBE_ON_NODE = ("kubelet", "kube-proxy")


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """One project's programs: their download, and the module to build them from."""

    name: str
    version: str
    programs: tuple[str, ...]
    url: str  # of a program, or of a .tar.gz with all of them
    module: str
    module_checksum: str
    stamps: Mapping[str, str]
    tags: str = ""


def _helm() -> Release:
    name = f"helm-v{HELM_VERSION}-linux-{downloads.architecture()}.tar.gz"
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
        module="helm.sh/helm/v3",
        module_checksum="h1:T/GcIEXU/gNjJnkITlIZ3e9xqkZjhFTmISuStTZ6+Qg=",
        stamps={"helm.sh/helm/v3/internal/version.version": f"v{HELM_VERSION}"} | kube,
    )


def _containerd() -> Release:
    name = f"containerd-static-{CONTAINERD_VERSION}-linux-{downloads.architecture()}.tar.gz"
    return Release(
        name="containerd",
        version=CONTAINERD_VERSION,
        programs=("containerd", "containerd-shim-runc-v2", "ctr"),
        url=f"https://github.com/containerd/containerd/releases/download/v{CONTAINERD_VERSION}/{name}",
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
        url=f"https://github.com/kubernetes-sigs/kind/releases/download/v{KIND_VERSION}/kind-linux-{downloads.architecture()}",
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
    return cache.made(f"nfd-{NFD_VERSION}", _build_nfd)


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
    found = on_path("promtool", ["--version"], "promtool, version ")
    return found or cache.made("promtool", _unpack_promtool) / "promtool"


def _unpack_promtool(folder: Path) -> None:
    (unpacked := folder / "unpacked").mkdir()
    with term.step("fetching promtool"):
        host.apt_unpack(["prometheus"], unpacked, "the check of metrics and alerts")
    program = unpacked / "usr" / "bin" / "promtool"
    host.need(program.exists(), "the package prometheus holds no promtool", "put a promtool on PATH")
    program.rename(folder / "promtool")
    shutil.rmtree(unpacked)


def kube_on_host(name: str) -> Path:
    """One of KUBE_ON_HOST, of the control plane's minor version."""
    minor = assets.KUBE_VERSION.rpartition(".")[0]
    return on_path(name, ["--version"], f"Kubernetes v{minor}.") or kube_on_node(name)


def kube_on_node(name: str) -> Path:
    """Return one of KUBE_ON_NODE; never this machine's own, which may need libraries that the node lacks."""
    return assets.made(name, assets.KUBE_VERSION)


def on_path(name: str, arguments: list[str], says: str) -> Path | None:
    found = shutil.which(name)
    if not found:
        return None
    return Path(found) if process.output([found, *arguments]).startswith(says) else None


def fetched(release: Release) -> Path:
    """Return the folder with the programs of a release."""
    return cache.made(f"{release.name}-{release.version}", functools.partial(_fetch, release))


def _fetch(release: Release, folder: Path) -> None:
    if content := downloads.get(release.url, ".sha256sum"):
        _unpack(release, content, folder)
    else:
        _build(release, folder)


def _build(release: Release, folder: Path) -> None:
    source = golang.module(release.module, f"v{release.version}", release.module_checksum)
    stamps = [f"{name}={value}" for name, value in release.stamps.items()]
    for program in release.programs:
        package = f"./cmd/{program}" if (source / "cmd" / program).is_dir() else "."
        with term.step(f"building {program} {release.version} from its Go modules (minutes, once)"):
            golang.build(package, folder / program, source=source, stamps=stamps, tags=release.tags)


def _unpack(release: Release, content: bytes, folder: Path) -> None:
    if not release.url.endswith(".tar.gz"):
        downloads.write(folder / release.programs[0], content)
        return
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        members = {Path(member.name).name: member for member in archive.getmembers() if member.isfile()}
        for program in release.programs:
            found = archive.extractfile(members[program]) if program in members else None
            host.need(found, f"{release.url} holds no {program}", "look for a newer version of the testbed")
            if found:
                downloads.write(folder / program, found.read())
