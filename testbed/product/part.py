"""One part of the product as a real process on free ports of 127.0.0.1: its log, its health and its metrics."""

import http.client
import json
import os
import re
import sys
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.base import paths, process

INSTALLED = ("-P", str(Path(__file__).with_name("installed.py")))
_START_TIMEOUT = 30.0
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")


def total(text: str, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples with these labels, in Prometheus' text format; 0 if there are none."""
    found = 0.0
    for line in text.splitlines():
        if not line.startswith(name):
            continue
        sample = _SAMPLE.match(line)
        if not sample or sample["name"] != name:
            continue
        has = dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"] or ""))
        if labels.items() <= has.items():
            found += float(sample["value"])
    return found


class Part(process.Managed):
    """`swapwarden COMMAND OPTIONS`, with its log in LOG. It is up when it serves health and metrics.

    PROGRAM (arguments of Python) replaces the package, for a wrapper. PYTHON (see testbed.run.pythons) replaces the
    interpreter of this process.
    """

    def __init__(
        self,
        command: str,
        *options: str,
        log: Path,
        program: Sequence[str] = INSTALLED,
        python: Path = Path(sys.executable),
    ) -> None:
        argv = [str(python), *program, command, "--metrics-address=127.0.0.1:0", *options]
        env = {**os.environ, "PYTHONPATH": str(paths.OPERATOR)}
        self.process = process.Process(f"swapwarden {command}", argv, log=log, env=env)
        try:
            self.metrics_url = f"http://127.0.0.1:{self.said('serving health and metrics')['port']}"
        except BaseException:
            self.process.kill()
            raise

    def said(self, message: str) -> dict[str, Any]:
        """Wait for the first log line with this message; return its fields."""
        what, running = f"{self.process.name} logs {message!r}", self.process
        process.until(
            lambda: self.lines(message), what, _START_TIMEOUT, running=[running], said=running.tail, poll=0.02
        )
        return self.lines(message)[0]

    def lines(self, message: str) -> list[dict[str, Any]]:
        """Return the fields of all log lines so far with this message."""
        return [json.loads(line) for line in self.process.output().splitlines() if f'"{message}"' in line]

    def health(self, path: str) -> tuple[int, str]:
        """Return status and text of /healthz, /readyz or /metrics."""
        address = urllib.parse.urlsplit(self.metrics_url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels; 0 if there are none."""
        return total(self.health("/metrics")[1], name, **labels)

    def stop(self) -> int:
        """End it; return the exit status."""
        return self.process.stop()
