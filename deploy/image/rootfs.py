# ruff: noqa: INP001 a script for the Dockerfile, not a package
"""Chooses the files of the base that the image needs, and finishes layers. The Dockerfile's build stage runs it.

    python3 rootfs.py system VENV LAYER    # Python and the libraries that it and the packages in VENV need
    python3 rootfs.py finish LAYER...      # bytecode, and one time for all files
    python3 rootfs.py compile FOLDER...    # bytecode alone, of files where they are

The Debian packages whose files are taken are named in /var/lib/dpkg/status.d, where scanners look, and keep their
copyright files.
"""

import ast
import concurrent.futures
import functools
import importlib.util
import marshal
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import Path

UID = 65532
UNUSED = (
    "__pycache__",
    # Interactive tools, tests, installers and what these installed
    *("test", "tests", "_test*", "_ctypes_test.*", "_xx*", "xxlimited*", "pydoc_data", "turtledemo", "turtle.py"),
    *("idlelib", "tkinter", "_tkinter.*", "lib2to3", "ensurepip", "venv", "distutils", "config-*"),
    *("site-packages", "dist-packages"),
    # These need shared libraries that nothing here uses
    *("sqlite3", "_sqlite3.*", "dbm", "_dbm.*", "_gdbm.*", "crypt.py", "_crypt.*", "nis.*"),
    *("curses", "_curses.*", "_curses_panel.*", "readline.*"),
)
"""Patterns of names that are left out of Python's standard library."""

ACCOUNTS = {
    "etc/passwd": f"root:x:0:0:root:/:/nonexistent\nswapwarden:x:{UID}:{UID}:swapwarden:/:/nonexistent\n",
    "etc/group": f"root:x:0:\nswapwarden:x:{UID}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
# Loaded by the C library by name when a thread ends, so that no file says it is needed.
LOADED_BY_NAME = ("libgcc_s.so.1",)
# One time for all files: layers are the same whenever they hold the same. Zip's earliest, as wheels use it.
FILE_TIME = 315532800


def output(*command: str, check: bool = True) -> str:
    """Return the output of a program of the base."""
    return subprocess.run(command, capture_output=True, text=True, check=check).stdout  # noqa: S603 no input of others


def libraries(ldd_output: str) -> set[Path]:
    """Return the shared libraries and the loader that `ldd` found; SystemExit if it misses one."""
    if missing := re.findall(r"^\s*(\S+) => not found", ldd_output, re.MULTILINE):
        raise SystemExit(f"the base has no {', '.join(sorted(set(missing)))}: choose another BASE")
    return {Path(name) for name in re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", ldd_output, re.MULTILINE)}


def with_targets(path: Path) -> Iterator[Path]:
    """Yield PATH in its real folder and, if it is a symbolic link, each file that it leads to."""
    here = path.parent.resolve() / path.name
    yield here
    if here.is_symlink():
        yield from with_targets(here.parent / here.readlink())


def copy(files: Iterable[Path], into: Path) -> list[Path]:
    """Copy files (symbolic links as such) to their own paths under INTO; returns all of them, with links' targets."""
    copied = sorted({found for file in files for found in with_targets(file)})
    for file in copied:
        target = into / file.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target, follow_symlinks=False)
    return copied


def shared_objects(*folders: Path) -> list[Path]:
    """All shared objects under FOLDERS."""
    return sorted(path for folder in folders for path in folder.rglob("*.so*") if path.is_file())


def needed(objects: Iterable[Path], venv: Path) -> set[Path]:
    """Return the libraries of the base that OBJECTS load, without those that packages in VENV bring along."""
    found = output("ldd", *map(str, objects))
    known = output("/sbin/ldconfig", "-p")
    by_name = dict(reversed(re.findall(r"^\s+(\S+) .*=> (\S+)$", known, re.MULTILINE)))
    loaded = {Path(by_name[name]) for name in LOADED_BY_NAME if name in by_name}
    return {path for path in libraries(found) | loaded if not path.is_relative_to(venv)}


def owners(files: Iterable[Path]) -> set[str]:
    """The Debian packages of FILES; a Python that was built from source belongs to none."""
    # Packages know their files by the path before /lib became a link to /usr/lib, or by the one after.
    names = {form for file in files for form in (str(file), str(file).removeprefix("/usr"))}
    said = output("dpkg", "-S", *sorted(names), check=False)
    packages = (line.rpartition(": ")[0] for line in said.splitlines() if not line.startswith("diversion "))
    return {name.strip() for line in packages for name in line.split(",")}


def record(packages: Iterable[str], into: Path) -> None:
    """Name PACKAGES for scanners, and copy their copyright files."""
    status = into / "var/lib/dpkg/status.d"
    status.mkdir(parents=True)
    for package in sorted(packages):
        name = package.partition(":")[0]
        (status / name).write_text(output("dpkg-query", "-s", package), encoding="utf-8")
        folder = Path("/usr/share/doc") / name
        target = into / "usr/share/doc" / name
        target.mkdir(parents=True)
        shutil.copy(folder / "copyright", target / "copyright")


def make_system(into: Path, venv: Path) -> None:
    """Python, its libraries, accounts and what names the distribution."""
    for name in ("bin", "lib", "lib64", "sbin"):
        link = Path("/", name)
        if link.is_symlink():
            (into / link.readlink()).mkdir(parents=True, exist_ok=True)
            (into / name).symlink_to(link.readlink())
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(
        library,
        into / library.relative_to("/"),
        ignore=shutil.ignore_patterns(*UNUSED),
        ignore_dangling_symlinks=True,
    )
    executable = Path(sys.executable)
    kept = shared_objects(into / library.relative_to("/"), venv)
    files = copy([executable, *needed([executable.resolve(), *kept], venv)], into)
    modules = [Path("/", path.relative_to(into)) for path in (into / library.relative_to("/")).rglob("*.*")]
    record(owners([*files, *modules]), into)
    copy([Path("/etc/os-release"), Path("/etc/ld.so.conf"), *Path("/etc/ld.so.conf.d").glob("*.conf")], into)
    for name, text in ACCOUNTS.items():
        (into / name).write_text(text, encoding="ascii")
    (into / "tmp").mkdir()
    (into / "tmp").chmod(0o1777)
    output("/sbin/ldconfig", "-r", str(into))
    shutil.rmtree(into / "var/cache", ignore_errors=True)  # ldconfig's notes on file times


def without_docstrings(source: bytes, name: str) -> types.CodeType:
    """Compile a module without docstrings, which nothing here reads and an agent on every node would hold: 1 MB.

    Assertions stay: PYTHONOPTIMIZE=2 would take these too.
    """
    tree = ast.parse(source, name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # A text after the docstring would take its place.
            while node.body and ast.get_docstring(node, clean=False) is not None:
                first = node.body.pop(0)
            if not node.body and not isinstance(node, ast.Module):
                node.body.append(ast.copy_location(ast.Pass(), first))
    return compile(tree, name, "exec", dont_inherit=True)


def compile_file(file: Path, root: Path) -> str:
    """Write the bytecode of a file, named as below ROOT; return why it does not compile, or nothing.

    Python takes it as it is (PEP 552): the image's files never change, and may be on a read-only file system.
    """
    source = file.read_bytes()
    try:
        code = without_docstrings(source, str(Path("/", file.relative_to(root))))
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"{file}: {error}"
    unchecked = (1).to_bytes(4, "little")
    target = Path(importlib.util.cache_from_source(str(file)))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(
        importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(source) + marshal.dumps(code)
    )
    return ""


def compile_folder(folder: Path, root: Path) -> None:
    """As compile_file, all files below FOLDER, without UNUSED folders in it; SystemExit if one does not compile."""
    unused = shutil.ignore_patterns(*UNUSED)
    files = []
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if path != str(folder) or name not in unused(path, folders)]
        files += [Path(path, name) for name in names if name.endswith(".py") and Path(path, name).is_file()]
    with concurrent.futures.ProcessPoolExecutor() as pool:
        wrong = list(filter(None, pool.map(functools.partial(compile_file, root=root), files, chunksize=16)))
    if wrong:
        raise SystemExit("\n".join(wrong))


def finish(layer: Path) -> None:
    """Bytecode and file times."""
    compile_folder(layer, layer)
    for path in (layer, *layer.rglob("*")):
        os.utime(path, (FILE_TIME, FILE_TIME), follow_symlinks=False)


if __name__ == "__main__":
    command, *given = sys.argv[1:]
    if command == "system":
        make_system(Path(given[1]), Path(given[0]))
    else:
        for each in map(Path, given):
            if command == "compile":
                compile_folder(each, Path("/"))
            else:
                finish(each)
