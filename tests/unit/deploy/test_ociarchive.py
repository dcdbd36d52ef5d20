"""Naming the image in an archive, and taking its size apart."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from deploy.build import ociarchive

SITE = "opt/swapwarden/lib/python3.11/site-packages"


def _tar(files: dict[str, bytes], mtime: int = 0) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), mtime
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def _image(path: Path, layers: list[bytes], *, count: int = 1, mtime: int = 0) -> None:
    blobs = [*layers, b"{}"]
    named = [f"sha256:{hashlib.sha256(blob).hexdigest()}" for blob in blobs]
    listed: Any = [{"digest": digest, "size": len(blob)} for digest, blob in zip(named, layers, strict=False)]
    manifest = json.dumps({"layers": listed, "config": {"digest": named[-1]}}).encode()
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    files = {"blobs/" + name.replace(":", "/"): blob for name, blob in zip(named, blobs, strict=True)}
    files["blobs/" + digest.replace(":", "/")] = manifest
    files["index.json"] = json.dumps({"manifests": [{"digest": digest, "size": len(manifest)}] * count}).encode()
    files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    path.write_bytes(_tar(files, mtime))


def test_name_image_names_it_and_drops_times(tmp_path: Path) -> None:
    layer = gzip.compress(_tar({"a": b"1"}), mtime=0)
    made = []
    for number in (1, 2):
        _image(tmp_path / "given.tar", [layer], mtime=number)
        target = tmp_path / f"{number}.tar"
        ociarchive.name_image(tmp_path / "given.tar", target, "localhost/x:1")
        made.append(target.read_bytes())
    assert made[0] == made[1]
    with tarfile.open(tmp_path / "1.tar") as archive:
        index = archive.extractfile("index.json")
        assert index
        assert json.load(index)["manifests"][0]["annotations"]["io.containerd.image.name"] == "localhost/x:1"
        assert "oci-layout" in archive.getnames()


def test_name_image_refuses_two_images(tmp_path: Path) -> None:
    _image(tmp_path / "given.tar", [], count=2)
    with pytest.raises(ociarchive.ArchiveError, match="2 images"):
        ociarchive.name_image(tmp_path / "given.tar", tmp_path / "made.tar", "x")


def test_name_image_refuses_an_archive_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "given.tar").write_bytes(_tar({"manifest.json": b"[]"}))
    with pytest.raises(ociarchive.ArchiveError, match=r"index\.json"):
        ociarchive.name_image(tmp_path / "given.tar", tmp_path / "made.tar", "x")


def test_sizes_adds_up_compressed_and_plain_layers(tmp_path: Path) -> None:
    first = gzip.compress(_tar({f"{SITE}/kopf/a.py": b"x" * 30, "etc/passwd": b"y" * 5}), mtime=0)
    second = _tar({f"{SITE}/kopf-1.45.dist-info/RECORD": b"z" * 7})
    _image(tmp_path / "image.tar", [first, second])
    found = ociarchive.sizes(tmp_path / "image.tar")
    assert found.compressed == len(first) + len(second)
    assert found.files == {"kopf": 37, "other": 5}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"{SITE}/pydantic_core/_pydantic_core.so", "pydantic_core"),
        (f"{SITE}/pydantic_core-2.1.dist-info/METADATA", "pydantic_core"),
        ("usr/local/lib/python3.13/json/decoder.py", "Python's standard library"),
        ("usr/lib/python3.11/lib-dynload/_ssl.cpython-311-x86_64-linux-gnu.so", "Python's standard library"),
        ("usr/bin/python3.11", "Python's interpreter"),
        ("usr/lib/x86_64-linux-gnu/libssl.so.3", "shared libraries"),
        ("etc/passwd", "other"),
    ],
)
def test_group(path: str, expected: str) -> None:
    assert ociarchive.group(path) == expected
