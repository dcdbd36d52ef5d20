"""A container runtime without containers: the library with which containerd and CRI-O speak to NRI plugins.

nri/ holds the program. It does with the library what containerd does, under one lock, and is driven by JSON lines:
pods and containers are made up, and what plugins make of them is reported.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from testbed.base import cache, process, term
from testbed.controlplane import golang

VERSIONS: Final = {"0.11.0": ("v0.11.0.mod", "statechange"), "0.12.3": ("v0.12.3.mod", ""), "0.12.5": ("go.mod", "")}
"""Versions of the library, each with its go.mod and its build tags: of containerd 2.2 and CRI-O 1.36, of containerd
2.4, and the newest."""
OLDER: Final = {
    "0.6.1": ("v0.6.1.mod", "statechange,novalidator,noblock"),
    "0.8.0": ("v0.8.0.mod", "statechange,novalidator"),
}
"""Likewise: of CRI-O 1.30, of containerd 2.0 and 2.1."""
_RUNTIMES: Final = {"0.6.1": ("cri-o", "1.30.0"), "0.8.0": ("containerd", "v2.1.0")}
"""The name and version that a runtime with it reports, where these are not the program's default."""
NEWEST: Final = "0.12.5"
REQUEST_TIMEOUT: Final = 2.0
"""The library's default: seconds after which a request continues without a plugin's answer."""
_SOURCES = Path(__file__).with_name("nri")
_TIMEOUT = 60.0

Json = dict[str, Any]


def program(version: str = NEWEST) -> Path:
    """Return the program with VERSION of the library, built once; host.SetupError on failure."""
    mod_file, tag = (OLDER | VERSIONS)[version]
    sources = sorted(path for path in _SOURCES.iterdir() if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    # Plugins in WebAssembly would need an interpreter for it.
    tags = ",".join(each for each in ("nri_no_wasm", tag) if each)

    def build(folder: Path) -> None:
        with term.step(f"building a runtime's side of NRI {version}"):
            golang.build(".", folder / "nri", source=_SOURCES, stamps=[], tags=tags, mod_file=_SOURCES / mod_file)

    return cache.made(f"nri-{version}-{digest}", build) / "nri"


@dataclasses.dataclass(frozen=True)
class Pod:
    """A pod's sandbox."""

    id: str
    uid: str
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    name: str = "pod"
    namespace: str = "default"

    def to_json(self) -> Json:
        """Return it as the program wants it."""
        name = f"kubepods-burstable-pod{self.uid.replace('-', '_')}.slice"
        return {
            "id": self.id,
            "name": self.name,
            "uid": self.uid,
            "namespace": self.namespace,
            "annotations": dict(self.annotations),
            "cgroupParent": f"/kubepods.slice/kubepods-burstable.slice/{name}",
        }


@dataclasses.dataclass(frozen=True)
class Container:
    """A container; `env` and `mounts` are numbers of entries, `fails` has its updates fail."""

    id: str
    pod: str
    name: str = "app"
    unified: Mapping[str, str] = dataclasses.field(default_factory=dict)
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    env: int = 0
    mounts: int = 0
    fails: bool = False

    def to_json(self) -> Json:
        """Return it as the program wants it."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The runtime's result of a request about a container."""

    seconds: float
    unified: Mapping[str, str]
    """The values in the runtime's spec, after all plugins."""
    annotations: Mapping[str, str]
    adjusted: Mapping[str, str]
    """The part that plugins set."""
    error: str
    """Why the runtime refuses; empty if it does not."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """Requests about new containers."""

    micros: list[float]
    """The microseconds that each took."""
    adjusted: int
    size: int
    """Bytes of the last one."""


class PeerError(Exception):
    """The program failed or did not do something in time."""


class Runtime:
    """A running runtime. A second one on the same FOLDER replaces the socket, as a restarted runtime does."""

    def __init__(
        self,
        folder: Path,
        version: str = NEWEST,
        *,
        validator: bool = False,
        work: float = 0.0,
    ) -> None:
        """WORK: seconds that it holds its lock before and after it asks plugins about a new container."""
        self.folder = folder
        self.version = version
        self.events: list[Json] = []
        self._changed = threading.Condition()
        self._waiting: dict[int, concurrent.futures.Future[Json]] = {}
        self._last = 0
        ours, theirs = socket.socketpair()
        argv = [str(program(version)), f"-control={theirs.fileno()}", f"-socket={folder / 'nri.sock'}"]
        argv += [f"-{key}={text}" for key, text in zip(("name", "version"), _RUNTIMES.get(version, ()), strict=False)]
        argv += [f"-work={work}s"] if work else []
        argv += ["-validator"] if validator else []
        self._control = ours
        with theirs:
            log = folder / "runtime.log"
            self.process = process.Process(f"runtime {version}", argv, log=log, pass_fds=[theirs.fileno()])
        self._reader = threading.Thread(target=self._read, name=self.process.name, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._control.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                with self._changed:
                    if "event" in message:
                        self.events.append(message)
                        self._changed.notify_all()
                    else:
                        self._waiting.pop(message["id"]).set_result(message)
        with self._changed:
            for each in self._waiting.values():
                each.set_exception(PeerError(f"{self.process.name} has ended"))

    def begin(self, op: str, **fields: object) -> concurrent.futures.Future[Json]:
        """Send a request and return its future answer."""
        future: concurrent.futures.Future[Json] = concurrent.futures.Future()
        with self._changed:
            self._last += 1
            self._waiting[self._last] = future
            self._control.sendall(json.dumps({"id": self._last, "op": op} | fields).encode() + b"\n")
        return future

    def call(self, op: str, **fields: object) -> Json:
        """Send a request and wait for its answer; PeerError if it is an error."""
        answer = self.begin(op, **fields).result(_TIMEOUT)
        if "error" in answer and "seconds" not in answer:
            raise PeerError(f"{op}: {answer['error']}")
        return answer

    def start(self) -> Self:
        """Listen for plugins."""
        self.call("start")
        return self

    def populate(self, pods: Sequence[Pod], containers: Sequence[Container]) -> None:
        """Have pods and containers without asking plugins, as those that were made before."""
        self.call(
            "populate", pods=[each.to_json() for each in pods], containers=[each.to_json() for each in containers]
        )

    def sandbox(self, pod: Pod) -> float:
        """Start a pod's sandbox; return the seconds that plugins took."""
        return float(self.call("sandbox", pod=pod.to_json())["seconds"])

    def create(self, container: Container) -> Outcome:
        """Create a container."""
        return outcome(self.call("create", container=container.to_json()))

    def update(self, container: str, **unified: str) -> Outcome:
        """Update a container as the kubelet does at a resize; names of UNIFIED have `_` for a dot."""
        wanted = {name.replace("_", "."): value for name, value in unified.items()}
        return outcome(self.call("update", container={"id": container}, unified=wanted))

    def remove(self, container: str) -> None:
        """Remove a container."""
        self.call("remove", container={"id": container})

    def specs(self) -> dict[str, Json]:
        """Return what the runtime's spec of each container has: unified and annotations."""
        return dict(self.call("list")["containers"])

    def measure(self, pods: Sequence[Pod], container: Container, count: int) -> Measured:
        """Create COUNT containers in PODS in turn, and keep none."""
        said = self.call("measure", pods=[each.to_json() for each in pods], container=container.to_json(), count=count)
        return Measured(said["micros"], said["adjusted"], said["bytes"])

    def seen(self, kind: str, **fields: object) -> list[Json]:
        """Return the events of a kind so far that have FIELDS."""
        with self._changed:
            return self._seen(kind, fields)

    def _seen(self, kind: str, fields: Mapping[str, object]) -> list[Json]:
        wanted = {"event": kind} | dict(fields)
        return [each for each in self.events if wanted.items() <= each.items()]

    def wait_for(self, kind: str, count: int = 1, timeout: float = 20.0, **fields: object) -> Json:
        """Wait until there were COUNT events of a kind that have FIELDS, and return the last of these."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while len(found := self._seen(kind, fields)) < count:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise PeerError(f"no {kind} {fields} within {timeout:.0f} s, only {self.events[-5:]}")
        return found[count - 1]

    def connected(self, plugin: str, count: int = 1, timeout: float = 20.0) -> Self:
        """Wait until a plugin, with its index as in `90-name`, has connected COUNT times."""
        self.wait_for("connected", count, timeout, plugin=plugin)
        return self

    def kill(self) -> None:
        """End it at once. Its socket stays, as that of a crashed runtime does."""
        self.process.kill()
        self._reader.join()
        self._control.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._control.fileno() >= 0:
            self.kill()


def outcome(answer: Json) -> Outcome:
    """Return a program's answer about a container as an Outcome."""
    return Outcome(
        answer["seconds"],
        answer.get("unified") or {},
        answer.get("annotations") or {},
        answer.get("adjusted") or {},
        answer.get("error", ""),
    )


def plugin(folder: Path, name: str, index: str, value: str, *options: str, version: str = NEWEST) -> process.Process:
    """Start a plugin on the project's own stub that sets memory.swap.max of each container to VALUE."""
    argv = [str(program(version)), "plugin", f"-socket={folder / 'nri.sock'}", f"-name={name}", f"-index={index}"]
    return process.Process(f"plugin {name}", [*argv, f"-value={value}", *options], log=folder / f"{index}-{name}.log")
