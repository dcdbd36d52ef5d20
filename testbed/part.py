"""One part of the product as a real process on free ports of 127.0.0.1: its log, its health and its metrics."""

import http.client
import json
import re
import sys
import time
import types
import urllib.parse
from pathlib import Path
from typing import Any, Self

from testbed import process

_START_TIMEOUT = 30.0
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")


class Part:
    """`swapwarden COMMAND OPTIONS`, with its log in LOG. It is up when it serves health and metrics."""

    def __init__(self, command: str, *options: str, log: Path) -> None:
        argv = [sys.executable, "-m", "swapwarden", command, "--metrics-address=127.0.0.1:0", *options]
        self.process = process.Process(f"swapwarden {command}", argv, log=log)
        try:
            self.metrics_url = f"http://127.0.0.1:{self.said('serving health and metrics')['port']}"
        except BaseException:
            self.process.kill()
            raise

    def said(self, message: str) -> dict[str, Any]:
        """The fields of the log line with this message, for which it waits."""
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            for line in self.process.output().splitlines():
                if f'"{message}"' in line:
                    entry: dict[str, Any] = json.loads(line)
                    return entry
            self.process.check_alive()
            if time.monotonic() > deadline:
                raise process.ProcessError(f"{self.process.name} does not say {message!r}:\n{self.process.tail()}")
            time.sleep(0.02)

    def health(self, path: str) -> tuple[int, str]:
        """Status and text of /healthz, /readyz or /metrics."""
        address = urllib.parse.urlsplit(self.metrics_url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a metric that have these labels; 0 where there is none."""
        total = 0.0
        for line in self.health("/metrics")[1].splitlines():
            found = _SAMPLE.match(line)
            if not found or found["name"] != name:
                continue
            has = dict(re.findall(r'(\w+)="([^"]*)"', found["labels"] or ""))
            if labels.items() <= has.items():
                total += float(found["value"])
        return total

    def stop(self) -> int:
        """End it; the exit status."""
        return self.process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.stop()
