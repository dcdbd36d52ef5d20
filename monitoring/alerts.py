"""The alerts: their subject, their expression, and their runbook.

The one source of the chart's PrometheusRule, of build/prometheus/rules.yaml and of docs/alerts.md, which
monitoring.generate makes. Numbers that differ among clusters stand as <name>, and have their defaults in the chart's
values (`prometheusRule.thresholds`).

Rules for expressions:

- Series of an agent have the agent's pod among their labels, and an update replaces it. So each is about a node (label
  `node` of the target), never about an instance: an alert outlives the pod that reported it.
- During an update with a surge two agents of a node report the same counters of the kernel: max, not sum.
- Counters of the kernel continue when an agent restarts, its own start from 0: rate and increase handle both.
- A removed node takes its series with it: nothing fires, and nothing waits, for a missing one.
"""

from __future__ import annotations

import dataclasses
from typing import Final, Literal

TRAFFIC: Final = "<swapTrafficMebibytesPerSecond> * 1024 * 1024"
ADMISSION: Final = r'name=~"(.+\\.)?pods\\.swapwarden\\.dev"'


@dataclasses.dataclass(frozen=True)
class Alert:
    """One alerting rule."""

    name: str
    severity: Literal["critical", "warning", "info"]
    lasting: str
    """How long the expression must hold, as Prometheus writes durations."""
    expression: str
    summary: str
    description: str
    webhook: bool = False
    """Whether it is about the webhook, which not every installation has."""


def of_node(metric: str, *, how: str = "{}") -> str:
    """Return one value for each node, whichever of its agents reports it; `how` is applied to the series before."""
    return f"max by (cluster, node) ({how.format(metric)})"


def _rate(metric: str) -> str:
    return of_node(f"{metric}[5m]", how="rate({})")


def _with_names(expression: str) -> str:
    """Return an expression by pod_uid with the pods' namespaces and names, if kube-state-metrics reports them."""
    names = 'label_replace(kube_pod_info, "pod_uid", "$1", "uid", "(.+)")'
    return f"""\
(
{_indented(expression)}
)
* on (cluster, pod_uid) group_left (namespace, pod)
  max by (cluster, pod_uid, namespace, pod) ({names})
or on (cluster, pod_uid)
(
{_indented(expression)}
)"""


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


_SWAP_IN: Final = "swapwarden_node_swap_in_bytes_total"
_SWAP_OUT: Final = "swapwarden_node_swap_out_bytes_total"
_OTHER_WRITERS: Final = 'swapwarden_agent_rewrites_total{cause="OtherWriter"}'
_LOOKS: Final = "swapwarden_agent_reclaim_looks_total"

ALERTS: Final = (
    Alert(
        "SwapwardenDisabledPodUsesSwap",
        "warning",
        "15m",
        "max by (cluster, node) (swapwarden_controller_disabled_pods_swap_bytes) > <disabledMebibytes> * 1024 * 1024",
        "Pods that must not swap have swap in use.",
        "On node {{ $labels.node }}, pods whose policy is Disabled have {{ $value | humanize1024 }}B in swap,"
        " and have had some for 15 minutes. They can take little more, and what they have leaves swap only as it is"
        " used.",
    ),
    Alert(
        "SwapwardenDriftFight",
        "warning",
        "5m",
        f"""\
sum by (cluster, node) (increase({_OTHER_WRITERS}[15m])) > <driftRewrites>
or
sum by (cluster, node) (increase({_OTHER_WRITERS}[75m]))
  and on (cluster, node) swapwarden_agent_condition{{type="Drifted",reason="Yielded"}} == 1""",
        "Another writer fights over swap limits.",
        "On node {{ $labels.node }}, something else has written over Swapwarden's swap limits {{ $value | printf"
        ' "%.0f" }} times lately. Values that it raised were lowered again each time; a value that it keeps'
        " lowering is left to it for an hour.",
    ),
    Alert(
        "SwapwardenAgentSilent",
        "warning",
        "15m",
        """\
max by (cluster, node) (swapwarden_controller_node_silent) == 1
  unless on (cluster, node)
max by (cluster, node) (kube_node_status_condition{condition="Ready",status="true"}) == 0
or on (cluster, node)
max by (cluster, node) (max_over_time(swapwarden_agent_state_followed[5m])) == 0""",
        "A node has no agent that answers.",
        "On node {{ $labels.node }}, which is up, Swapwarden's agent has not been at work, or has not reached the API"
        " server, for 15 minutes. Without one, new pods get the kubelet's limits, and external writes to limits"
        " are not repaired.",
    ),
    Alert(
        "SwapwardenAgentDegraded",
        "warning",
        "15m",
        """\
max by (cluster, node) (swapwarden_agent_condition{type="Degraded",status="True"}) == 1
or
max by (cluster, node) (swapwarden_controller_node_problem{problem="SettingsRefused"}) == 1""",
        "An agent cannot do all of its work.",
        "On node {{ $labels.node }}, Swapwarden's agent has not been able to do all of its work for 15 minutes: the"
        " kernel refuses limits, so that pods may take more swap than they should, or the newest plan is"
        " invalid, or changes arrive late, or a setting of the node differs from its profile. `kubectl"
        " swap nodes` has the reason and the remedy.",
    ),
    Alert(
        "SwapwardenNriUnavailable",
        "warning",
        "15m",
        """\
max by (cluster, node, reason) (swapwarden_agent_condition{type="NriUnavailable",status="True",reason!="NoSocket"}) == 1
or
max by (cluster, node, reason) (swapwarden_agent_condition{type="NriUnavailable",status="True",reason="NoSocket"}) == 1
  and on (cluster, node)
max by (cluster, node) (max_over_time(swapwarden_agent_nri_connected[6h])) == 1""",
        "A container runtime does not hold swap limits any more.",
        "On node {{ $labels.node }}, the container runtime has not held the swap limits of containers for 15 minutes"
        " ({{ $labels.reason }}). The agent alone holds them: on a busy node a pod may take swap between an external"
        " write and its repair. With nri.mode required, containers of Disabled pods may not start.",
    ),
    Alert(
        "SwapwardenNriErrors",
        "warning",
        "1m",
        "sum by (cluster, node) (increase(swapwarden_agent_nri_errors_total[1h])) > 0",
        "The process beside a container runtime fails at requests.",
        'On node {{ $labels.node }}, swapwarden nri could not decide {{ $value | printf "%.0f" }} requests of the'
        " container runtime within an hour. The containers start without a limit by it; the agent alone holds them.",
    ),
    Alert(
        "SwapwardenPodStuckAtMemoryHigh",
        "warning",
        "1m",
        "sum by (cluster, node) (increase(swapwarden_agent_throttle_trips_total[15m])) > 0",
        "A pod stood still at memory.high.",
        "On node {{ $labels.node }}, the kernel throttled pods at their memory.high until their tasks stood still,"
        ' {{ $value | printf "%.0f" }} times in 15 minutes. The guard raises memory.high of such pods, unless'
        " memoryQoS.guard.action is Report, or memory.high is the kubelet's and memoryQoS.guard.kubelet is Report."
        " The NodeSwapState's violations name them.",
    ),
    Alert(
        "SwapwardenNoLeader",
        "warning",
        "10m",
        "absent(swapwarden_leader == 1)",
        "No controller leads.",
        "No instance of Swapwarden's controller has led for 10 minutes, or its metrics are not collected. Agents"
        " keep their last plans; pods that start now get no swap, or as swap.beforePlan of their node's profile"
        " says.",
    ),
    Alert(
        "SwapwardenPodsNotPlanned",
        "warning",
        "5m",
        "max by (cluster, node) (swapwarden_controller_pods_left_out) > 0",
        "A node has more pods than its plan has room for.",
        'On node {{ $labels.node }}, {{ $value | printf "%.0f" }} pods have not been in the plan for 5 minutes: the'
        " node has more of them, or larger ones, than one plan has room for. They have no swap, or what the kubelet"
        " gives them where swap.beforePlan of their profile is Unmanaged. Kubelets run far fewer pods, so most of them"
        " never run, and somebody may make them on purpose.",
    ),
    Alert(
        "SwapwardenCrdOutdated",
        "warning",
        "15m",
        # It is retried every five minutes, and may succeed for a moment with a node that needs none of the missing
        # fields.
        "max by (cluster) (max_over_time(swapwarden_controller_crd_fields_missing[10m])) == 1",
        "The CustomResourceDefinitions are older than the controller.",
        "The CustomResourceDefinition of NodeSwapStates has lacked fields or values that the controller writes for 15"
        " minutes. These fields are not enforced; all others are. Apply the definitions of the controller's version.",
    ),
    Alert(
        "SwapwardenControllerPartFailing",
        "warning",
        "5m",
        "sum by (cluster, part) (increase(swapwarden_controller_part_faults_total[15m])) > 2",
        "A part of the controller fails repeatedly.",
        'The part {{ $labels.part }} of Swapwarden\'s controller has failed {{ $value | printf "%.0f" }} times in 15'
        " minutes with an unexpected error. It is restarted each time, and planning continues.",
    ),
    Alert(
        "SwapwardenClockDiffers",
        "warning",
        "10m",
        "max by (cluster) (abs(swapwarden_controller_clock_difference_seconds)) > 3600",
        "The controller's clock and the API server's differ.",
        "The clock of the leading controller's node and the API server's have differed by {{ $value |"
        " humanizeDuration }} for 10 minutes. The webhook's certificate is not renewed until they agree.",
        webhook=True,
    ),
    Alert(
        "SwapwardenRestoring",
        "warning",
        "10m",
        "max by (cluster) (swapwarden_controller_restoring) == 1",
        "Nodes restore the values from before Swapwarden; no policy is enforced.",
        "The ConfigMap swapwarden-uninstall has ordered for 10 minutes that all nodes restore the values from before"
        " Swapwarden. Pods that must not swap may swap.",
    ),
    Alert(
        "SwapwardenWebhookFailing",
        "critical",
        "10m",
        f"""\
sum by (cluster, name) (
  increase(apiserver_admission_webhook_rejection_count{{{ADMISSION},error_type!="no_error"}}[5m])
  or
  increase(apiserver_admission_webhook_fail_open_count{{{ADMISSION}}}[5m])
)
  > 0""",
        "API servers cannot call the webhook.",
        'API servers have failed {{ $value | printf "%.0f" }} times in 5 minutes to call the webhook {{'
        " $labels.name }}. Pods that count on it are refused, or with failurePolicy Ignore admitted without their"
        " namespace's default.",
        webhook=True,
    ),
    Alert(
        "SwapwardenWebhookDown",
        "critical",
        "10m",
        "absent(swapwarden_webhook_certificate_expiry_timestamp_seconds)",
        "No instance of the webhook runs.",
        "No instance of Swapwarden's webhook has run for 10 minutes, or their metrics are not collected."
        " Pods that count on it are refused, or with failurePolicy Ignore admitted without their namespace's"
        " default.",
        webhook=True,
    ),
    Alert(
        "SwapwardenCertificateNearExpiry",
        "warning",
        "1h",
        """\
min by (cluster) (swapwarden_webhook_certificate_expiry_timestamp_seconds > 0) - time()
  < <certificateDays> * 24 * 3600""",
        "The webhook's certificate expires soon.",
        "The certificate that Swapwarden's webhook serves expires in {{ $value | humanizeDuration }}; it should"
        " have been renewed before. Once it has expired, API servers can no longer call the webhook.",
        webhook=True,
    ),
    Alert(
        "SwapwardenNodeThrashing",
        "warning",
        "5m",
        f"""\
{_rate(_SWAP_IN)} > {TRAFFIC}
  and on (cluster, node)
{_rate(_SWAP_OUT)} > {TRAFFIC}
  and on (cluster, node)
{_rate('swapwarden_node_pressure_stalled_seconds_total{resource="memory",kind="full"}')}
  > <memoryStalledRatio>""",
        "A node moves memory to swap and back instead of working.",
        "Node {{ $labels.node }} reads {{ $value | humanize1024 }}B/s back from swap while it writes more out,"
        " and for more than a share of <memoryStalledRatio> of the time nothing runs because all wait for memory.",
    ),
    Alert(
        "SwapwardenSwapNearlyFull",
        "warning",
        "15m",
        f"""\
{of_node("swapwarden_node_swap_usage_bytes")}
  / on (cluster, node)
{of_node("swapwarden_node_swap_total_bytes")}
  > <swapFullRatio>""",
        "A node's swap is nearly full.",
        "{{ $value | humanizePercentage }} of the swap of node {{ $labels.node }} is in use. When it is full,"
        " the OOM killer takes over, and pods that reach their memory limit are killed instead of swapped.",
    ),
    Alert(
        "SwapwardenHeadroomLow",
        "warning",
        "1m",
        f"""\
min by (cluster, node) (swapwarden_node_memory_headroom_bytes)
  / on (cluster, node)
{of_node("swapwarden_node_memory_total_bytes")}
  < <headroomRatio>
  and on (cluster, node)
{of_node("swapwarden_node_swap_total_bytes")} > 0""",
        "A node with swap is nearly out of memory.",
        "Only {{ $value | humanizePercentage }} of the memory of node {{ $labels.node }} can still be taken, with all"
        " that its pods can swap. Below that the OOM killer ends processes, often before the kubelet evicts.",
    ),
    Alert(
        "SwapwardenMemoryPressure",
        "warning",
        "2m",
        'max by (cluster, node, signal) (swapwarden_node_memory_pressure{scope!="pod"}) == 1',
        "A node is under memory pressure, by the thresholds of its profile.",
        "The signal {{ $labels.signal }} of spec.pressure has been on for 2 minutes on node {{ $labels.node }}. An OOM"
        " kill is near (headroom), or all tasks wait for memory at once for much of the time (stall).",
    ),
    Alert(
        "SwapwardenEvictionsHeld",
        "warning",
        "10m",
        'max by (cluster, node) (swapwarden_controller_node_evictions_held{reason!="Settling"}) == 1',
        "A node under memory pressure needs an eviction, and no pod can be evicted.",
        "Node {{ $labels.node }} has been under memory pressure for 10 minutes, and its profile has pods evicted, but"
        " none was: all are spared, disruption budgets keep them, a limit is reached, or the API server refuses. The"
        " kubelet's eviction and the OOM killer remain.",
    ),
    Alert(
        "SwapwardenReclaimHeld",
        "info",
        "30m",
        f"""\
sum by (cluster, node, result) (increase({_LOOKS}{{result=~"WritesSpent|SwapKept|NodePressure"}}[30m])) > 0
  unless on (cluster, node)
sum by (cluster, node) (increase({_LOOKS}{{result="Step"}}[30m])) > 0""",
        "Idle memory of pods stays where it is: a bound of the node is reached.",
        "On node {{ $labels.node }}, no idle memory has been moved to swap for an hour, although pods ask for it:"
        " {{ $labels.result }}. WritesSpent: the bytes of 24 hours are used up. SwapKept: no more swap is free than is"
        " kept. NodePressure: the node is short of memory already.",
    ),
    Alert(
        "SwapwardenLimitedSwapNotEngaging",
        "warning",
        "15m",
        'max by (cluster, node) (swapwarden_agent_condition{type="KubeletSetsNoLimits",status="True"}) == 1',
        "A kubelet with LimitedSwap sets no limits.",
        "The kubelet of node {{ $labels.node }} is configured with LimitedSwap, but the containers of its"
        " Burstable pods have no swap limit at all: they can take all of the node's swap.",
    ),
    Alert(
        "SwapwardenSwapHidesMemoryLimit",
        "info",
        "30m",
        _with_names(
            """\
max by (cluster, node, pod_uid) (swapwarden_pod_swap_usage_bytes) > <hiddenMebibytes> * 1024 * 1024
  and on (cluster, node, pod_uid)
max by (cluster, node, pod_uid) (rate(swapwarden_pod_memory_events_total{event="max"}[10m])) > <limitHitsPerSecond>"""
        ),
        "A container of a pod is at its memory limit, and swap hides it.",
        "{{ if $labels.pod }}Pod {{ $labels.namespace }}/{{ $labels.pod }}{{ else }}The pod with UID {{"
        " $labels.pod_uid }}{{ end }} on node {{ $labels.node }}, or a container of it, has hit its memory limit more"
        " than <limitHitsPerSecond> times a second for half an hour and continues only because {{ $value | humanize1024"
        " }}B of the pod are in swap. It is slower than necessary, and is killed when its swap is used up.",
    ),
    Alert(
        "SwapwardenSwapStallsSystem",
        "warning",
        "10m",
        f"""\
{of_node(f"rate({_SWAP_IN}[5m]) + rate({_SWAP_OUT}[5m])")} > {TRAFFIC}
  and on (cluster, node)
{_rate('swapwarden_slice_pressure_stalled_seconds_total{slice="system.slice",kind="full"}')}
  > <systemStalledRatio>""",
        "A node's system daemons wait for disks or memory while it swaps.",
        "Node {{ $labels.node }} moves {{ $value | humanize1024 }}B/s to and from swap, and for more than a"
        " share of <systemStalledRatio> of the time nothing in system.slice runs because all there wait for disks or"
        " memory: kubelet, container runtime and sshd, as a rule.",
    ),
    Alert(
        "SwapwardenControllerBlind",
        "critical",
        "5m",
        """\
time() - max by (cluster, resource) (swapwarden_informer_last_event_timestamp_seconds) > 300
or
max by (cluster, resource) (swapwarden_informer_synced) == 0""",
        "No controller sees changes.",
        "No instance of Swapwarden's controller has been able to follow {{ $labels.resource }} for 5 minutes or more."
        " Changes there are not planned: pods that start now get no swap, or as swap.beforePlan of their"
        " node's profile says.",
    ),
    Alert(
        "SwapwardenInformerFailing",
        "warning",
        "15m",
        'sum by (cluster, resource) (increase(swapwarden_informer_errors_total{kind=~"request|internal"}[15m])) > 10',
        "Controllers repeatedly fail to follow a resource.",
        "Lists and watches of {{ $labels.resource }} by Swapwarden's controllers have failed {{ $value | printf"
        ' "%.0f" }} times in 15 minutes. Changes there are planned late.',
    ),
    Alert(
        "SwapwardenObjectLeftOut",
        "warning",
        "5m",
        "max by (cluster, resource) (swapwarden_informer_objects_left_out) > 0",
        "Objects are left out because they cannot be decoded.",
        "{{ $value | printf \"%.0f\" }} of the cluster's {{ $labels.resource }} cannot be decoded by Swapwarden's"
        " controller. Their last valid versions stay in effect; new ones have no effect. The controller's log names"
        " them.",
    ),
)
