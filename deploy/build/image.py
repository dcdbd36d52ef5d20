"""python -m deploy.build.image: build the image with docker or buildah, as one file that a node's containerd can import."""

import configparser
import hashlib
import os
import shlex
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import swapwarden

from deploy.build import ociarchive
from testbed.base import cache, host, paths, process, term

REFERENCE = f"localhost/swapwarden:{swapwarden.__version__}"
ARCHIVE = paths.ROOT / "build" / "image" / f"swapwarden-{swapwarden.__version__}.tar"
INPUTS = (
    *("Dockerfile", ".dockerignore", "LICENSE", "README.md", "pyproject.toml"),
    *("crds", "deploy/image", "locks/runtime.txt", "operator"),
)
"""The sources of the image; .dockerignore keeps all other files out of the build."""

GENERATORS = ("hack", "monitoring", "testbed")
"""The sources of the programs that make the chart's files, which are not committed."""

TREE = "tree"
IMAGE = "image.tar"

SUITE = "bookworm"
BASE_PACKAGES = ("python3", "python3-venv")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_TIMEOUT = 1800.0
_PULL_TIMEOUT = 300.0
_SHOWN = 6
_PROBE = "swapwarden-probe"
# Each change of the sources adds some; beyond this the store is emptied.
_STORED_IMAGES = 100
# Zip's earliest, as wheels and deploy/image/rootfs.py use it.
_FILE_TIME = 315532800


class Builder(Protocol):
    """The common part of docker and buildah."""

    name: str

    def has(self, image: str) -> bool:
        """Return whether IMAGE exists already."""

    def pull(self, image: str) -> bool:
        """Return whether IMAGE is available from a registry."""

    def build(self, context: Path, reference: str, options: Iterable[str], created: int) -> None:
        """Build CONTEXT's Dockerfile; ProcessError on failure."""

    def save(self, reference: str, archive: Path) -> None:
        """Write an image to an archive with an OCI layout."""


class Docker:
    """The docker command with a daemon that answers."""

    name = "docker"

    def has(self, image: str) -> bool:
        """As the daemon sees it."""
        return process.run(["docker", "image", "inspect", image], timeout=60, check=False).returncode == 0

    def pull(self, image: str) -> bool:
        """The newest of its tag."""
        return process.run(["docker", "pull", "-q", image], timeout=_PULL_TIMEOUT, check=False).returncode == 0

    def build(self, context: Path, reference: str, options: Iterable[str], created: int) -> None:
        """SOURCE_DATE_EPOCH makes the times in the image's configuration those of the sources."""
        proxies = [f"--build-arg={name}" for name in _PROXIES if name in os.environ]
        given = [f"--build-arg=SOURCE_DATE_EPOCH={created}", *proxies, *options]
        command = ["docker", "build", "-q", "--provenance=false", *given, "-t", reference, str(context)]
        process.run(command, timeout=_TIMEOUT, env=os.environ | {"DOCKER_BUILDKIT": "1"})

    def save(self, reference: str, archive: Path) -> None:
        """Docker before 25 writes no OCI layout."""
        process.run(["docker", "save", "-o", str(archive), reference], timeout=_TIMEOUT)


class Buildah:
    """Debian's buildah, which needs no daemon; all its data is in the cache."""

    name = "buildah"

    def __init__(self) -> None:
        host.apt_install(["buildah"], "building the image without a docker daemon")
        self._folder = cache.root() / "buildah"
        for driver in ("overlay", "vfs"):  # overlay is many times quicker, and not on every file system
            # Without the option a mount stays forever, and the cache cannot be removed.
            options = {"STORAGE_OPTS": "overlay.skip_mount_home=true"} if driver == "overlay" else {}
            self._environment = os.environ | {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": driver} | options
            if self._run("from", "--name", _PROBE, "scratch", check=False) and self._run("mount", _PROBE, check=False):
                break
        self._run("rm", "--all")  # The probe, and leftovers of a killed build.
        if self._stored() > _STORED_IMAGES:
            self._run("rmi", "--all", "--force")

    def _command(self, *arguments: str) -> list[str]:
        folder = self._folder / self._environment["STORAGE_DRIVER"]
        return ["buildah", "--root", str(folder), "--runroot", str(self._folder / "run"), *arguments]

    def _run(self, *arguments: str, timeout: float = _TIMEOUT, check: bool = True) -> bool:
        command = self._command(*arguments)
        return process.run(command, timeout=timeout, check=check, env=self._environment).returncode == 0

    def _stored(self) -> int:
        listing = process.run(self._command("images", "--all", "-q"), timeout=60, env=self._environment)
        return len(listing.stdout.split())

    def has(self, image: str) -> bool:
        """In its own store, which other programs do not see."""
        return self._run("images", "-q", image, check=False)

    def pull(self, image: str) -> bool:
        """Fail fast if the registry's name cannot be resolved."""
        return self._run("pull", "-q", image, timeout=_PULL_TIMEOUT, check=False)

    def build(self, context: Path, reference: str, options: Iterable[str], created: int) -> None:
        """With one time for all files, so that layers kept from earlier builds stay the same. CREATED is in a label."""
        del created
        fixed = ["--layers", f"--timestamp={_FILE_TIME}", "--identity-label=false"]
        try:
            self._run("bud", "-q", *fixed, *options, "-t", reference, str(context))
        finally:
            self._run("rm", "--all")  # A failed build leaves its container mounted.

    def save(self, reference: str, archive: Path) -> None:
        """As the name in the archive, the reference: name_image() sets the one that containerd reads."""
        self._run("push", "-q", reference, f"oci-archive:{archive}:{reference}")


def _builder() -> Builder:
    if shutil.which("docker") and process.run(["docker", "info"], timeout=30, check=False).returncode == 0:
        return Docker()
    return Buildah()


def default_base(dockerfile: str) -> str:
    """Return the default base image of a Dockerfile."""
    return dockerfile.partition("\nARG BASE=")[2].partition("\n")[0]


def _base(builder: Builder) -> str:
    """Return $BASE, else the Dockerfile's default, else one made of Debian's packages if no registry is reachable."""
    if named := os.environ.get("BASE"):
        return named
    usual = default_base((paths.ROOT / "Dockerfile").read_text(encoding="utf-8"))
    if builder.pull(usual):
        return usual
    term.say(f"no registry gives {usual}; a base of Debian's packages stands in for it")
    folder = _debian_base()
    reference = f"localhost/{folder.name}:latest"
    if not builder.has(reference):
        builder.build(folder, reference, [], _FILE_TIME)
    return reference


def _debian_base() -> Path:
    """A build context with a Debian system in it, kept in the cache."""
    name = f"image-base-{SUITE}-" + hashlib.sha256(" ".join(BASE_PACKAGES).encode()).hexdigest()[:12]
    if not cache.find(name):
        host.apt_install(["mmdebstrap", "debian-archive-keyring"], "a base for the image")
        with term.step(f"making a Debian base for the image ({SUITE}, once)"), cache.install(name) as folder:
            command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", SUITE]
            process.run([*command, str(folder / "base.tar")], timeout=_TIMEOUT)
            (folder / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n", encoding="ascii")
    return cache.root() / name


def pip_settings(files: Iterable[Path], environment: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings for its index and network on this machine: its files, overridden by its variables."""
    parser = configparser.RawConfigParser(strict=False)
    parser.read(files, encoding="utf-8")
    settings: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            settings.update(parser.items(section))
    for key in (*_PIP_KEYS, "cert"):
        variable = "PIP_" + key.upper().replace("-", "_")
        if value := environment.get(variable):
            settings[key] = value
    return {key: value for key, value in settings.items() if key in {*_PIP_KEYS, "cert"}}


def _pip_files() -> list[Path]:
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    named = os.environ.get("PIP_CONFIG_FILE")
    files = [Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf"]
    return [*files, Path(named)] if named else files


def _secrets(folder: Path) -> list[str]:
    """Options that let the build stage use this machine's package index; neither the image nor its history has them."""
    settings = pip_settings(_pip_files(), os.environ)
    trusted = [settings.pop("cert", None), os.environ.get("SSL_CERT_FILE"), str(CERTIFICATES)]
    certificates = next((Path(path) for path in trusted if path and Path(path).is_file()), None)
    configuration = configparser.RawConfigParser()
    configuration["global"] = settings
    with (folder / "pip.conf").open("w", encoding="utf-8") as file:
        configuration.write(file)
    options = [f"--secret=id=pip.conf,src={folder / 'pip.conf'}"]
    return [*options, f"--secret=id=ca.pem,src={certificates}"] if certificates else options


def _git(*arguments: str) -> str:
    try:
        return process.run(["git", "-C", str(paths.ROOT), *arguments], timeout=60, check=False).stdout.strip()
    except process.ProcessError:
        return ""


def _origin() -> tuple[str, int]:
    """The commit that last changed the image's sources, and its time in seconds since 1970."""
    revision, _, created = _git("log", "-1", "--format=%H %ct", "--", *INPUTS).partition(" ")
    if _git("status", "--porcelain", "--", *INPUTS):
        revision += "-dirty"
    return revision or "unknown", int(os.environ.get("SOURCE_DATE_EPOCH") or created or 0)


def _labels(revision: str, created: int) -> list[str]:
    values = {
        "VERSION": swapwarden.__version__,
        "REVISION": revision,
        "CREATED": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created)),
    }
    if source := os.environ.get("SOURCE"):
        values["SOURCE"] = source
    return [f"--build-arg={key}={value}" for key, value in values.items()]


def fingerprint(root: Path, inputs: Iterable[str], *more: str) -> str:
    """Return a hash of files (folders: of all files in them but bytecode) with their names, and of MORE."""
    found = [file for path in inputs for file in sorted([root / path, *(root / path).rglob("*")]) if file.is_file()]
    total = hashlib.sha256(repr(more).encode())
    for file in found:
        if "__pycache__" not in file.parts:
            total.update(f"{file.relative_to(root)}\0{file.stat().st_mode}\0".encode())
            total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def ensure() -> Path:
    """Return the image's archive, rebuilt when any of its sources changed; its image is named REFERENCE.

    SetupError and ProcessError name the cause.
    """
    host.need_linux()
    stamp = ARCHIVE.with_suffix(".inputs")
    with cache.lock("image"):
        wanted = fingerprint(paths.ROOT, INPUTS, os.environ.get("BASE", ""), os.environ.get("SOURCE", ""))
        if ARCHIVE.is_file() and stamp.is_file() and stamp.read_text(encoding="ascii") == wanted:
            return ARCHIVE
        ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        _build(paths.ROOT, REFERENCE, ARCHIVE, *_origin())
        stamp.write_text(wanted, encoding="ascii")
    return ARCHIVE


class NoCommitError(host.SetupError):
    """The clone lacks a commit, as shallow ones do."""


def of_commit(commit: str) -> Path:
    """Return a folder with an earlier commit's sources and chart (TREE) and its image (IMAGE, named as reference_of()).

    It is made once. NoCommitError if this clone lacks the commit.
    """

    def make(folder: Path) -> None:
        take_sources(commit, folder / TREE)
        with cache.lock("image"):  # a build removes all containers that it finds
            _build(folder / TREE, reference_of(commit), folder / IMAGE, commit, _FILE_TIME)

    return cache.made(f"commit-{commit}", make)


def reference_of(commit: str) -> str:
    """Return the name of the image of an earlier commit."""
    return f"{REFERENCE.rpartition(':')[0]}:{commit}"


def take_sources(commit: str, tree: Path) -> None:
    """Fill the new folder TREE with a commit's sources of the image and its chart; NoCommitError as in of_commit()."""
    archive = tree.with_suffix(".tar")
    where = ["git", "-C", str(paths.ROOT), "archive", f"--output={archive}", commit]
    named = (*INPUTS, *GENERATORS, str(paths.CHART.relative_to(paths.ROOT)))
    try:
        process.run([*where, "--", *named], timeout=60)
    except process.ProcessError as error:
        raise NoCommitError(f"this clone lacks the commit {commit}: {error}", "git fetch --unshallow") from error
    with tarfile.open(archive) as sources:
        sources.extractall(tree, filter="data")
    archive.unlink()
    # Earlier commits have all files of the chart.
    if (tree / "hack/generate/uncommitted.py").is_file():
        own = {"PYTHONPATH": f"{tree / 'operator'}{os.pathsep}{tree}"}
        command = [sys.executable, "-m", "hack.generate.uncommitted", "chart"]
        process.run(command, cwd=tree, env=os.environ | own, timeout=60)


def _build(tree: Path, reference: str, archive: Path, revision: str, created: int) -> None:
    builder = _builder()
    with tempfile.TemporaryDirectory(prefix="image-", dir=cache.root()) as made:
        folder = Path(made)
        with term.step(f"building the image with {builder.name}"):
            options = [f"--build-arg=BASE={_base(builder)}", *_labels(revision, created), *_secrets(folder)]
            builder.build(tree, reference, options, created)
            builder.save(reference, folder / "image.tar")
        ociarchive.name_image(folder / "image.tar", folder / "named.tar", reference)
        shutil.move(folder / "named.tar", archive)


def _report(archive: Path) -> None:
    found = ociarchive.sizes(archive)
    total = found.files.total()
    print(f"{archive.relative_to(paths.ROOT)}: {REFERENCE}, {found.compressed / 1e6:.1f} MB, {total / 1e6:.1f} MB unpacked")
    for name, size in found.files.most_common(_SHOWN):
        print(f"  {size / 1e6:6.1f} MB  {size / total:4.0%}  {name}")
    print(f"to give it to a node: ctr -n k8s.io images import {shlex.quote(archive.name)}")


def main() -> int:
    """Build it and report its size; exit status 1 with one clear message on failure."""
    process.exit_on_sigterm()
    try:
        _report(ensure())
    except (host.SetupError, process.ProcessError, ociarchive.ArchiveError) as error:
        term.say(f"can't go on: {error}")
        return 1
    except KeyboardInterrupt:
        term.say("stopped")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
