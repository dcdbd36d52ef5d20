"""The whole output of explain."""

from __future__ import annotations

import datetime
import pathlib

import pytest
from swapwarden.api import names, state
from swapwarden.cli.kubectl.cluster import usage
from swapwarden.cli.kubectl.explain import model, screen

from tests.unit.cli.kubectl.explained import MI, container, planned, pod, profile, reported, seen

NOW = datetime.datetime(2026, 1, 1, 2, tzinfo=datetime.UTC)
REPORT = (container("app", "1Gi", "2Gi"), container("proxy", "64Mi", "64Mi"))


def report() -> model.PodExplanation:
    found, governing = pod(*REPORT), profile(reserved="25%")
    exposed = state.ExposedPod("uid-1", count=1, milliseconds=35, causes=[names.Cause.START])
    return model.explain(
        seen(
            found,
            governing,
            profile(name="all", priority=50, selector=()),
            state=reported(planned(found, governing), exposures=[exposed]),
            used=usage.PodUse(
                namespace="batch",
                name="report",
                node="batch-1",
                swap_bytes=12 * MI,
                containers=[usage.LimitedUse(name="app", swap_bytes=12 * MI)],
            ),
        )
    )


SHARE = """\
batch/report-6d5f8b7c9-x2x4q: up to 384Mi of swap  (LimitedSwap)

POLICY     none: the pod gets what its node's profile gives
QOS        Burstable
NODE       batch-1: 8Gi memory, 4Gi swap on /dev/nvme1n1 (NVMe)
PROFILE    batch-nodes generation 3, LimitedSwap: priority 100, before all (50)
KERNEL     the kernel holds the planned swap limit of this pod on node batch-1, for 1h50m at least; held by the agent alone
IN USE     12Mi (app 12Mi)
EXPOSED    above its limit once, 35 ms in all (Start); swapped 0 meanwhile
SECRETS    stay in memory: the kubelet, whose pages they are, does not swap

RULES  the first that matches decides
  ·  NodeIncompatible  the node has cgroup v2 with the swap controller
  ·  PolicyDisabled    there is no policy
  ·  InvalidPolicy     the policy and the limits are valid
  ·  OverrideDisabled  no override has the policy Disabled
  ·  RequirementUnmet  the profile has no requirements
  ·  CriticalPod       neither a static pod nor of a system priority
  ·  QoSNotEligible    the pod is Burstable
  ✓  LimitedSwap       behavior LimitedSwap of batch-nodes: a share of the node's swap, by memory request

NUMBERS
  node   4Gi - 1Gi (reserved 25%)                    = 3Gi (3221225472)
  app    request 1Gi / memory 8Gi × 3Gi              = 384Mi (402653184)
  proxy  its memory request equals its limit (64Mi)  = 0
  pod    its containers together                     = 384Mi (402653184)

TO CHANGE IT
  more     a memory limit of proxy above its request (64Mi), or a smaller request, in the pod template of deployment/report
  more     a memory request of app above 1Gi and below its limit (2Gi), in the pod template of deployment/report
  less     annotation swapwarden.dev/swap-limit below 384Mi, in the pod template of deployment/report
  no swap  the policy Disabled, in the pod template of deployment/report
           $ kubectl patch deployment report -n batch -p '{"spec":{"template":{"metadata":{"annotations":{"swapwarden.dev/swap-policy":"Disabled"}}}}}'
"""  # noqa: E501, RUF001 a screen is as wide as it is, with a sign of multiplication

TENANT = """\
batch/report-6d5f8b7c9-x2x4q: its limit depends on the profile of its node, which cannot be seen

POLICY     none: the pod gets what its node's profile gives
QOS        Burstable
NODE       batch-1, which may not be seen

BY BEHAVIOR  of the profile that governs its node
  Kubelet             what the kubelet gives
  NoSwap              no swap
  LimitedSwap         a share, by the memory request of app
  WorkloadControlled  no swap: the pod has no limit

TO CHANGE IT
  no swap  the policy Disabled, in the pod template of deployment/report
           $ kubectl patch deployment report -n batch -p '{"spec":{"template":{"metadata":{"annotations":{"swapwarden.dev/swap-policy":"Disabled"}}}}}'

Not seen, for lack of rights: nodes, nodeswapprofiles, nodeswapstates
"""  # noqa: E501 as above

REFUSED = """\
batch/report-6d5f8b7c9-x2x4q: no swap  (PolicyDisabled)

POLICY     Disabled, an annotation of the pod
QOS        Burstable
NODE       batch-1: 8Gi memory, 4Gi swap on /dev/nvme1n1 (NVMe)
PROFILE    batch-nodes generation 3, LimitedSwap: the only one that selects the node
KERNEL     the kernel holds the planned swap limit of this pod on node batch-1, for 1h50m at least; held by the agent alone
IN USE     <unknown>
SECRETS    stay in memory: the kubelet, whose pages they are, does not swap

RULES  the first that matches decides
  -  NodeIncompatible  the node has cgroup v2 with the swap controller
  >  PolicyDisabled    the policy is Disabled

TO CHANGE IT
  swap  the policy NoPreference, in the pod template of deployment/report
        $ kubectl patch deployment report -n batch -p '{"spec":{"template":{"metadata":{"annotations":{"swapwarden.dev/swap-policy":"NoPreference"}}}}}'
"""  # noqa: E501 as above


def test_a_share() -> None:
    assert screen.text(report(), NOW) == SHARE


def test_without_rights() -> None:
    unseen = ("nodes", "nodeswapprofiles", "nodeswapstates")
    told = model.explain(model.Observed(pod(*REPORT), unseen=unseen))
    assert screen.text(told, NOW) == TENANT


def test_a_pod_that_lacks_what_admission_adds() -> None:
    told = model.explain(seen(pod(*REPORT, annotations={"swapwarden.dev/swap-policy": "Avoid"}), profile()))
    assert "\nADMISSION  its policy Avoid does not place it: it lacks spec.affinity: " in screen.text(told, NOW)


def test_in_ascii() -> None:
    told = model.explain(seen(pod(*REPORT, annotations={"swapwarden.dev/swap-policy": "Disabled"}), profile()))
    written = screen.writable(screen.text(told, NOW), "ascii")
    assert written == REFUSED
    assert written.isascii()


@pytest.mark.parametrize(
    ("encoding", "written"),
    [("utf-8", "\N{CHECK MARK}\xe9"), ("ascii", ">?"), ("latin-1", ">?"), ("nonsense", ">?"), (None, ">?")],
)
def test_signs_that_can_be_written(encoding: str | None, written: str) -> None:
    assert screen.writable("\N{CHECK MARK}\xe9", encoding) == written


def test_it_fits_a_terminal() -> None:
    for width in (60, 80, 200):
        lines = screen.text(report(), NOW, width=width).splitlines()
        commands = [line for line in lines if "$ " in line]
        assert max(len(line) for line in lines if line not in commands) <= min(width, screen.MAX_WIDTH)
        assert [line.partition("$ ")[2] for line in commands] == [report().changes[-1].command], "whole, to be copied"


def test_colours_are_for_terminals() -> None:
    assert "\x1b[" in screen.text(report(), NOW, coloured=True)
    assert "\x1b[" not in screen.text(report(), NOW)


def test_what_people_wrote_cannot_control_the_terminal() -> None:
    hostile = pod(*REPORT, annotations={"swapwarden.dev/swap-policy": "\x1b[2J\x07"})
    assert "\x1b" not in screen.text(model.explain(seen(hostile, profile())), NOW)
    told = reported(
        planned(hostile, profile()), state.Violation("uid-1", "WriteFailed", message="\x1b]0;x\x07 and more")
    )
    assert "\x1b" not in screen.text(model.explain(seen(hostile, profile(), state=told)), NOW)


def test_the_documentation_shows_these() -> None:
    page = (pathlib.Path(__file__).parents[5] / "docs/kubectl-swap.md").read_text(encoding="utf-8")
    for shown in (SHARE, TENANT):
        assert f"```text\n{shown}```\n" in page
