"""python -m testbed cluster up | down: a cluster with Swapwarden and the workloads of examples/, to look around in."""

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from deploy.build import image
from testbed.base import cache, paths, process, term
from testbed.controlplane import assets, netns, programs
from testbed.controlplane.servers import ControlPlane
from testbed.product import helm
from testbed.vm import cluster

EXAMPLES = ("namespaces.yaml", "profile.yaml", "workloads.yaml")
FOLDER = paths.ROOT / "build" / "demo-cluster"
"""The folder of its programs; its output is in `log` there."""

_PROGRAMS = ("kubectl", "helm", "swapwarden")
_TIMEOUT = 900.0
_START_TIMEOUT = 3600.0
_STOP_TIMEOUT = 120.0
_POLL = 0.2
_READY = "demo cluster: ready"


def up() -> None:
    """Bring it up in the background, unless it is up; ProcessError with the end of its log."""
    if holder() is None:
        _start()
    elif _READY not in _said():
        term.say("the cluster is coming up already:")
        _follow()
    kubectl = os.path.relpath(FOLDER / "kubectl")
    term.say("the cluster is up, and stays until `make demo-down`. Talk to it with its own kubectl:")
    for arguments in ("get nodes,pods -A", "get nsp,nss", "swap nodes"):
        term.say(f"  {kubectl} {arguments}")
    term.say("or put its kubectl, helm and swapwarden first on your path:")
    term.say(f"  export PATH={shlex.quote(str(FOLDER))}:$PATH")


def down() -> None:
    """End it, and wait until it is removed; if it was killed, remove its remains."""
    if (pid := holder()) is None:
        term.say("no demo cluster is up")
    else:
        with term.step("removing the demo cluster"):
            os.kill(pid, signal.SIGTERM)
            process.until(lambda: holder() is None, f"process {pid} ends; its log is {_log()}", _STOP_TIMEOUT)
    netns.remove_leftovers()
    cluster.remove_leftovers()
    for name in (*_PROGRAMS, "pid"):
        (FOLDER / name).unlink(missing_ok=True)


def hold() -> None:
    """Be the cluster until SIGTERM."""
    with cache.lock("demo-cluster"), cluster.Cluster([image.ensure()]) as made:
        with term.step("installing Swapwarden"):
            repository = image.REFERENCE.partition(":")[0]
            options = [f"--namespace={helm.NAMESPACE}", "--create-namespace", "--wait", f"--timeout={_TIMEOUT:.0f}s"]
            settings = f"--set=image.repository={repository},agent.kernel.vm=true"
            made.helm("install", helm.RELEASE, str(helm.chart()), settings, *options, timeout=2 * _TIMEOUT)
        with term.step("applying the examples"):
            for name in EXAMPLES:
                made.kubectl("apply", "-f", str(paths.ROOT / "examples" / name))
            available = ["wait", "--for=condition=Available", "deployments", "--all", f"--timeout={_TIMEOUT:.0f}s"]
            for namespace in ("swap-examples", "swap-examples-strict"):
                made.kubectl(*available, f"--namespace={namespace}", timeout=2 * _TIMEOUT)
        for name in _PROGRAMS:
            (FOLDER / name).write_text(script(made.control_plane, name), encoding="utf-8")
            (FOLDER / name).chmod(0o700)
        term.say(_READY)
        try:
            while True:
                signal.pause()
        finally:
            for name in _PROGRAMS:
                (FOLDER / name).unlink()


def script(control_plane: ControlPlane, name: str) -> str:
    """Return a shell script that runs a program on this cluster; kubectl's plugin is the one of this Python."""
    folder = Path(sys.executable).parent
    program = {"kubectl": assets.kubectl, "helm": programs.helm}.get(name, lambda: folder / name)()
    # Not by --kubeconfig: kubectl takes no flags before the name of a plugin. HELM_KUBE* lead helm to another cluster.
    return f"""\
#!/bin/sh
unset $(env | sed -n 's/^\\(HELM_KUBE[A-Z_]*\\)=.*/\\1/p')
export KUBECONFIG={shlex.quote(str(control_plane.kubeconfig))}
export PATH={shlex.quote(str(folder))}:"$PATH"
exec {shlex.join(control_plane.command([str(program)]))} "$@"
"""


def _log() -> Path:
    return FOLDER / "log"


def holder() -> int | None:
    """Return the process that is the cluster, if it is up or coming up: it holds the lock on the file with its id."""
    path = FOLDER / "pid"
    try:
        with path.open(encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        pass
    return None


def _start() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Not a process.Process: those end with their parent, and this one must outlive it.
    with _log().open("wb") as output, (FOLDER / "pid").open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        held = subprocess.Popen(
            [sys.executable, "-m", "testbed", "cluster", "hold"],
            cwd=paths.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[file.fileno()],
        )
        file.write(str(held.pid))
    try:
        _follow()
    except BaseException:
        held.terminate()
        held.wait(_STOP_TIMEOUT)
        raise


def _follow() -> None:
    """Show the cluster's output until it is ready."""
    deadline = time.monotonic() + _START_TIMEOUT
    shown = 0
    while True:
        running = holder() is not None
        said = _said()
        sys.stderr.write(said[shown:])
        shown = len(said)
        if _READY in said:
            return
        if not running:
            raise process.ProcessError(f"the cluster did not come up; its log is {_log()}")
        if time.monotonic() > deadline:
            raise process.ProcessError(f"the cluster is not up after {_START_TIMEOUT:.0f} s; its log is {_log()}")
        time.sleep(_POLL)


def _said() -> str:
    return _log().read_text(encoding="utf-8", errors="replace")
