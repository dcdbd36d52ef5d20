"""Container images made of one static busybox: nothing is pulled from anywhere.

The format is the OCI image layout (https://github.com/opencontainers/image-spec), with the annotation by which
containerd names what it imports.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAUSE = "localhost/testbed-pause:1"
BUSYBOX = "localhost/testbed-busybox:1"
# The name in examples/ and on pages, so that they run here unchanged.
EXAMPLES_BUSYBOX = "docker.io/library/busybox:latest"
# The default command of each image. The sandbox's process only has to stay.
COMMANDS: Mapping[str, Sequence[str]] = {
    PAUSE: ["/bin/sleep", "2147483647"],
    BUSYBOX: ["/bin/sh"],
    EXAMPLES_BUSYBOX: ["/bin/sh"],
}


def write(target: Path, busybox: bytes, applets: Sequence[str]) -> None:
    """Write the images of COMMANDS into the archive TARGET; APPLETS are the commands that BUSYBOX has."""
    layer = _tar({"bin/busybox": busybox}, {f"bin/{name}": "busybox" for name in applets if name != "busybox"})
    blobs: dict[str, bytes] = {}
    layer_descriptor = _descriptor(blobs, layer, "application/vnd.oci.image.layer.v1.tar")
    manifests = []
    for name, command in COMMANDS.items():
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer_descriptor["digest"]]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor(blobs, _json(config), "application/vnd.oci.image.config.v1+json"),
            "layers": [layer_descriptor],
        }
        descriptor = _descriptor(blobs, _json(manifest), manifest["mediaType"])
        manifests.append(descriptor | {"annotations": {"io.containerd.image.name": name}})
    files = {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}
    files["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
    files["index.json"] = _json({"schemaVersion": 2, "manifests": manifests})
    target.write_bytes(_tar(files, {}))


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _descriptor(blobs: dict[str, bytes], content: bytes, media_type: Any) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _tar(files: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
        for name, goal in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, goal
            archive.addfile(member)
    return made.getvalue()
