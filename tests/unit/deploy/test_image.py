"""The Dockerfile's promises, and the script that chooses what the image holds."""

import importlib.util
import marshal
import re
from pathlib import Path
from typing import Any

import pytest

from deploy.build import image
from deploy.image import rootfs

ROOT = Path(__file__).resolve().parents[3]
LDD = """/usr/bin/python3.11:
\tlinux-vdso.so.1 (0x00007ffd)
\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f4f)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f50)
/opt/swapwarden/lib/a.so:
\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f4f)
\tlibb.so.1 => /opt/swapwarden/lib/a.libs/libb.so.1 (0x00007f51)
/opt/swapwarden/lib/plain.so:
\tstatically linked
"""


@pytest.fixture(name="dockerfile")
def _dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_dockerignore_lets_through_what_the_fingerprint_covers() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "*"
    let_through = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert let_through == set(image.INPUTS) - {"Dockerfile", ".dockerignore"}


def test_dockerfile_copies_only_what_dockerignore_lets_through(dockerfile: str) -> None:
    copied = [
        source for line in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE) for source in line.split()
    ]
    assert copied
    assert all(source in image.INPUTS or str(Path(source).parent) in image.INPUTS for source in copied)


def test_last_stage_is_bare_and_not_root(dockerfile: str) -> None:
    last = dockerfile.rpartition("\nFROM ")[2]
    assert last.startswith("scratch\n")
    assert "RUN" not in last
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE) == [f"{rootfs.UID}:{rootfs.UID}"]
    assert 'ENTRYPOINT ["swapwarden"]' in last


def test_every_install_is_held_to_hashes_or_to_no_index(dockerfile: str) -> None:
    installs = re.findall(r"bin/pip .*?(?:install|wheel) (?:[^;\n]|\\\n)*", dockerfile)
    assert len(installs) == 4
    assert all("--require-hashes" in command or "--no-index" in command for command in installs)


def test_default_base_has_no_registry_host(dockerfile: str) -> None:
    assert re.fullmatch(r"python:3\.\d+-slim", image.default_base(dockerfile))


def test_libraries() -> None:
    assert rootfs.libraries(LDD) == {
        Path("/lib/x86_64-linux-gnu/libm.so.6"),
        Path("/lib64/ld-linux-x86-64.so.2"),
        Path("/opt/swapwarden/lib/a.libs/libb.so.1"),
    }


def test_missing_library_is_named() -> None:
    with pytest.raises(SystemExit, match=r"libzz\.so\.3"):
        rootfs.libraries(LDD + "\tlibzz.so.3 => not found\n")


def test_copy_takes_links_and_what_they_lead_to(tmp_path: Path) -> None:
    base, into = tmp_path / "base", tmp_path / "into"
    base.mkdir()
    (base / "libx.so.1.2").write_text("x", encoding="ascii")
    (base / "libx.so.1").symlink_to("libx.so.1.2")
    (base / "libx.so").symlink_to(base / "libx.so.1")
    rootfs.copy([base / "libx.so"], into)
    made = into / base.relative_to("/")
    assert {path.name for path in made.iterdir()} == {"libx.so", "libx.so.1", "libx.so.1.2"}
    assert (made / "libx.so.1").readlink() == Path("libx.so.1.2")


SOURCE = b'''"""Module."""
from __future__ import annotations

"A text."

class Empty:
    """Class."""

def function() -> str:
    """Function."""
    "Another text."
    return "kept"

async def coroutine():
    """Coroutine."""
    assert not callable(Empty)
'''


def test_bytecode_has_no_docstrings_and_all_assertions() -> None:
    module: dict[str, Any] = {}
    exec(rootfs.without_docstrings(SOURCE, "module.py"), module)  # noqa: S102 the text above
    assert module.get("__doc__") is None
    assert [module[name].__doc__ for name in ("Empty", "function", "coroutine")] == [None] * 3
    assert module["function"]() == "kept"
    assert module["function"].__annotations__ == {"return": "str"}
    with pytest.raises(AssertionError):
        module["coroutine"]().send(None)


def test_finish_says_what_does_not_compile(tmp_path: Path) -> None:
    (tmp_path / "good.py").touch()
    (tmp_path / "bad.py").write_text("def", encoding="ascii")
    with pytest.raises(SystemExit, match=r"bad\.py"):
        rootfs.finish(tmp_path)


def test_finish_makes_bytecode_that_is_never_checked(tmp_path: Path) -> None:
    package = tmp_path / "layer/opt/app"
    package.mkdir(parents=True)
    source = package / "module.py"
    source.write_text("def path(): ...\n", encoding="ascii")
    rootfs.finish(tmp_path / "layer")
    compiled = Path(importlib.util.cache_from_source(str(source)))
    content = compiled.read_bytes()
    assert int.from_bytes(content[4:8], "little") == 0b01  # by hash, unchecked: see PEP 552
    assert marshal.loads(content[16:]).co_filename == "/opt/app/module.py"  # noqa: S302 made two lines above
    source.write_text("", encoding="ascii")
    spec = importlib.util.spec_from_file_location("module", source)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "path" in vars(module)
    assert {path.stat().st_mtime for path in (compiled, package)} == {rootfs.FILE_TIME}
