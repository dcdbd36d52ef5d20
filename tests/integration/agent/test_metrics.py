"""An agent publishes the numbers of its node's files, in a form that Prometheus takes, at a small price."""

from __future__ import annotations

import pathlib

from tests.integration import scrapes
from tests.integration.agent.agent_process import AgentProcess, Start, pods, until
from tests.integration.agent.fake_api import FakeApi
from tests.unit.agent.cgroup_tree import PAGE, CgroupTree, container_id, uid

MIB = 1 << 20
TOP = 3


def events(pod: pathlib.Path, count: int) -> None:
    (pod / "memory.swap.events").write_text(f"high 0\nmax {count}\nfail {count}\n")
    (pod / "memory.events").write_text(f"low 0\nhigh 0\nmax {count}\noom 0\noom_kill 0\n")


def node_files(tree: CgroupTree, swapped: int) -> None:
    """Write files with the numbers that a node's kernel has counted by now."""
    free = f"MemAvailable: 3145728 kB\nSwapTotal: 1048576 kB\nSwapFree: {1048576 - swapped} kB\n"
    (tree.proc / "meminfo").write_text(f"MemTotal: 4194304 kB\n{free}")
    vmstat = f"pswpin {swapped}\npswpout {swapped}\nworkingset_refault_anon {swapped}\nworkingset_refault_file 1\n"
    (tree.proc / "vmstat").write_text(vmstat)
    (tree.proc / "pressure").mkdir(exist_ok=True)
    for resource in ("memory", "io"):
        (tree.proc / "pressure" / resource).write_text(f"some avg10=0.00 total={swapped}\nfull avg10=0.00 total=0\n")


def scrape(agent: AgentProcess) -> scrapes.Series:
    status, text = agent.get("/metrics")
    assert status == 200
    return scrapes.check(text, "agent")


def test_prometheus_takes_it_while_pods_come_and_go(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    node_files(tree, 1024)
    api.put(pods({number: str(number * MIB) for number in range(1, 6)}, kubepods={"swapMax": str(768 * MIB)}))
    agent = start("--metrics-top-pods", str(TOP)).wait_ready()
    made = {number: tree.pod(number) for number in range(1, 5)}
    for number, pod in made.items():
        (pod / "memory.swap.current").write_text(f"{number * PAGE}\n")
        events(pod, 10 * number)
        tree.container(pod, "app")
    events(tree.kubepods, 100)
    until(lambda: agent.metric("swapwarden_agent_pod_enforced_seconds_count") == len(made), "all limits")
    until(lambda: agent.metric("swapwarden_node_swap_unassigned_bytes") == (768 - 10) * MIB, "limits in a scrape")
    first = scrape(agent)
    used = {(uid(number),): number * PAGE for number in (2, 3, 4)}
    assert scrapes.values(first, "swapwarden_pod_swap_usage_bytes") == {**used, ("other",): PAGE}
    assert scrapes.values(first, "swapwarden_container_swap_limit_bytes")[container_id("app"), uid(3)] == 3 * MIB
    assert scrapes.values(first, "swapwarden_node_swap_usage_bytes") == {(): MIB}
    assert scrapes.values(first, "swapwarden_node_swap_reserved_bytes") == {(): 256 * MIB}
    assert scrapes.values(first, "swapwarden_node_swap_in_bytes_total") == {(): 1024 * PAGE}

    # The largest user is removed, another appears, and a third one falls out of the list.
    tree.remove(made[4])
    late = tree.pod(5)
    (late / "memory.swap.current").write_text(f"{9 * PAGE}\n")
    (made[2] / "memory.swap.current").write_text("0\n")
    events(made[3], 31)
    events(late, 1)
    events(tree.kubepods, 131)
    node_files(tree, 2048)
    until(lambda: agent.metric(f'swapwarden_pod_swap_limit_bytes{{pod_uid="{uid(5)}"}}') == 5 * MIB, "the new pod")
    second = scrape(agent)
    listed = {(uid(5),): 9 * PAGE, (uid(3),): 3 * PAGE, (uid(1),): PAGE}
    assert scrapes.values(second, "swapwarden_pod_swap_usage_bytes") == {**listed, ("other",): 0}
    assert scrapes.growing(first, second) > 0
    assert scrapes.values(second, "swapwarden_pods_swap_events_total")["max",] == 131
    assert not [labels for _, labels in second if dict(labels).get("pod_uid") == uid(4)]


def test_a_kernel_with_fewer_counters_has_fewer_metrics(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    api.put(pods({}))
    agent = start().wait_ready()
    tree.pod(1)
    until(lambda: agent.metric("swapwarden_agent_pods") == 1, "the pod")
    series = scrape(agent)
    names = {name for name, _ in series}
    assert "swapwarden_node_swap_total_bytes" in names
    assert not names & {"swapwarden_node_swap_in_bytes_total", "swapwarden_node_pressure_stalled_seconds_total"}
    assert not names & {"swapwarden_pod_swap_events_total", "swapwarden_slice_swap_usage_bytes"}


def test_an_agent_that_stands_by_leaves_the_node_to_the_other(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    tree.pod(1)
    api.put(pods({1: "max"}))
    start().wait_ready()
    second = start().wait_ready()
    assert "swapwarden_pod_swap_usage_bytes" not in {name for name, _ in scrape(second)}


def test_250_pods_are_read_between_other_work(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    """The agent answers other requests meanwhile, reads some files of each pod, and takes no more memory."""
    api.put(pods(dict.fromkeys(range(250), "0")))
    for number in range(250):
        for name in ("app", "sidecar"):
            tree.container(tree.pod(number) if name == "app" else tree.pod_path(number), f"{name}-{number}")
    agent = start().wait_ready()
    until(lambda: agent.metric("swapwarden_agent_pods") == 250, "all pods")
    before = agent.rss
    for _ in range(20):
        series = scrape(agent)
    assert len(scrapes.values(series, "swapwarden_pod_swap_usage_bytes")) == 51
    assert len(scrapes.values(series, "swapwarden_container_swap_usage_bytes")) == 100
    assert agent.rss - before < 2 * MIB
