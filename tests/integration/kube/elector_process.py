"""An elector as a process of its own, which says every few milliseconds whether it leads.

    python elector_process.py KUBECONFIG NAMESPACE NAME IDENTITY LEASE_DURATION RENEW_DEADLINE RETRY_PERIOD

Each line is the time on the boot clock before the question, 1 or 0, and the time after it. SIGTERM ends it.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import signal
import sys
import time
from collections.abc import Iterable, Iterator

from swapwarden.kube import config
from swapwarden.kube.election import elector

from testbed.base.process import Process


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclasses.dataclass(frozen=True)
class Sample:
    before: float
    leads: bool
    after: float


def samples(process: Process) -> list[Sample]:
    """All that a process has said so far."""
    lines = (line.split() for line in process.output().splitlines(keepends=True) if line.endswith("\n"))
    return [Sample(float(words[0]), words[1] == "1", float(words[2])) for words in lines]


def reigns(said: Iterable[Sample]) -> Iterator[tuple[float, float]]:
    """When a process certainly thought that it leads, as often as it began to."""
    for leads, group in itertools.groupby(said, key=lambda sample: sample.leads):
        run = list(group)
        if leads and run[0].after <= run[-1].before:
            yield run[0].after, run[-1].before


def main(argv: list[str]) -> None:
    kubeconfig, namespace, name, identity = argv[:4]
    lease_duration, renew_deadline, retry_period = map(float, argv[4:])
    led: list[elector.Tenure] = []
    made = elector.Elector(
        config.load(str(pathlib.Path(kubeconfig))),
        namespace=namespace,
        name=name,
        identity=identity,
        on_started=led.append,
        on_stopped=lambda *_: None,
        lease_duration=lease_duration,
        renew_deadline=renew_deadline,
        retry_period=retry_period,
    )
    # No threading.Event: its lock may be taken when the signal arrives.
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    made.start()
    while not ended:
        time.sleep(0.005)
        before = now()
        leads = bool(led) and led[-1].left() > 0
        print(f"{before:.6f} {leads:d} {now():.6f}", flush=True)  # noqa: T201 that is its purpose
    made.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
