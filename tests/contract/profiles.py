"""Profiles that the API server and the models refuse with the same reason at the same field, and that both accept."""

from __future__ import annotations

from typing import Any

from swapwarden.api import names

from tests.contract.quantities import QUANTITIES

QUANTITY = "must be a quantity without a sign, such as 512Mi"
TOO_LONG = "Too long: may not be "
"""More, or longer: versions of the API server differ in what follows."""
SUPPORTED = "supported values: "
LABEL = "must be the value of a label"
LABEL_KEY = "must be that of a label: pool, or example.com/pool"
ONE_MORE_LABEL = {f"key-{number}": "x" for number in range(65)}


def document(spec: dict[str, Any]) -> dict[str, Any]:
    """A profile for all nodes with the spec; without `nodeSelector` where it is None."""
    whole = {key: value for key, value in {"nodeSelector": {}, **spec}.items() if value is not None}
    metadata = {"name": "contract"}
    return {"apiVersion": names.API_VERSION, "kind": names.PROFILE_KIND, "metadata": metadata, "spec": whole}


def workload(**bounds: Any) -> dict[str, Any]:
    return {"behavior": "WorkloadControlled", "workloadControlled": bounds}


def expression(**fields: Any) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"], **fields}]}


def override(**swap: Any) -> dict[str, Any]:
    return {"overrides": [{"name": "one", "podSelector": {}, "swap": swap}]}


def of_memory(**memory: Any) -> dict[str, Any]:
    return {"memoryQoS": {}, "overrides": [{"name": "one", "podSelector": {}, "memory": memory}]}


def memory(**fields: Any) -> dict[str, Any]:
    return {"memoryQoS": fields}


def headroom(**fields: Any) -> dict[str, Any]:
    return {"pressure": {"headroom": fields}}


def stall(**fields: Any) -> dict[str, Any]:
    return {"pressure": {"stall": fields}}


def eviction(**fields: Any) -> dict[str, Any]:
    return {"pressure": {"mode": "Enforce", "eviction": fields}}


def reclaim(**fields: Any) -> dict[str, Any]:
    return {"reclaim": fields}


def of_reclaim(asked: str, **fields: Any) -> dict[str, Any]:
    return {**reclaim(**fields), "overrides": [{"name": "one", "podSelector": {}, "reclaim": {"mode": asked}}]}


def many(count: int) -> dict[str, Any]:
    """So many overrides by both selectors."""
    selectors = {"namespaceSelector": expression(), "podSelector": expression()}
    return {"overrides": [{"name": f"n{one}", **selectors, "swap": {"policy": "Disabled"}} for one in range(count)]}


def disabling(**fields: Any) -> dict[str, Any]:
    return {"overrides": [{"name": "one", "swap": {"policy": "Disabled"}, **fields}]}


def unit(name: str = "a.slice", **settings: Any) -> dict[str, Any]:
    return {"systemUnits": [{"name": name, **(settings or {"swap": {"policy": "Disabled"}})}]}


REFUSED: list[tuple[dict[str, Any], str, str | tuple[str, str]]] = [
    ({"nodeSelector": None}, "spec.nodeSelector", "Required value"),
    ({"guarantee": "strict"}, "spec.guarantee", f'{SUPPORTED}"Standard", "Strict"'),
    ({"swap": {"behaviour": "NoSwap"}}, "spec.swap.behaviour", "unknown field"),
    ({"mode": "Restore"}, "spec.mode", f'{SUPPORTED}"Enforce", "Audit"'),
    ({"swap": {"beforePlan": "Allow"}}, "spec.swap.beforePlan", f'{SUPPORTED}"NoSwap", "Unmanaged"'),
    ({"swap": {"behavior": "limitedSwap"}}, "spec.swap.behavior", f'{SUPPORTED}"Kubelet", "NoSwap", "LimitedSwap"'),
    ({"priority": 1_000_001}, "spec.priority", "less than or equal to 1000000"),
    ({"priority": -1_000_001}, "spec.priority", "greater than or equal to -1000000"),
    ({"priority": "100"}, "spec.priority", "integer"),
    ({"swap": {"reserved": "1GB"}}, "spec.swap.reserved", QUANTITY),
    ({"swap": {"reserved": "101%"}}, "spec.swap.reserved", "percents from 0% to 100%"),
    ({"swap": {"reserved": "1.5%"}}, "spec.swap.reserved", "percents from 0% to 100%"),
    ({"swap": {"reserved": -5}}, "spec.swap.reserved", QUANTITY),
    ({"swap": {"reserved": "512MB"}}, "spec.swap.reserved", "such as 512Mi or 2G"),
    ({"swap": {"reserved": "10 %"}}, "spec.swap.reserved", "percents from 0% to 100%"),
    ({"swap": {"reserved": ""}}, "spec.swap.reserved", QUANTITY),
    ({"swap": workload(overcommitPercent=0)}, "spec.swap.workloadControlled.overcommitPercent", "than or equal to 1"),
    ({"swap": workload(overcommitPercent=10_001)}, "spec.swap.workloadControlled.overcommitPercent", "equal to 10000"),
    ({"swap": workload(overcommitPercent="150%")}, "spec.swap.workloadControlled.overcommitPercent", "integer"),
    (
        {"swap": {"workloadControlled": {"overcommitPercent": 150}}},
        "spec.swap",
        "set the behavior or remove the bounds",
    ),
    ({"kernel": {"swappiness": 201}}, "spec.kernel.swappiness", "less than or equal to 200"),
    ({"kernel": {"minFreeKbytes": 1023}}, "spec.kernel.minFreeKbytes", "greater than or equal to 1024"),
    ({"kernel": {"watermarkScaleFactor": 0}}, "spec.kernel.watermarkScaleFactor", "greater than or equal to 1"),
    ({"kernel": {"pageCluster": 9}}, "spec.kernel.pageCluster", "less than or equal to 8"),
    ({"kernel": {"overcommitMemory": 2}}, "spec.kernel.overcommitMemory", "unknown field"),
    ({"kernel": {"zswap": {"compressor": "bzip2"}}}, "spec.kernel.zswap.compressor", f'{SUPPORTED}"lzo"'),
    ({"kernel": {"zswap": {"maxPoolPercent": 51}}}, "spec.kernel.zswap.maxPoolPercent", "less than or equal to 50"),
    (unit(swap={"policy": "Limited"}), "spec.systemUnits[0].swap.policy", f'{SUPPORTED}"Disabled"'),
    (unit(io={"weight": 10001}), "spec.systemUnits[0].io.weight", "less than or equal to 10000"),
    (
        unit(io={"latencyTargetMilliseconds": 10001}),
        "spec.systemUnits[0].io.latencyTargetMilliseconds",
        "less than or equal to 10000",
    ),
    ({"systemUnits": [{"name": "a.slice"}]}, "spec.systemUnits[0]", "a unit needs swap or io"),
    (unit(io={}), "spec.systemUnits[0].io", "io needs a latencyTargetMilliseconds or a weight"),
    (unit("-.slice"), "spec.systemUnits[0].name", "must be the name of a systemd slice or service"),
    (unit("a/b.slice"), "spec.systemUnits[0].name", "without a path"),
    (unit("kubepods-burstable.slice"), "spec.systemUnits[0].name", "must not be a slice of pods"),
    (unit("../x.service"), "spec.systemUnits[0].name", "must be the name of a systemd slice or service"),
    (
        {"systemUnits": [unit(f"n{number}.slice")["systemUnits"][0] for number in range(33)]},
        "spec.systemUnits",
        "at most 32 items",
    ),
    ({"scheduling": {"taintEffect": "NoExecute"}}, "spec.scheduling.taintEffect", f'{SUPPORTED}"NoSchedule"'),
    ({"scheduling": {"taint": "NoSchedule"}}, "spec.scheduling.taint", "unknown field"),
    ({"swap": workload(maxPerPod="10%")}, "spec.swap.workloadControlled.maxPerPod", QUANTITY),
    ({"swap": workload(maxPerContainer="-1Gi")}, "spec.swap.workloadControlled.maxPerContainer", QUANTITY),
    ({"swap": {"workloadControlled": {"maxPerPod": "1Gi"}}}, "spec.swap", "set the behavior or remove the bounds"),
    (
        {"scheduling": {"extendedResource": "Enabled"}},
        "spec",
        "extendedResource needs swap.behavior WorkloadControlled",
    ),
    ({"scheduling": {"extendedResource": True}}, "spec.scheduling.extendedResource", ("string", "supported")),
    ({"swap": {"requirements": []}}, "spec.swap.requirements", "at least 1 item"),
    ({"swap": {"requirements": ["encrypted"]}}, "spec.swap.requirements[0]", f'{SUPPORTED}"Encrypted", "Tmpfs'),
    ({"swap": {"requirements": ["Encrypted"] * 2}}, "spec.swap.requirements", "Duplicate value"),
    ({"swap": {"requirements": "Encrypted"}}, "spec.swap.requirements", "array"),
    ({"swap": {"require": {"encrypted": True}}}, "spec.swap.require", "unknown field"),
    ({"swap": {"allowedBacking": []}}, "spec.swap.allowedBacking", "at least 1 item"),
    ({"swap": {"allowedBacking": ["HDD"] * 2}}, "spec.swap.allowedBacking", "Duplicate value"),
    *(
        ({"swap": {"allowedBacking": [kind]}}, "spec.swap.allowedBacking[0]", f'{SUPPORTED}"NVMe", "SSD", "HDD"')
        for kind in ("Unknown", "Mixed", "nvme", "Tape")
    ),
    ({"nodeSelector": expression(values=[])}, "spec.nodeSelector.matchExpressions[0]", "In and NotIn need values"),
    (
        {"nodeSelector": expression(operator="Exists")},
        "spec.nodeSelector.matchExpressions[0]",
        "Exists and DoesNotExist take none",
    ),
    (
        {"nodeSelector": expression(operator="Equals")},
        "spec.nodeSelector.matchExpressions[0].operator",
        f'{SUPPORTED}"In", "NotIn", "Exists", "DoesNotExist"',
    ),
    ({"nodeSelector": expression(key="po ol")}, "spec.nodeSelector.matchExpressions[0].key", LABEL_KEY),
    ({"nodeSelector": expression(key="x" * 64)}, "spec.nodeSelector.matchExpressions[0].key", LABEL_KEY),
    ({"nodeSelector": expression(key="Example.com/pool")}, "spec.nodeSelector.matchExpressions[0].key", LABEL_KEY),
    ({"nodeSelector": expression(values=["a b"])}, "spec.nodeSelector.matchExpressions[0].values[0]", "should match"),
    ({"nodeSelector": {"matchLabels": {"po ol": "x"}}}, "spec.nodeSelector.matchLabels", LABEL_KEY),
    ({"nodeSelector": {"matchLabels": {"/pool": "x"}}}, "spec.nodeSelector.matchLabels", LABEL_KEY),
    ({"nodeSelector": {"matchLabels": {"pool": "a b"}}}, "spec.nodeSelector.matchLabels", "the value of a label"),
    ({"nodeSelector": {"matchLabels": {"pool": "x" * 64}}}, "spec.nodeSelector.matchLabels", (TOO_LONG, LABEL)),
    ({"nodeSelector": {"matchlabels": {"pool": "x"}}}, "spec.nodeSelector.matchlabels", "unknown field"),
    ({"nodeSelector": {"matchLabels": ONE_MORE_LABEL}}, "spec.nodeSelector.matchLabels", "at most 64 items"),
    (disabling(), "spec.overrides[0]", "needs a namespaceSelector or a podSelector"),
    (override(), "spec.overrides[0].swap", "needs a policy or a limit: without both it changes nothing"),
    (override(policy="Disabled", limit="0.5Gi"), "spec.overrides[0].swap", "remove the limit, or the policy"),
    (override(policy="Disabled", limit=0), "spec.overrides[0].swap", "remove the limit, or the policy"),
    (override(policy="Required"), "spec.overrides[0].swap.policy", f'{SUPPORTED}"Disabled", "NoPreference"'),
    (override(limit="10%"), "spec.overrides[0].swap.limit", ("should match", QUANTITY)),
    (override(limit=-1), "spec.overrides[0].swap.limit", ("greater than or equal to 0", QUANTITY)),
    (disabling(podSelector={}, nodeSelector={}), "spec.overrides[0].nodeSelector", "unknown field"),
    ({"overrides": [{"podSelector": {}, "policy": "Disabled"}]}, "spec.overrides[0].policy", "unknown field"),
    ({"overrides": [{"podSelector": {}, "swap": {"limit": "1Gi"}}]}, "spec.overrides[0].name", "Required value"),
    (
        {"overrides": [{"name": "one", "podSelector": {}}]},
        "spec.overrides[0]",
        "an override needs swap, memory or reclaim",
    ),
    (of_memory(), "spec.overrides[0].memory", "memory needs a reservation or a throttling"),
    (of_memory(reservation="TieredReservation"), "spec.overrides[0].memory.reservation", f'{SUPPORTED}"None", "Soft"'),
    *(
        (of_memory(throttling=text), "spec.overrides[0].memory.throttling", "should match")
        for text in ("", "0%", "100%", "90", "9.5%", "-5%", "disabled", "90%\n", "\u0669%", "Disabled%")
    ),
    (of_memory(throttling=90), "spec.overrides[0].memory.throttling", "string"),
    (of_memory(throttling="9" * 17), "spec.overrides[0].memory.throttling", (TOO_LONG, "at most 16")),
    (memory(reservationPolicy="soft"), "spec.memoryQoS.reservationPolicy", f'{SUPPORTED}"None", "Soft", "Tiered'),
    (memory(withoutSwap="Never"), "spec.memoryQoS.withoutSwap", f'{SUPPORTED}"Skip", "Bounded"'),
    (memory(reservationPercent=0), "spec.memoryQoS.reservationPercent", "greater than or equal to 1"),
    (memory(reservationPercent=101), "spec.memoryQoS.reservationPercent", "less than or equal to 100"),
    (memory(throttlingPercent=0), "spec.memoryQoS.throttlingPercent", "greater than or equal to 1"),
    (memory(throttlingPercent=100), "spec.memoryQoS.throttlingPercent", "less than or equal to 99"),
    (memory(throttlingPercent="90%"), "spec.memoryQoS.throttlingPercent", "integer"),
    (memory(maxStallSeconds=0), "spec.memoryQoS.maxStallSeconds", "greater than or equal to 1"),
    (memory(maxStallSeconds=3601), "spec.memoryQoS.maxStallSeconds", "less than or equal to 3600"),
    (memory(maxStall="30s"), "spec.memoryQoS.maxStall", "unknown field"),
    (memory(guard={"action": "Kill"}), "spec.memoryQoS.guard.action", f'{SUPPORTED}"Release", "Report"'),
    (memory(guard={"kubelet": "Step"}), "spec.memoryQoS.guard.kubelet", f'{SUPPORTED}"Release", "Report", "Off"'),
    (memory(guard={"windowSeconds": 3}), "spec.memoryQoS.guard.windowSeconds", "greater than or equal to 4"),
    (memory(guard={"windowSeconds": 601}), "spec.memoryQoS.guard.windowSeconds", "less than or equal to 600"),
    (memory(guard={"holdSeconds": 29}), "spec.memoryQoS.guard.holdSeconds", "greater than or equal to 30"),
    (memory(guard={"holdSeconds": 3601}), "spec.memoryQoS.guard.holdSeconds", "less than or equal to 3600"),
    *(
        (memory(reservationPolicy="Soft", systemLow=text), "spec.memoryQoS.systemLow", "percents from 0% to 100%")
        for text in ("101%", "1GB", "", -1)
    ),
    (
        {"overrides": of_memory(reservation="None")["overrides"]},
        "spec",
        "overrides[].memory has no effect without memoryQoS",
    ),
    ({"memoryQos": {}}, "spec.memoryQos", "unknown field"),
    (reclaim(mode="On"), "spec.reclaim.mode", f'{SUPPORTED}"Off", "Startup", "Continuous"'),
    (reclaim(maxStallPermille=0), "spec.reclaim.maxStallPermille", "greater than or equal to 1"),
    (reclaim(maxStallPermille=101), "spec.reclaim.maxStallPermille", "less than or equal to 100"),
    (reclaim(intervalSeconds=1), "spec.reclaim.intervalSeconds", "greater than or equal to 2"),
    (reclaim(intervalSeconds=601), "spec.reclaim.intervalSeconds", "less than or equal to 600"),
    (reclaim(stepPercent=0), "spec.reclaim.stepPercent", "greater than or equal to 1"),
    (reclaim(stepPercent=11), "spec.reclaim.stepPercent", "less than or equal to 10"),
    (reclaim(keepSwapFree="101%"), "spec.reclaim.keepSwapFree", "percents from 0% to 100%"),
    (reclaim(writesPerDay="10%"), "spec.reclaim.writesPerDay", QUANTITY),
    (of_reclaim("On", mode="Startup"), "spec.overrides[0].reclaim.mode", f'{SUPPORTED}"Off", "Startup", "Continuous"'),
    *(
        (of_reclaim("Startup", **fields), "spec", "overrides[].reclaim has no effect with reclaim.mode Off")
        for fields in ({}, {"stepPercent": 2}, {"mode": "Off"})
    ),
    ({"overrides": of_reclaim("Off")["overrides"]}, "spec", "overrides[].reclaim has no effect with reclaim.mode Off"),
    ({"pressure": {"mode": "Audit"}}, "spec.pressure.mode", f'{SUPPORTED}"Off", "Observe", "Enforce"'),
    *(
        (eviction(**{kind: wrong}), f"spec.pressure.eviction.{kind}", f'{SUPPORTED}"Spare", "Evict"')
        for kind in ("daemonSets", "unmanaged")
        for wrong in ("spare", "")
    ),
    (eviction(pods="All"), "spec.pressure.eviction.pods", "unknown field"),
    *(
        (eviction(**{name: wrong}), f"spec.pressure.eviction.{name}", text)
        for name, most in (("maxGracePeriodSeconds", 3600), ("settleSeconds", 600), ("perNodePerHour", 60))
        for wrong, text in (
            (0, "greater than or equal to 1"),
            (most + 1, f"less than or equal to {most}"),
            ("5", "integer"),
        )
    ),
    *(
        (eviction(excludeNamespaces=[name]), "spec.pressure.eviction.excludeNamespaces[0]", "should match")
        for name in ("", "A", "-a", "a.b", "a\n")
    ),
    (eviction(excludeNamespaces=["a" * 64]), "spec.pressure.eviction.excludeNamespaces[0]", (TOO_LONG, "at most 63")),
    (eviction(excludeNamespaces=["a", "a"]), "spec.pressure.eviction.excludeNamespaces", "Duplicate value"),
    (headroom(forSeconds=0), "spec.pressure.headroom.forSeconds", "greater than or equal to 1"),
    (headroom(forSeconds=601), "spec.pressure.headroom.forSeconds", "less than or equal to 600"),
    (headroom(forSeconds="5s"), "spec.pressure.headroom.forSeconds", "integer"),
    (stall(overSeconds=1), "spec.pressure.stall.overSeconds", "greater than or equal to 2"),
    (stall(overSeconds=601), "spec.pressure.stall.overSeconds", "less than or equal to 600"),
    (stall(fullPercent=0), "spec.pressure.stall.fullPercent", "greater than or equal to 1"),
    (stall(fullPercent=101), "spec.pressure.stall.fullPercent", "less than or equal to 100"),
    *(
        (headroom(below=text), "spec.pressure.headroom.below", "percents from 0% to 100%")
        for text in ("101%", "1GB", "", -1)
    ),
    *(
        (headroom(**fields), "spec.pressure.headroom", "below must be less than clear")
        for fields in (
            {"below": "10%"},
            {"below": "11%"},
            {"clear": "5%"},
            {"clear": "0%"},
            {"below": "512Mi"},
            {"clear": "2Gi"},
            {"below": 100},
            {"below": "1Gi", "clear": "1024Mi"},
            {"below": "2G", "clear": "1.5Gi"},
            {"below": "1e+999", "clear": "9" * 64},
            {"below": "9" * 62 + "Ki", "clear": "8Ei"},
            {"below": 2, "clear": 1},
            {"below": "2", "clear": 2},
        )
    ),
    *(
        (disabling(podSelector={}, name=name), "spec.overrides[0].name", "should match")
        for name in ("", "One", "-a", "a-", "a.b", "a\n")
    ),
    (disabling(podSelector={}, name="a" * 64), "spec.overrides[0].name", (TOO_LONG, "at most 63")),
    ({"overrides": disabling(podSelector={})["overrides"] * 2}, "spec.overrides", "Duplicate value"),
    ({"rollout": {"paused": "yes"}}, "spec.rollout.paused", "boolean"),
    (
        disabling(namespaceSelector={"matchLabels": {"a b": "x"}}),
        "spec.overrides[0].namespaceSelector.matchLabels",
        "must be that of a label",
    ),
    (
        disabling(podSelector=expression(values=[])),
        "spec.overrides[0].podSelector.matchExpressions[0]",
        "In and NotIn need values",
    ),
    (
        {"overrides": [disabling(podSelector={}, name=f"n{n}")["overrides"][0] for n in range(33)]},
        "spec.overrides",
        "at most 32 items",
    ),
    *(
        ({"swap": {"reserved": text}}, "spec.swap.reserved", "percents from 0% to 100%")
        for text in ("-1Gi", "lots", *(text for text, is_one in QUANTITIES.items() if not is_one and len(text) <= 64))
    ),
    ({"swap": {"reserved": "1" * 65}}, "spec.swap.reserved", (TOO_LONG, QUANTITY)),
    ({"swap": workload(maxPerPod="1GB")}, "spec.swap.workloadControlled.maxPerPod", QUANTITY),
    ({"swap": workload(maxPerPod=-1)}, "spec.swap.workloadControlled.maxPerPod", QUANTITY),
    (
        {"scheduling": {"extendedResource": "Enabled"}, "swap": {"behavior": "LimitedSwap"}},
        "spec",
        "extendedResource needs swap.behavior WorkloadControlled",
    ),
    *(
        ({"nodeSelector": {"matchLabels": {key: "x"}}}, "spec.nodeSelector.matchLabels", LABEL_KEY)
        for key in ("", "Example.com/pool", "a/b/c", "-a", "a-", "pool\n", "a" * 318)
    ),
    *(
        ({"nodeSelector": expression(key=key)}, "spec.nodeSelector.matchExpressions[0].key", LABEL_KEY)
        for key in ("", "/pool", "a/b/c", "-a", "a-", "pool\n")
    ),
    (
        {"nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "In"}]}},
        "spec.nodeSelector.matchExpressions[0]",
        "In and NotIn need values",
    ),
    (
        {"nodeSelector": expression(operator="NotIn", values=[])},
        "spec.nodeSelector.matchExpressions[0]",
        "In and NotIn need values",
    ),
    ({"swapp": {}}, "spec.swapp", "unknown field"),
    *(
        (override(policy="Disabled", limit=limit), "spec.overrides[0].swap", "remove the limit, or the policy")
        for limit in (1, "1Gi", "1e-2", "10")
    ),
    (unit(io={"weight": 0}), "spec.systemUnits[0].io.weight", "greater than or equal to 1"),
    (
        unit(io={"latencyTargetMilliseconds": 0}),
        "spec.systemUnits[0].io.latencyTargetMilliseconds",
        "greater than or equal to 1",
    ),
    *(
        (unit(name), "spec.systemUnits[0].name", "must be the name of a systemd slice or service")
        for name in (
            "../a.slice",
            "a--b.slice",
            "system",
            "a.slice\n",
            "a/b.service",
            ".service",
            "..service",
            "a b.service",
        )
    ),
    (unit("a" * 128 + ".slice"), "spec.systemUnits[0].name", (TOO_LONG, "must be the name of a systemd slice")),
    ({"rollout": {"maxUnavailable": 0}}, "spec.rollout.maxUnavailable", "must be a number of nodes from 1"),
    *(
        ({"rollout": {"maxUnavailable": text}}, "spec.rollout.maxUnavailable", "percents of them from 1% to 100%")
        for text in ("0", "0%", "101%", "1.5", "1Gi", "-1", "")
    ),
    ({"rollout": {"onSwapInUse": "hold"}}, "spec.rollout.onSwapInUse", f'{SUPPORTED}"Proceed", "Hold"'),
    *(
        ({"swap": workload(maxPerPod=text)}, "spec.swap.workloadControlled.maxPerPod", QUANTITY)
        for text, is_one in QUANTITIES.items()
        if not is_one and len(text) <= 64
    ),
    *(
        (override(limit=text), "spec.overrides[0].swap.limit", ("should match", QUANTITY))
        for text, is_one in QUANTITIES.items()
        if not is_one and len(text) <= 64
    ),
]
"""A part of a spec, the field that is refused, and why: two reasons where the API server words it in its own way."""


ACCEPTED: list[dict[str, Any]] = [
    memory(),
    memory(
        reservationPolicy="TieredReservation",
        reservationPercent=1,
        throttlingPercent=99,
        withoutSwap="Bounded",
        maxStallSeconds=3600,
        guard={"action": "Report", "windowSeconds": 4, "holdSeconds": 30, "kubelet": "Off"},
        systemLow="512Mi",
    ),
    memory(reservationPolicy="Soft", systemLow=1073741824),
    memory(reservationPolicy="None", systemLow="5%"),
    {"pressure": {}},
    *({"pressure": {"mode": mode}} for mode in ("Off", "Observe", "Enforce")),
    {**eviction(), "mode": "Audit"},
    eviction(excludeNamespaces=[]),
    eviction(daemonSets="Spare", unmanaged="Spare"),
    eviction(daemonSets="Evict", unmanaged="Evict"),
    eviction(excludeNamespaces=["a", "b"], maxGracePeriodSeconds=3600, settleSeconds=600, perNodePerHour=60),
    *(
        headroom(**fields)
        for fields in (
            {},
            {"below": "9%"},
            {"clear": "6%"},
            {"below": "99%", "clear": "100%", "forSeconds": 600},
            {"below": "0%", "clear": "1%", "forSeconds": 1},
            {"below": "512Mi", "clear": "1Gi"},
            {"below": "1.5Gi", "clear": "2G"},
            {"below": 1, "clear": 2},
            {"below": "1", "clear": 2},
            {"below": "100n", "clear": "200n"},
            {"below": "9" * 62 + "Ki", "clear": "1e99"},
        )
    ),
    *(headroom(below=text, clear="1e+999") for text, is_one in QUANTITIES.items() if is_one and text != "1e+999"),
    stall(fullPercent=1, overSeconds=2),
    stall(fullPercent=100, overSeconds=600),
    reclaim(),
    reclaim(mode="Off", keepSwapFree="0", writesPerDay=0),
    reclaim(
        mode="Startup", maxStallPermille=100, intervalSeconds=2, stepPercent=10, keepSwapFree="1Gi", writesPerDay="20Gi"
    ),
    *(of_reclaim(asked, mode="Continuous") for asked in ("Off", "Startup", "Continuous")),
    of_memory(reservation="None"),
    of_memory(reservation="Soft", throttling="Disabled"),
    *(of_memory(throttling=text) for text in ("1%", "9%", "50%", "99%")),
    {
        **memory(),
        "overrides": [
            {"name": "one", "podSelector": {}, "swap": {"policy": "Disabled"}, "memory": {"reservation": "None"}}
        ],
    },
    {"guarantee": "Strict"},
    {"priority": -5, "mode": "Audit", "swap": {"beforePlan": "Unmanaged", "behavior": "NoSwap", "reserved": "10%"}},
    {"swap": {"behavior": "LimitedSwap", "reserved": 1073741824}},
    {"swap": workload(maxPerContainer="1.5Gi", maxPerPod="4e9")},
    {"swap": workload(overcommitPercent=150), "scheduling": {"extendedResource": "Enabled"}},
    {"swap": {"requirements": ["Encrypted", "TmpfsNoSwap", "DedicatedDevice"], "allowedBacking": ["NVMe"]}},
    {"swap": {"allowedBacking": ["NVMe", "SSD", "HDD", "Virtual", "Network", "Zram", "File"]}},
    {"nodeSelector": {"matchLabels": {"example.com/pool": "batch", "zone": ""}, **expression(operator="NotIn")}},
    {"nodeSelector": expression(operator="DoesNotExist", values=[])},
    *(override(limit=zero) for zero in (0, "0", "0Gi", "0k")),
    override(policy="Disabled"),
    {"rollout": {"paused": True}},
    override(policy="NoPreference", limit="1.5Gi"),
    {
        "systemUnits": [
            {"name": name, "swap": {"policy": "Disabled"}}
            for name in ("system.slice", "a-b.slice", r"a-b\x2dc.slice", "kubelet.service", "x@1.service")
        ]
    },
    unit(swap={"policy": "Disabled"}, io={"latencyTargetMilliseconds": 25, "weight": 800}),
    *(unit(io={"latencyTargetMilliseconds": target}) for target in (1, 10_000)),
    unit("a.service", io={"weight": 10000}),
    {"kernel": {"swappiness": 0, "minFreeKbytes": 1024, "watermarkScaleFactor": 1000, "pageCluster": 0}},
    {"kernel": {"zswap": {"enabled": False, "compressor": "842", "maxPoolPercent": 50}}},
    {
        "overrides": [
            disabling(podSelector=expression(), namespaceSelector=expression(), name=f"n{n}")["overrides"][0]
            for n in range(32)
        ]
    },
    *({"swap": {"reserved": text}} for text in ("0", "1Gi", "1.5G", "0%", "100%", "1e9", "512Mi", 1024, ".5", "1.")),
    *({"swap": {"requirements": [one]}} for one in ("Encrypted", "TmpfsNoSwap", "DedicatedDevice")),
    {"swap": {"behavior": "LimitedSwap"}, "scheduling": {"extendedResource": "Disabled"}},
    *(
        {"nodeSelector": {"matchLabels": {key: "x"}, "matchExpressions": [{"key": key, "operator": "Exists"}]}}
        for key in ("pool", "example.com/pool", "a", "a/B_c.d", "x" * 63)
    ),
    disabling(namespaceSelector={"matchLabels": {"team": "a"}}),
    *({"rollout": {"maxUnavailable": text}} for text in (1, "1", "999999", "1%", "100%")),
    *({"swap": {"reserved": text}} for text, is_one in QUANTITIES.items() if is_one),
    *({"swap": workload(maxPerPod=text)} for text, is_one in QUANTITIES.items() if is_one),
    *(override(limit=text) for text, is_one in QUANTITIES.items() if is_one),
]
