"""The images are what the OCI image layout says: every descriptor fits the blob that it points at."""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

from testbed.vm import ociimage


def test_every_image_can_be_followed_down_to_its_files(tmp_path: Path) -> None:
    target = tmp_path / "images.tar"
    ociimage.write(target, b"program", ["busybox", "sh", "sleep"])
    with tarfile.open(target) as archive:
        files = {}
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content
            files[member.name] = content.read()

    def blob(descriptor: dict[str, Any]) -> bytes:
        digest = descriptor["digest"].removeprefix("sha256:")
        content = files[f"blobs/sha256/{digest}"]
        assert len(content) == descriptor["size"]
        assert hashlib.sha256(content).hexdigest() == digest
        return content

    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    commands = {}
    for entry in json.loads(files["index.json"])["manifests"]:
        manifest = json.loads(blob(entry))
        config = json.loads(blob(manifest["config"]))
        (layer,) = manifest["layers"]
        assert config["rootfs"]["diff_ids"] == [layer["digest"]]
        (tmp_path / "layer.tar").write_bytes(blob(layer))
        with tarfile.open(tmp_path / "layer.tar") as inside:
            assert inside.getmember("bin/busybox").mode == 0o755
            assert inside.getmember("bin/sh").linkname == "busybox"
            assert [member.name for member in inside].count("bin/busybox") == 1
        commands[entry["annotations"]["io.containerd.image.name"]] = config["config"]["Cmd"]
    assert commands == ociimage.COMMANDS


def test_the_same_input_gives_the_same_archive(tmp_path: Path) -> None:
    for name in ("one", "two"):
        ociimage.write(tmp_path / name, b"program", ["sh"])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
