"""`swapwarden webhook`: the admission server's process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import pathlib
import resource
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Final

from swapwarden import options
from swapwarden.api import names
from swapwarden.telemetry import exposition, logs, metrics
from swapwarden.telemetry import server as health
from swapwarden.webhook import certificates, connections, server

log = logging.getLogger(__name__)

LINGER: Final = 2.0
"""Factor of the shutdown delay to wait in addition while clients keep connections open: HTTP/1.1 cannot announce the
end of an idle connection, and a request sent at that moment is lost."""
MAX_LINGER_SECONDS: Final = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `swapwarden webhook`."""
    parser.add_argument("--host", default="", help="address to listen on (default: all, IPv6 and IPv4)")
    parser.add_argument(
        "--port",
        type=options.number(int, 0, 65535, "a port"),
        default=8443,
        help="port; 0 picks a free one (default: %(default)s)",
    )
    parser.add_argument("--tls-cert", type=pathlib.Path, required=True, help="the certificate (chain), PEM")
    parser.add_argument("--tls-key", type=pathlib.Path, required=True, help="its private key, PEM")
    options.add_seconds(
        parser, "--cert-reload-interval", 10.0, "how often to check the two files for changes", least=0.1
    )
    health.add_address(parser, ":8081")
    options.add_seconds(
        parser,
        "--shutdown-delay",
        3.0,
        "how long to continue serving after SIGTERM, while clients find other replicas; up to three times as long if"
        " they keep connections open",
        least=0,
    )
    parser.add_argument(
        "--require-runtime-plugin",
        action="store_true",
        help=f"annotate pods with the policy {names.Policy.DISABLED} so that container runtimes with the default"
        " validator of NRI refuse their containers while `swapwarden nri` is away",
    )
    logs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    logs.configure(args.log_level, args.log_format)
    try:
        pair = certificates.Certificates(args.tls_cert, args.tls_key)
    except certificates.CertificateError as error:
        log.error("no usable certificate (--tls-cert, --tls-key): %s", error)  # noqa: TRY400 the text says all
        return 1
    allow_open_files(connections.MAX_FILES)
    metrics.publish_build("webhook")
    exposition.register()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(_serve(args, pair))
        except OSError as error:
            log.error("cannot listen: %s (--host, --port, --metrics-address)", error)  # noqa: TRY400 the text says all
            return 1
    return 0


def allow_open_files(count: int) -> None:
    """Raise the soft limit, which container runtimes may leave at 1024, up to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    desired = count if hard == unlimited else min(count, hard)
    if soft != unlimited and soft < desired:
        resource.setrlimit(resource.RLIMIT_NOFILE, (desired, hard))


@contextlib.asynccontextmanager
async def _running(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _serve(args: argparse.Namespace, pair: certificates.Certificates) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    started = False

    def ready() -> str | None:
        if stop.is_set():
            return "stopping"
        return None if started else "starting"

    metrics_host, metrics_port = args.metrics_address
    async with (
        health.serve(metrics_host, metrics_port, ready=ready, render=exposition.render) as bound_metrics,
        server.serve(args.host, args.port, pair, require_plugin=args.require_runtime_plugin) as serving,
        _running(pair.watch(args.cert_reload_interval)),
    ):
        started = True
        log.info("listening", extra={"host": args.host or "all", "port": serving.port, "metrics_port": bound_metrics})
        await stop.wait()
        log.info("stopping", extra={"delay": args.shutdown_delay})
        serving.drain()
        await asyncio.sleep(args.shutdown_delay)
        await serving.left(min(LINGER * args.shutdown_delay, MAX_LINGER_SECONDS))
    log.info("stopped")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 it is optional: without it the webhook is slower, not worse
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
