"""The webhook's command line."""

from __future__ import annotations

import argparse
import logging
import resource
import socket
from pathlib import Path

import pytest
from swapwarden.telemetry import exposition, logs
from swapwarden.telemetry import server as telemetry
from swapwarden.webhook import connections, main

from testbed.controlplane import pki


@pytest.fixture(autouse=True)
def _leave_the_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Both are for the process: the root logger's handlers, and a registry that takes a collector once.
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.setattr(exposition, "register", lambda: None)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    main.add_arguments(parser)
    return parser.parse_args(["--tls-cert=tls.crt", "--tls-key=tls.key", *arguments])


def test_defaults() -> None:
    args = parse()
    assert (args.host, args.port, args.metrics_address) == ("", 8443, ("", 8081))
    assert (args.cert_reload_interval, args.shutdown_delay) == (10.0, 3.0)
    assert (args.log_level, args.log_format) == ("info", "json")
    assert args.tls_cert == Path("tls.crt")


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--port=65536", "'65536' is not a port between 0 and 65535"),
        ("--port=http", "'http' is not a port"),
        ("--cert-reload-interval=0", "'0' is not a number of seconds between 0.1 and 86400"),
        ("--cert-reload-interval=inf", "'inf' is not a number of seconds"),
        ("--shutdown-delay=-1", "'-1' is not a number of seconds between 0 and 86400"),
        ("--metrics-address=8081", "write host:port"),
    ],
)
def test_what_makes_no_sense_is_refused(argument: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(argument)
    assert says in capsys.readouterr().err


def test_without_a_certificate_it_says_so_and_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main.run(parse(f"--tls-cert={tmp_path / 'missing.crt'}")) == 1
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert "missing.crt: No such file or directory" in record.getMessage()
    assert "--tls-cert" in record.getMessage()


@pytest.mark.parametrize("taken_is", ["port", "metrics"])
def test_with_its_port_taken_it_says_so_and_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, taken_is: str
) -> None:
    pair = pki.Authority(tmp_path).issue("serving", "webhook", ["127.0.0.1"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {
            "port": (f"--port={port}", "--metrics-address=127.0.0.1:0"),
            "metrics": ("--port=0", f"--metrics-address=127.0.0.1:{port}"),
        }[taken_is]
        files = (f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}")
        assert main.run(parse("--host=127.0.0.1", *files, *ports)) == 1
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert "cannot listen" in record.getMessage()
    assert str(port) in record.getMessage()


def test_as_many_files_may_be_open_as_connections_need(monkeypatch: pytest.MonkeyPatch) -> None:
    for (soft, hard), wanted in (
        ((1024, 524288), [(4096, 524288)]),
        ((1024, 2048), [(2048, 2048)]),
        ((1024, resource.RLIM_INFINITY), [(4096, resource.RLIM_INFINITY)]),
        ((20000, 524288), []),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), []),
    ):
        given: list[tuple[int, int]] = []
        monkeypatch.setattr(resource, "getrlimit", lambda _which, now=(soft, hard): now)
        monkeypatch.setattr(resource, "setrlimit", lambda _which, limits, given=given: given.append(limits))
        main.allow_open_files(connections.MAX_FILES)
        assert given == wanted
    held = connections.MAX_SILENT * 2 + connections.MAX_HANDSHAKES + connections.MAX_CONNECTIONS
    assert held + telemetry.MAX_WAITING + telemetry.MAX_METRICS < connections.MAX_FILES
