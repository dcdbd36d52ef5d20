"""Admission as the chart installs it, in each of its modes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

import pytest

from testbed.controlplane.servers import ControlPlane
from testbed.product import helm, manifests
from testbed.product.webhook import Webhook
from tests.integration import needs
from tests.integration.conftest import Eventually
from tests.integration.webhook import pods

_WITHOUT_WEBHOOK = (
    "--set=admission.mode=Policy",
    *(f"--show-only=templates/admission/{name}.yaml" for name in ("without-webhook", "policy-memory")),
)


@dataclasses.dataclass(frozen=True)
class Admission:
    """Who sees to new pods."""

    webhook: Webhook | None
    """The process that is asked; None in the mode Policy."""

    @property
    def refuses_with(self) -> int:
        """The HTTP status of a refusal for a contradiction."""
        return 403 if self.webhook is None else 422

    def calls(self, **labels: str) -> float:
        """How often the webhook was asked."""
        return 0 if self.webhook is None else self.webhook.metric(pods.CALLS, **labels)


MODES: Final = ("Webhook", pytest.param("Policy", marks=needs.MUTATING_POLICIES))
"""The values of admission.mode in the chart."""


@pytest.fixture(scope="module", params=MODES)
def admission(request: pytest.FixtureRequest, crds: ControlPlane, eventually: Eventually) -> Iterator[Admission]:
    """The admission of a module, once for each admission.mode of the chart."""
    with installed(request.param, crds, eventually) as found:
        yield found


@pytest.fixture
def namespace(crds: ControlPlane, admission: Admission) -> str:
    """A new namespace under the module's admission."""
    assert admission
    return pods.new_namespace(crds)


@contextlib.contextmanager
def installed(
    mode: str, crds: ControlPlane, eventually: Eventually, *, require_plugin: bool = False
) -> Iterator[Admission]:
    """Admission in a mode, in force; `require_plugin` as with the chart's nri.mode: required."""
    if mode == "Webhook":
        with Webhook(crds, *(["--require-runtime-plugin"] if require_plugin else [])) as running:
            try:
                running.install()
                yield Admission(running)
            finally:
                running.uninstall()
        return
    values = ("--set=nri.mode=required",) if require_plugin else ()
    policies, probes = helm.render(*_WITHOUT_WEBHOOK, *values), pods.new_namespace(crds, "Required")

    def is_placed() -> bool:
        status, answer = pods.create(crds, probes, pods.pod("probe"), pods.DRY_RUN)
        return status == HTTPStatus.CREATED and "nodeSelector" in answer["spec"]

    try:
        crds.apply(*manifests.other_manifests(), policies)
        crds.wait_for_policies()
        eventually(is_placed, "the policies in force")
        yield Admission(None)
    finally:
        crds.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", text=policies)
        crds.kubectl(
            "delete", "--ignore-not-found", "--wait=false", *(f"--filename={path}" for path in manifests.policies())
        )
        crds.wait_for_policies()
        eventually(lambda: not is_placed(), "the policies gone")
