"""An API server that is too busy for the controller's evictions: it answers 429, and asks to come back later.

A level without seats of API Priority and Fairness has a queue for one request. A test's own request waits there, so
each further one is refused. (A level without a queue lets one request through at a time: k/k issue 134196.)
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import ssl
from collections.abc import Iterator
from typing import Any, Final

from testbed.product.controller import ACCOUNT, NAMESPACE
from tests.integration.conftest import Eventually
from tests.integration.controller import pressure
from tests.integration.controller.cluster import Cluster

FLOWS: Final = "/apis/flowcontrol.apiserver.k8s.io/v1"
PATH: Final = f"{pressure.PODS}/none/eviction?dryRun=All"
BODY: Final = pressure.eviction("none", gracePeriodSeconds=1)
QUEUED_SECONDS: Final = 0.5
"""A request without an answer by then is in the queue."""
NUMBERS = itertools.count(1)


def _objects(name: str) -> dict[str, dict[str, Any]]:
    """The level and its flow, by collection."""
    queue = {"type": "Queue", "queuing": {"queues": 1, "handSize": 1, "queueLengthLimit": 1}}
    limited = {"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": queue}
    account = {"kind": "ServiceAccount", "serviceAccount": {"namespace": NAMESPACE, "name": ACCOUNT}}
    resources = {"verbs": ["create"], "apiGroups": [""], "resources": ["pods/eviction"], "namespaces": ["*"]}
    flow = {
        "priorityLevelConfiguration": {"name": name},
        "matchingPrecedence": 2,
        "rules": [{"subjects": [account], "resourceRules": [resources]}],
    }
    return {
        "prioritylevelconfigurations": {"metadata": {"name": name}, "spec": {"type": "Limited", "limited": limited}},
        "flowschemas": {"metadata": {"name": name}, "spec": flow},
    }


@contextlib.contextmanager
def overloaded(cluster: Cluster, eventually: Eventually) -> Iterator[None]:
    """With an API server that refuses evictions by the controller."""
    name, token = f"no-evictions-{next(NUMBERS)}", cluster.cp.token(NAMESPACE, ACCOUNT)
    context = ssl.create_default_context(cafile=str(cluster.cp.ca_file))
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection = http.client.HTTPSConnection("127.0.0.1", cluster.cp.port, timeout=QUEUED_SECONDS, context=context)

    def status() -> int:
        return cluster.cp.request("POST", PATH, BODY, token=token)[0]

    def waits() -> bool:
        connection.close()
        connection.request("POST", PATH, json.dumps(BODY), headers)
        with contextlib.suppress(TimeoutError):
            connection.getresponse().read()
            return False
        return status() == 429

    for kind, body in _objects(name).items():
        cluster.cp.create(f"{FLOWS}/{kind}", body)
    try:
        eventually(waits, "a request waits, and others are refused")
        yield
    finally:
        for kind in _objects(name):
            cluster.cp.request("DELETE", f"{FLOWS}/{kind}/{name}")
        connection.close()
    eventually(lambda: status() != 429, "evictions are accepted")
