"""`swapwarden agent` as a real process on a directory tree."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Self

from testbed.base import process
from tests.integration import preloaded
from tests.integration.agent.fake_api import FakeApi
from tests.unit.agent.cgroup_tree import uid

PATIENCE = 30.0


def until(holds: Callable[[], object], what: str = "", seconds: float = PATIENCE) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.005)


def applied(api: FakeApi, generation: int, reason: str = "AsSpecified") -> None:
    """Wait until the agent reports the state of this generation."""
    until(
        lambda: (api.status.get("observedGeneration"), api.condition("Applied")[1]) == (generation, reason),
        f"generation {generation} is {reason}",
    )


class AgentProcess:
    """One agent. `folder` holds its run and state directories, which another agent on the same folder shares."""

    def __init__(
        self,
        folder: pathlib.Path,
        root: pathlib.Path,
        proc: pathlib.Path,
        kubeconfig: pathlib.Path,
        *options: str,
        node: str = "n1",
        run: Callable[..., subprocess.Popen[bytes]] = preloaded.popen,
    ) -> None:
        """RUN: subprocess.Popen for one whose memory is measured as a whole."""
        self.port = process.free_port()
        self.log = folder / f"agent-{self.port}.log"
        self.run_dir = folder / "run"
        self.state_dir = folder / "state"
        argv = [sys.executable, "-m", "swapwarden", "agent", "--node-name", node, "--cgroup-root", str(root)]
        argv += ["--proc-root", str(proc), "--sys-root", str(proc.parent / "sys")]
        argv += ["--run-dir", str(self.run_dir), "--state-dir", str(self.state_dir)]
        argv += ["--kubeconfig", str(kubeconfig), "--metrics-address", f"127.0.0.1:{self.port}", "--log-level", "debug"]
        argv += options
        environment = {key: value for key, value in os.environ.items() if key not in {"POD_UID", "NODE_NAME"}}
        with self.log.open("wb") as log:
            self.process = run(argv, stdin=subprocess.DEVNULL, stderr=log, stdout=log, env=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            sys.stderr.write(self.log.read_text()[-4000:])

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; status 0 where nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def wait_ready(self) -> Self:
        def up() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            return self.ready()

        until(up, "the agent is ready")
        return self

    def metric(self, name: str) -> float:
        """The value of one sample, given as it stands in the text format, labels and all."""
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    @property
    def rss(self) -> int:
        """Bytes of memory that it holds now."""
        return process.resident(self.process.pid)

    @property
    def descriptors(self) -> int:
        return len(list(pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir()))


Start = Callable[..., AgentProcess]
"""Starts an agent with more options; it is ended with the test."""


def pods(values: Mapping[int, str | None], **spec: Any) -> dict[str, Any]:
    """The spec of a state with these values; None: without one."""
    entries = {
        uid(number): {"reason": "KubeletDecides"} | ({} if value is None else {"swapMax": value})
        for number, value in values.items()
    }
    return {"pods": entries, **spec}
