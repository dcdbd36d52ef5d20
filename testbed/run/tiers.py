"""python -m testbed.run.tiers TIER...: set up, run tiers of tests one after the other, report how long each took."""

import argparse
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from testbed.base import process, term
from testbed.controlplane import assets, kubeversions
from testbed.run import unsteady

PARALLEL = ("--numprocesses=auto", "--maxprocesses=4", "--dist=loadfile")
"""Modules in parallel."""
WAITING = ("--numprocesses=4", "--dist=loadfile")
"""The same for tests that wait more than they compute, however few the cores. Each worker has a control plane: more
than four cost more than they save."""


@dataclasses.dataclass(frozen=True)
class Tier:
    """A folder of tests."""

    parts: tuple[str, ...] = ()
    """The parts of the testbed that it needs."""
    options: tuple[str, ...] = ()
    """Options of pytest."""
    is_timed: bool = True
    """Whether its tests wait for other processes, which a busy machine delays: then a failure gets a second look."""
    paths: tuple[str, ...] = ()
    """The paths of its tests, if they are not in a folder of its name."""
    kubernetes: str = ""
    """The version of the API server, if it is not the newest."""
    in_memory: bool = False
    """Whether its temporary files are in memory if that has room. On a disk, each rewrite of a file costs a write of
    the disk (ext4's auto_da_alloc), for which a test waits ten times as long as it computes.
    """


OLDEST = (
    "test_crds.py",
    "rbac/test_rights.py",
    "webhook/test_memory.py",
    "webhook/test_policies.py",
    "webhook/test_calls.py",
    "chart/test_release.py",
    "controller/test_controller.py",
    "agent/test_agent_real_api.py",
)

TIERS = {
    "unit": Tier(options=PARALLEL, is_timed=False, in_memory=True),
    "integration": Tier(("controlplane", "helm", "nfd", "nri", "promtool"), WAITING),
    # The tests of an installation on the oldest version; all integration tests on all versions: make test-matrix.
    "oldest": Tier(
        ("oldest", "helm"),
        WAITING,
        paths=tuple(f"tests/integration/{each}" for each in OLDEST),
        kubernetes=kubeversions.known()[0],
    ),
    "kernel": Tier(("kernel", "helm")),
    # tests/e2e/conftest.py has how many processes, and the order.
    "e2e": Tier(("e2e", "promtool"), ("--numprocesses=auto", "--dist=loadfile", "--no-loadscope-reorder")),
}
REPORTS = Path("build/tests")
MEMORY = Path("/dev/shm")  # noqa: S108 in it is made a folder of a name of its own
MEMORY_BYTES = 2**30
"""Free bytes that it needs: in a container it often has a few MiB."""
FEW = 2
"""Up to so many failures of a tier may be the machine's; more are not run again."""


@dataclasses.dataclass(frozen=True)
class Share:
    """The time and the result of one step."""

    name: str
    seconds: float
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    status: int = 0
    unsteady: int = 0
    """The number of tests that failed first and passed when they were run by themselves."""
    again: tuple[str, ...] = ()
    """Those of them that were also unsteady in one of the last runs."""

    @property
    def is_good(self) -> bool:
        """Return whether the step succeeded: a tier without one test that passed proves nothing."""
        is_done = self.status == 0 and not self.failed and (self.name not in TIERS or self.passed > 0)
        return is_done and not self.again


def counts(report: Path) -> tuple[int, int, int]:
    """Return the passed, failed and skipped tests of a JUnit report; zeros without one."""
    if not report.exists():
        return 0, 0, 0
    suites = list(ET.parse(report).getroot().iter("testsuite"))  # noqa: S314 it reads what pytest has just written
    total, skipped, failures, errors = (
        sum(int(suite.get(key, "0")) for suite in suites) for key in ("tests", "skipped", "failures", "errors")
    )
    return max(0, total - skipped - failures - errors), failures + errors, skipped


def run_tier(name: str) -> Share:
    """Run one tier in a process of its own, so that its processes end before the next tier begins.

    A few failures of a tier that depends on the machine's speed are run once more by themselves. Those that then pass
    do not fail the tier, but are counted, shown and kept (testbed.run.unsteady), and fail it the next time.
    """
    begin = time.monotonic()
    status, (passed, failed, skipped) = _pytest(name, *TIERS[name].options)
    held = 0
    found: list[unsteady.Unsteady] = []
    again: list[str] = []
    if TIERS[name].is_timed:
        if status == pytest.ExitCode.TESTS_FAILED and failed <= FEW:
            term.say(f"tier {name}: {failed} failed; once more, by themselves ...")
            # A test that is skipped now has not passed.
            status, (held, _, _) = _pytest(name, "--last-failed", "--last-failed-no-failures=none", again=True)
            passed, failed = passed + held, failed - held
            found = unsteady.between(_report(name), _report(name, again=True))
        # A run that ended early, or with too many failures for a second look, shows no unsteady test: if it counted, it
        # would push one that does out of the history.
        is_whole = status == pytest.ExitCode.OK or (status == pytest.ExitCode.TESTS_FAILED and failed <= FEW)
        if found or (is_whole and passed):
            again = _remember(name, found)
    return Share(name, time.monotonic() - begin, passed, failed, skipped, status, held, tuple(again))


def _remember(name: str, found: Sequence[unsteady.Unsteady]) -> list[str]:
    """Keep the unsteady tests FOUND in a run of a tier; return those that were unsteady before."""
    artifact = REPORTS / f"{name}-unsteady.txt"
    again = unsteady.note(name, found, artifact)
    if again:
        term.say(f"unsteady again within {unsteady.RUNS} runs of tier {name}: {', '.join(again)}")
    for each in found:
        if each.name in again:
            term.say(f"{each.name}\n{each.first}\nonce more\n{each.again}")
    if found:
        term.say(f"what unsteady tests left, each time: {artifact}")
    return again


def _report(name: str, *, again: bool = False) -> Path:
    return REPORTS / (f"{name}-again.xml" if again else f"{name}.xml")


def _pytest(name: str, *options: str, again: bool = False) -> tuple[int, tuple[int, int, int]]:
    """Return the exit status of a run over a tier, and its counts."""
    report = _report(name, again=again)
    report.unlink(missing_ok=True)
    argv = [
        sys.executable,
        "-m",
        "pytest",
        *options,
        f"--junitxml={report}",
        "-ojunit_logging=all",
        *(TIERS[name].paths or (f"tests/{name}",)),
    ]
    version = {assets.VERSION_VARIABLE: TIERS[name].kubernetes} if TIERS[name].kubernetes else {}
    nothing: contextlib.AbstractContextManager[dict[str, str]] = contextlib.nullcontext({})
    with files_in_memory() if TIERS[name].in_memory else nothing as environment:
        return _call(argv, environment | version), counts(report)


@contextlib.contextmanager
def files_in_memory(memory: Path = MEMORY) -> Iterator[dict[str, str]]:
    """Yield additions to the environment that put temporary files in memory; the files are removed afterwards.

    Empty if no program in MEMORY may be run, or if it has no room.
    """
    try:
        found = os.statvfs(memory)
        fits = found.f_bavail * found.f_frsize >= MEMORY_BYTES and not found.f_flag & os.ST_NOEXEC
    except OSError:
        fits = False
    if not fits or not os.access(memory, os.W_OK):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="swapwarden-", dir=memory, ignore_cleanup_errors=True) as folder:
        yield {"TMPDIR": folder}


def table(shares: Sequence[Share]) -> list[str]:
    """Return the steps as text, a line each, with each step's share of the time."""
    whole = sum(each.seconds for each in shares) or 1.0
    rows: list[tuple[str, ...]] = [("", "minutes", "share", "passed", "failed", "skipped", "")]
    for each in shares:
        unsure = f"UNSTEADY: {each.unsteady}" if each.unsteady else ""
        failed = f"FAILED, exit status {each.status}" if each.status else "FAILED"
        failed += ", unsteady again" if each.again else ""
        verdict = unsure if each.is_good else failed
        numbers = (each.passed, each.failed, each.skipped) if each.name in TIERS else ("", "", "")
        minutes, percent = f"{each.seconds / 60:.1f}", f"{100 * each.seconds / whole:.0f}%"
        rows.append((each.name, minutes, percent, *map(str, numbers), verdict))
    rows.append(("total", f"{whole / 60:.1f}", "", "", "", "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _call(argv: Sequence[str], environment: Mapping[str, str] = types.MappingProxyType({})) -> int:
    """Run in the foreground, with ENVIRONMENT added to this one's, however long it takes; return the exit status.

    If this is stopped, it waits until the child has cleaned up; a kill also ends the child.
    """
    with subprocess.Popen(process.dying_with_this(argv), env=os.environ | environment) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:  # The terminal has also signalled the child.
            child.wait()
            raise
        except SystemExit:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise


def main() -> int:
    """Run the command line; exit status 1 unless every tier ran and passed."""
    parser = argparse.ArgumentParser(prog="python -m testbed.run.tiers", description=__doc__)
    parser.add_argument("tier", nargs="+", choices=[*TIERS])
    chosen = parser.parse_args().tier
    wanted = [tier for tier in TIERS if tier in chosen]
    parts = [part for tier in wanted for part in TIERS[tier].parts]
    process.exit_on_sigterm()
    # A shell that starts this in the background ignores it, and so would all children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shares: list[Share] = []
    try:
        if parts:
            begin = time.monotonic()
            status = _call([sys.executable, "-m", "testbed", "setup", *dict.fromkeys(parts)])
            shares.append(Share("set-up", time.monotonic() - begin, status=status))
            if status != 0:
                return 1
        REPORTS.mkdir(parents=True, exist_ok=True)
        for tier in wanted:
            term.say(f"tier {tier} ...")
            shares.append(run_tier(tier))
    except KeyboardInterrupt:
        term.say("stopped")
        return 130
    term.say("\n".join(["what each took:", *table(shares)]))
    return 0 if all(each.is_good for each in shares) else 1


if __name__ == "__main__":
    sys.exit(main())
