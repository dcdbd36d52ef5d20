"""An image as one file: an OCI layout in a tar, as `ctr images import`, `docker load` and `podman load` accept it."""

import dataclasses
import io
import json
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import IO, Any

INDEX = "index.json"
ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_GROUPS = (
    (re.compile(r".*/site-packages/([^/]+?)(?:-[^-/]+\.dist-info|\.libs)?/"), r"\1"),
    (re.compile(r".*/lib/python3\.\d+/"), "Python's standard library"),
    (re.compile(r".*/bin/python3[^/]*$"), "Python's interpreter"),
    (re.compile(r".*\.so(\.[^/]*)?$"), "shared libraries"),
)


class ArchiveError(Exception):
    """The file is no archive of an image."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes: of the compressed layers, and of the files by what they belong to."""

    compressed: int
    files: Counter[str]


def name_image(source: Path, target: Path, reference: str) -> None:
    """Copy the archive SOURCE to TARGET with its one image named REFERENCE, and without the times of its writing.

    ArchiveError if it holds no OCI layout (docker before 25 writes none) or more than one image.
    """
    with tarfile.open(source) as given, tarfile.open(target, "w") as made:
        index = _load(given, INDEX)
        if len(index["manifests"]) != 1:
            raise ArchiveError(f"{source} holds {len(index['manifests'])} images, not one")
        index["manifests"][0].setdefault("annotations", {}).update(dict.fromkeys(ANNOTATIONS, reference))
        text = json.dumps(index, sort_keys=True).encode()
        for name in sorted(member.name for member in given.getmembers() if member.isfile()):
            content = given.extractfile(name)
            if name == INDEX or content is None:
                continue
            _add(made, name, given.getmember(name).size, content)
        _add(made, INDEX, len(text), io.BytesIO(text))


def _add(archive: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, content)


def _load(archive: tarfile.TarFile, name: str) -> Any:
    try:
        content = archive.extractfile(name)
    except KeyError:
        content = None
    if content is None:
        raise ArchiveError(f"no {name} in {archive.name!r}: it is not an OCI archive (docker writes one since 25)")
    return json.load(content)


def _blob(archive: tarfile.TarFile, digest: str) -> IO[bytes]:
    content = archive.extractfile("blobs/" + digest.replace(":", "/"))
    if content is None:
        raise ArchiveError(f"{digest} is named but not held by {archive.name!r}")
    return content


def sizes(path: Path) -> Sizes:
    """Return the size of the image in an archive, and of its parts."""
    files: Counter[str] = Counter()
    with tarfile.open(path) as archive:
        manifest = json.load(_blob(archive, _load(archive, INDEX)["manifests"][0]["digest"]))
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=_blob(archive, layer["digest"]), mode="r:*") as content:
                files.update(_by_group(content))
    return Sizes(compressed=sum(layer["size"] for layer in manifest["layers"]), files=files)


def _by_group(layer: tarfile.TarFile) -> Counter[str]:
    found: Counter[str] = Counter()
    for member in layer:
        found[group(member.name)] += member.size
    return found


def group(path: str) -> str:
    """Return the owner of a file of the image: a Python package, Python, the system's libraries, or the rest."""
    for pattern, name in _GROUPS:
        if match := pattern.match("/" + path):
            return match.expand(name)
    return "other"
