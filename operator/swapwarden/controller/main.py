"""`swapwarden controller`: watches in, plans, writes out. One instance leads; the others stand by, in sync."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import signal
from typing import Final

import swapwarden
from swapwarden import options
from swapwarden.api import names
from swapwarden.api.conditions import ConditionType
from swapwarden.controller import app
from swapwarden.kube import client, config, errors
from swapwarden.policy.node import labels
from swapwarden.telemetry import exposition, logs, metrics, server

log = logging.getLogger(__name__)

NAMESPACE: Final = "swapwarden-system"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `swapwarden controller`."""
    parser.add_argument("--kubeconfig", default=None, help="default: in-cluster, $KUBECONFIG, ~/.kube/config")
    parser.add_argument(
        "--namespace",
        type=_namespace,
        default=os.environ.get("POD_NAMESPACE", NAMESPACE),
        help=f"of the Lease (default: $POD_NAMESPACE, else {NAMESPACE})",
    )
    parser.add_argument(
        "--identity",
        default=os.environ.get("POD_NAME", ""),
        help="this instance's name in the Lease; must be unique (default: $POD_NAME, else made up)",
    )
    server.add_address(parser, ":8083")
    options.add_seconds(parser, "--lease-duration", 15.0, "how long another instance waits for a leader that is silent")
    options.add_seconds(
        parser, "--label-removal-delay", 600.0, "how long swap must be off before a node loses its swap labels"
    )
    parser.add_argument(
        "--label-publisher",
        type=options.one_of(names.Publisher),
        choices=list(names.Publisher),
        default=names.Publisher.DIRECT,
        help="who sets labels of nodes: this controller, Node Feature Discovery by NodeFeature objects, or the latter"
        " where it is installed (default: %(default)s)",
    )
    parser.add_argument(
        "--vouched-nodes",
        type=_vouched,
        default={},
        metavar="KEY=VALUE[,...]",
        help=f"labels of nodes for which you vouch that their swap is encrypted: they get {names.VOUCHED_LABEL}"
        " (default: none)",
    )
    parser.add_argument(
        "--writes-per-second",
        type=options.number(float, 1, 10000, "a number of writes a second"),
        default=300.0,
        metavar="NUMBER",
        help="most writes in the cluster: of states, of labels, taints and statuses of nodes, of statuses of profiles,"
        " and of pods' conditions together; bursts of as many pass (default: %(default)s)",
    )
    parser.add_argument(
        "--remove-startup-taint",
        action="store_true",
        help=f"take {names.STARTUP_TAINT} off nodes whose agent has applied a first state",
    )
    parser.add_argument(
        "--agent-pods",
        action="store_true",
        help="agents are pods in --namespace: a node has one if its pod is Ready (default: if one has ever"
        " observed the node's state)",
    )
    parser.add_argument(
        "--extended-resource",
        action="store_true",
        help=f"offer {names.SWAP_RESOURCE} in the status of nodes whose profile says so; needs the right to patch that",
    )
    parser.add_argument(
        "--pod-conditions",
        action="store_true",
        help=f"give pods with a policy the condition {ConditionType.SWAP_POLICY_ENFORCED}; needs the right to patch"
        " their status",
    )
    parser.add_argument(
        "--eviction",
        type=options.one_of(names.EvictionUse),
        choices=list(names.EvictionUse),
        default=names.EvictionUse.OFF,
        help="DryRun: ask the API server whether disruption budgets allow to evict pods of nodes under memory pressure."
        " Enforce: also evict them, where pressure.mode of the profile is Enforce. Both need the right to create"
        " evictions (default: %(default)s)",
    )
    parser.add_argument(
        "--webhook-service",
        default="",
        metavar="NAME",
        help="keep the certificate of this Service in --namespace, in the Secret NAME-tls (default: someone else does)",
    )
    parser.add_argument(
        "--webhook-registration",
        default="swapwarden",
        metavar="NAME",
        help="of the MutatingWebhookConfiguration that must trust the certificate (default: %(default)s)",
    )
    logs.add_arguments(parser)


def _vouched(text: str) -> dict[str, str]:
    desired = dict[str, str]()
    for each in filter(None, text.split(",")):
        key, given, value = each.partition("=")
        if not given or not labels.is_restricted(key):
            raise argparse.ArgumentTypeError(
                f"{each!r} is not KEY=VALUE with a key that kubelets cannot write, such as"
                " node-restriction.kubernetes.io/swap=encrypted"
            )
        desired[key] = value
    return desired


def _namespace(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a namespace, such as {NAMESPACE}")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; return the exit status."""
    logs.configure(arguments.log_level, arguments.log_format)
    # kopf_operator logs faults of kopf, in one line.
    logging.getLogger("kopf").setLevel(logging.CRITICAL)
    metrics.publish_build("controller")
    exposition.register()
    try:
        asyncio.run(_main(arguments))
    except errors.ConfigError as error:
        log.error("the controller cannot start: %s", error)  # noqa: TRY400 the text says all
        return 2
    except OSError as error:
        log.error("the controller cannot start: %s (--metrics-address)", error)  # noqa: TRY400 the text says all
        return 2
    return 0


async def _main(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = arguments.metrics_address
    cfg = config.load(arguments.kubeconfig)
    agent = f"swapwarden-controller/{swapwarden.__version__}"
    async with client.Client(cfg, user_agent=agent) as api:
        process = app.App(cfg, api, arguments)
        async with server.serve(
            host, port, ready=process.readiness.unready, alive=process.stuck, render=exposition.render
        ):
            await process.run(stop)
