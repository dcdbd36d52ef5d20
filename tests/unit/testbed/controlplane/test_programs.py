"""Programs come from a download that proves itself, or are built; PATH counts only with the right version."""

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from testbed.controlplane import assets, downloads, golang, programs

RELEASE = programs.Release(
    name="tool",
    version="1.2.3",
    programs=("tool", "helper"),
    url="https://downloads.test/tool.tar.gz",
    module="example.test/tool",
    module_checksum="h1:sum",
    stamps={"example.test/tool/version.Version": "v1.2.3"},
)


def archive(*names: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(f"linux-amd64/{name}")
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    return made.getvalue()


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    """Downloads by URL; everything else is 404."""
    found: dict[str, bytes] = {}

    def get(url: str) -> bytes:
        if url not in found:
            raise OSError(f"{url}: not found")
        return found[url]

    monkeypatch.setenv("SWAPWARDEN_CACHE", str(tmp_path))
    monkeypatch.setattr(downloads, "_connects", lambda _name: True)
    monkeypatch.setattr(downloads, "_read", get)
    return found


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The packages that were built."""
    packages: list[str] = []
    (tmp_path / "source/cmd/tool").mkdir(parents=True)

    def build(package: str, target: Path, **_options: object) -> None:
        packages.append(package)
        target.write_bytes(b"built")

    monkeypatch.setattr(golang, "module", lambda *_arguments: tmp_path / "source")
    monkeypatch.setattr(golang, "build", build)
    return packages


def test_a_download_is_unpacked_and_kept(offered: dict[str, bytes], built: list[str]) -> None:
    content = archive("tool", "helper", "README")
    offered[RELEASE.url] = content
    offered[RELEASE.url + ".sha256sum"] = f"{hashlib.sha256(content).hexdigest()}  tool.tar.gz\n".encode()
    folder = programs.fetched(RELEASE)
    assert sorted(path.name for path in folder.iterdir()) == ["helper", "tool"]
    assert (folder / "tool").read_bytes() == b"tool"
    assert os.access(folder / "tool", os.X_OK)
    offered.clear()
    assert programs.fetched(RELEASE) == folder
    assert not built


@pytest.mark.parametrize("checksum", [b"00ff  tool.tar.gz\n", b"", None])
def test_what_does_not_prove_itself_is_built_instead(
    offered: dict[str, bytes], built: list[str], checksum: bytes | None
) -> None:
    offered[RELEASE.url] = archive("tool", "helper")
    if checksum is not None:
        offered[RELEASE.url + ".sha256sum"] = checksum
    folder = programs.fetched(RELEASE)
    assert (folder / "tool").read_bytes() == b"built"
    assert built == ["./cmd/tool", "."]


@pytest.mark.parametrize(
    ("said", "taken"), [("v3.19.0+g1", True), ("v4.0.0", False), ("", False), ("nonsense v3.1", False)]
)
def test_a_program_on_path_must_have_the_right_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, taken: bool
) -> None:
    program = tmp_path / "helm"
    program.write_text(f"#!/bin/sh\necho '{said}'\n", encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert programs.on_path("helm", ["version"], "v3.") == (program if taken else None)


@pytest.mark.parametrize(("is_offered", "content"), [(True, b"kubelet"), (False, b"built")])
def test_a_program_of_kubernetes_is_downloaded_or_built_once(
    offered: dict[str, bytes], built: list[str], is_offered: bool, content: bytes
) -> None:
    url = f"https://dl.k8s.io/release/v{assets.KUBE_VERSION}/bin/linux/{downloads.architecture()}/kubelet"
    if is_offered:
        offered[url] = b"kubelet"
        offered[url + ".sha256"] = hashlib.sha256(b"kubelet").hexdigest().encode()
    assert [programs.kube_on_node("kubelet").read_bytes() for _ in range(2)] == [content, content]
    assert built == ([] if is_offered else ["k8s.io/kubernetes/cmd/kubelet"])
