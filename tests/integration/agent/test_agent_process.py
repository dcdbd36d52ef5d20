"""The agent as a process: its state's coming and going, its restarts, and what it reports."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest
from swapwarden.agent.ledger import ledger
from swapwarden.api import state

from tests.integration.agent.agent_process import AgentProcess, Start, applied, pods, until
from tests.integration.agent.fake_api import FakeApi
from tests.unit.agent.cgroup_tree import CgroupTree, container_id, swap_max, uid, write

MIB = 1 << 20


def holds(path: pathlib.Path, value: str) -> None:
    until(lambda: swap_max(path) == value, f"{path.name} holds {value} (holds {swap_max(path)})")


def test_a_state_before_its_cgroup_and_a_cgroup_before_its_state(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    api.put(pods({1: "0"}))
    start().wait_ready()
    first = tree.pod(1)
    holds(first, "0")
    second = tree.pod(2)
    holds(second, "0")
    generation = api.put(pods({1: "0", 2: "max"}))
    holds(second, "max")
    applied(api, generation)
    status = api.status
    assert status["facts"]["swapBytes"] == 1 << 30
    assert status.get("violations", []) == []


def test_the_status_follows_with_few_writes(api: FakeApi, start: Start) -> None:
    api.put(pods({}))
    start().wait_ready()
    until(lambda: api.condition("Applied")[0] == "True")
    before = len(api.patches)
    begun = time.monotonic()
    for number in range(40):
        generation = api.put(pods(dict.fromkeys(range(number + 1), "max")))
    applied(api, generation)
    elapsed = time.monotonic() - begun
    assert len(api.patches) - before <= elapsed + 2
    assert all("facts" not in patch["status"] for patch in api.patches[before:])


@pytest.mark.parametrize("how", ["delete", "404", "403", "500", "stop"])
def test_losing_the_state_lets_nothing_go(tree: CgroupTree, api: FakeApi, start: Start, how: str) -> None:
    pod = tree.pod(1)
    api.put(pods({1: str(MIB)}, kubepods={"swapMax": str(64 * MIB)}))
    agent = start().wait_ready()
    holds(pod, str(MIB))
    until(lambda: api.watching == 1)
    if how == "delete":
        api.delete()
    elif how == "stop":
        api.stop()
    else:
        api.failing = int(how)
        api.cut()
    if how != "delete":
        until(lambda: agent.metric('swapwarden_agent_api_errors_total{request="state"}') >= 1)
    for other in ("max", "4096"):
        write(pod, other)
        holds(pod, str(MIB))
    assert swap_max(tree.kubepods) == str(64 * MIB)
    if how == "stop":
        api.start()
    api.failing = None
    generation = api.put(pods({1: str(2 * MIB)}))
    holds(pod, str(2 * MIB))
    applied(api, generation)


def test_a_recreated_state_is_trusted_whatever_its_generation(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    pod = tree.pod(1)
    api.put(pods({1: str(MIB)}), generation=50)
    start().wait_ready()
    holds(pod, str(MIB))
    api.delete()
    api.put(pods({1: str(2 * MIB)}))
    holds(pod, str(2 * MIB))
    applied(api, 1)


def test_an_older_generation_within_a_watch_is_ignored(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    pod = tree.pod(1)
    api.put(pods({1: str(MIB)}), generation=50)
    agent = start().wait_ready()
    holds(pod, str(MIB))
    until(lambda: api.watching == 1)
    api.put(pods({1: "max"}), generation=49)
    api.put(pods({1: str(MIB), 2: "0"}), generation=51)
    until(lambda: agent.metric("swapwarden_agent_state_generation") == 51)
    assert swap_max(pod) == str(MIB)
    assert agent.metric('swapwarden_agent_writes_total{kind="pod",result="ok"}') == 1


def test_a_state_that_nobody_touched_for_long_is_followed(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    """Its own version is too old to watch from."""
    pod = tree.pod(1)
    api.put(pods({1: str(MIB)}))
    api.bookmark()
    start().wait_ready()
    until(lambda: api.watching == 1)
    api.put(pods({1: str(2 * MIB)}))
    holds(pod, str(2 * MIB))
    assert api.lists == 1


def test_a_bookmark_is_no_state(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    """But the version to go on from."""
    pod = tree.pod(1)
    api.put(pods({1: str(MIB)}))
    agent = start().wait_ready()
    until(lambda: api.watching == 1)
    api.bookmark()
    api.cut()
    until(lambda: agent.metric('swapwarden_api_requests_total{method="WATCH",code="200"}') == 2)
    until(lambda: api.watching == 1)
    assert swap_max(pod) == str(MIB)
    assert agent.metric('swapwarden_agent_writes_total{kind="pod",result="ok"}') == 1
    assert api.lists == 1


def test_an_expired_watch_is_followed_by_a_fresh_list(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    pod = tree.pod(1)
    api.put(pods({1: str(MIB)}))
    start().wait_ready()
    until(lambda: api.watching == 1)
    api.expire()
    until(lambda: api.lists >= 2)
    api.put(pods({1: str(2 * MIB)}))
    holds(pod, str(2 * MIB))


def test_a_state_that_cannot_be_understood_changes_nothing(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    pod = tree.pod(1)
    api.put(pods({1: str(MIB)}))
    agent = start().wait_ready()
    holds(pod, str(MIB))
    before = api.put(pods({1: "1G"})) - 1
    until(lambda: api.condition("Degraded") == ("True", "StateRefused"))
    assert swap_max(pod) == str(MIB)
    assert agent.metric("swapwarden_agent_state_generation") == before
    generation = api.put(pods({1: "0"}))
    applied(api, generation)
    assert agent.metric("swapwarden_agent_state_generation") == generation
    until(lambda: api.condition("Degraded")[0] == "False")


def test_a_recreated_state_that_cannot_be_read_is_reported(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    pod = tree.pod(1)
    api.put(pods({1: str(MIB)}))
    start().wait_ready()
    holds(pod, str(MIB))
    applied(api, 1)
    api.delete()
    api.put({**pods({1: "0"}), "mode": "FromTheFuture"})
    until(lambda: api.condition("Degraded") == ("True", "StateRefused"))
    assert swap_max(pod) == str(MIB)
    applied(api, api.put(pods({1: "0"})))
    assert swap_max(pod) == "0"


@pytest.mark.parametrize("api_up", [True, False])
def test_killed_and_restarted(tree: CgroupTree, api: FakeApi, start: Start, *, api_up: bool) -> None:
    known, left_alone = tree.pod(1), tree.pod(2)
    api.put(pods({1: str(MIB)}))
    first = start().wait_ready()
    holds(known, str(MIB))
    until((first.state_dir / "state.json").exists)
    first.kill()
    write(known, "max")
    unknown = tree.pod(3)
    if not api_up:
        api.stop()
    start().wait_ready()
    holds(known, str(MIB))
    holds(unknown, "0")
    assert swap_max(left_alone) == "max"
    write(known, "max")
    holds(known, str(MIB))
    if not api_up:
        api.start()
    applied(api, api.put(pods({1: "0", 2: str(MIB), 3: "max"})))
    assert [swap_max(pod) for pod in (known, left_alone, unknown)] == ["0", str(MIB), "max"]


def test_killed_before_the_disk_has_the_newest_state(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    """The state on the disk is older, and gives the pod swap. A full disk stands for a slow one."""
    pod = tree.pod(1)
    api.put(pods({1: str(512 * MIB)}))
    first = start().wait_ready()
    until((first.state_dir / "state.json").exists)
    (first.state_dir / "state.json.new").symlink_to("/dev/full")
    generation = api.put(pods({1: "0"}))
    holds(pod, "0")
    until(lambda: first.metric("swapwarden_agent_cache_failures_total") >= 1)
    first.kill()
    assert json.loads((first.state_dir / "state.json").read_bytes().partition(b"\n")[2])["generation"] < generation
    api.stop()
    write(pod, "max")
    new = tree.pod(2)
    second = start().wait_ready()
    holds(pod, "0")
    holds(new, "0")
    assert second.metric("swapwarden_agent_state_generation") == generation
    assert second.metric('swapwarden_agent_writes_total{kind="pod",result="ok"}') == 2, "it never held anything else"


def test_a_clean_stop_leaves_the_newest_state_on_the_disk(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    """The node may boot next, and then nothing else is left of it."""
    pod = tree.pod(1)
    api.put(pods({1: str(512 * MIB)}))
    agent = start().wait_ready()
    file = agent.state_dir / "state.json"
    until(file.exists)
    generation = api.put(pods({1: "0"}))
    holds(pod, "0")
    assert agent.terminate() == 0
    assert json.loads(file.read_bytes().partition(b"\n")[2])["generation"] == generation


def test_a_corrupt_cache_and_a_torn_ledger_do_not_stop_it(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    pod = tree.pod(1)
    api.put(pods({1: str(MIB)}))
    first = start().wait_ready()
    holds(pod, str(MIB))
    until((first.state_dir / "state.json").exists)
    first.kill()
    for folder in (first.state_dir, first.run_dir):
        (folder / "state.json").write_bytes(b'{"node": "n1", "sp')
    file = first.run_dir / "ledger.jsonl"
    file.write_bytes(file.read_bytes() + b'{"limit":{"key":["x')
    agent = start().wait_ready()
    until(lambda: agent.metric("swapwarden_agent_cache_corrupt_total") == 2)
    assert agent.metric("swapwarden_agent_journal_bad_lines_total") == 1
    assert (first.state_dir / "state.json.corrupt").exists()
    api.put(pods({1: "0"}))
    holds(pod, "0")


@pytest.mark.parametrize(
    ("boot", "verdict"),
    [("one", ("Unknown", "NoEvidence")), ("two", ("True", "HeldBySystemd"))],
    ids=["cleared", "booted"],
)
def test_a_cleared_run_dir_does_not_look_like_a_boot(
    tree: CgroupTree, api: FakeApi, start: Start, boot: str, verdict: tuple[str, str]
) -> None:
    """A pod at 0 is then the agent's doing; after a boot it is systemd's."""
    boot_id = tree.proc / "sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("one\n")
    pod = tree.pod(1)
    api.put(pods({1: "0"}, guarantee="Strict"))
    first = start().wait_ready()
    holds(pod, "0")
    until((first.state_dir / "state.json").exists)
    until(lambda: api.condition("StrictInEffect") == ("Unknown", "NoEvidence"))
    first.kill()
    shutil.rmtree(first.run_dir)
    boot_id.write_text(f"{boot}\n")
    second = start().wait_ready()
    applied(api, api.put(pods({1: "0", 2: "0"}, guarantee="Strict")))
    assert api.condition("StrictInEffect") == verdict
    assert ("the ledger of this boot is gone" in second.log.read_text()) is (boot == "one")


def test_sigterm_ends_it_and_leaves_the_values(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    pod = tree.pod(1)
    api.put(pods({1: "0"}))
    agent = start().wait_ready()
    holds(pod, "0")
    begun = time.monotonic()
    assert agent.terminate() == 0
    assert time.monotonic() - begun < 3
    assert swap_max(pod) == "0"


@pytest.mark.parametrize(("mode", "reason"), [("Restore", "Restored"), ("Audit", "Audit")])
def test_restore_and_audit_put_back(tree: CgroupTree, api: FakeApi, start: Start, mode: str, reason: str) -> None:
    limited, free = tree.pod(1, memory_swap_max=f"{8 * MIB}\n"), tree.pod(2)
    api.put(pods({1: "0", 2: "0"}, kubepods={"swapMax": str(64 * MIB)}))
    first = start().wait_ready()
    holds(tree.kubepods, str(64 * MIB))
    holds(free, "0")
    first.kill()
    start().wait_ready()
    generation = api.put(pods({1: "0", 2: "0"}, kubepods={"swapMax": str(64 * MIB)}, mode=mode))
    applied(api, generation, reason)
    assert [swap_max(path) for path in (limited, free, tree.kubepods)] == [str(8 * MIB), "max", "max"]
    new = tree.pod(3)
    applied(api, api.put(pods({1: "0", 2: "0", 3: "0"}, mode=mode)), reason)
    assert swap_max(new) == "max"
    found = {(violation["pod"], violation["reason"]) for violation in api.status.get("violations", [])}
    assert found == (set() if mode == "Restore" else {(uid(1), "Audit"), (uid(2), "Audit"), (uid(3), "Audit")})
    applied(api, api.put(pods({1: "0", 2: "0"})))
    assert [swap_max(path) for path in (limited, free)] == ["0", "0"]


def test_an_agent_that_ends_after_restoring_leaves_no_files(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    pod = tree.pod(1)
    api.put(pods({1: "0"}))
    first = start().wait_ready()
    holds(pod, "0")
    until((first.state_dir / "state.json").exists)
    first.terminate()
    assert (first.state_dir / "state.json").exists()
    assert (first.run_dir / "ledger.jsonl").exists()
    second = start().wait_ready()
    applied(api, api.put(pods({1: "0"}, mode="Restore")), "Restored")
    second.terminate()
    assert list(second.state_dir.iterdir()) == []
    assert [path.name for path in second.run_dir.iterdir()] == ["agent.lock"]
    # The next one starts like the very first one.
    api.put(pods({1: "0"}))
    start().wait_ready()
    holds(pod, "0")


def test_1000_writes_of_another(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    pod = tree.pod(1)
    tree.container(pod, "app")
    api.put(pods({1: "0"}))
    agent = start().wait_ready()
    holds(pod, "0")
    until(lambda: agent.metric('swapwarden_agent_exposures_total{cause="StateLate"}') == 1)
    counted = f'swapwarden_agent_pod_exposures_total{{pod_uid="{uid(1)}"}}'
    for _ in range(1000):
        write(pod, "max")
        while swap_max(pod) != "0":
            time.sleep(0)
    until(lambda: agent.metric(counted) >= 1001)
    for _ in range(1000):
        write(pod, "max")
    holds(pod, "0")
    assert agent.metric(counted) <= 2001
    until(lambda: api.condition("Drifted") == ("True", "Rewritten"))
    # A report from the midst of it may also list the repair that was under way.
    until(lambda: [one["pod"] for one in api.status.get("exposures", [])] == [uid(1)])
    assert len(api.patches) < 30
    # Who writes max to a pod's slice is taken for systemd.
    until(lambda: agent.metric('swapwarden_agent_exposures_total{cause="UnitValue"}') >= 1000)
    until(lambda: set(api.status["exposures"][0]["causes"]) == {"UnitValue", "StateLate"})


def test_250_pods_at_once_and_no_growth(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    generation = api.put(pods(dict.fromkeys(range(250), str(MIB))))
    agent = start(run=subprocess.Popen).wait_ready()
    until(lambda: api.watching == 1)
    applied(api, generation)  # now the connection for the status is also open
    descriptors, watches = agent.descriptors, agent.metric("swapwarden_agent_watches")
    for _ in range(2):
        made = [tree.pod(number) for number in range(250)]
        until(lambda made=made: all(swap_max(pod) == str(MIB) for pod in made))  # type: ignore[misc] # a default has no type
        for pod in made:
            tree.remove(pod)
        until(lambda: agent.metric("swapwarden_agent_pods") == 0)
    until(lambda: agent.descriptors <= descriptors, "no descriptor is left open")
    assert agent.metric("swapwarden_agent_watches") == watches
    assert agent.rss < 40 * MIB


def test_a_second_agent_waits_and_takes_over(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    pod = tree.pod(1)
    api.put(pods({1: "0"}))
    first = start().wait_ready()
    holds(pod, "0")
    # A DaemonSet with maxSurge ends the old agent only when the new one is ready.
    second = start().wait_ready()
    assert second.get("/healthz")[0] == 200
    assert first.process.poll() is None
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(10) == 0
    until(lambda: second.metric("swapwarden_agent_pods") == 1, "the second one took over")
    write(pod, "max")
    holds(pod, "0")


def test_swap_in_use_drains(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    pod = tree.pod(1, memory_max=f"{64 * MIB}\n", memory_current=f"{63 * MIB}\n", memory_swap_current=f"{32 * MIB}\n")
    generation = api.put(pods({1: "0"}))
    start().wait_ready()
    applied(api, generation, "Draining")
    assert swap_max(pod) == str(48 * MIB)
    (violation,) = api.status["violations"]
    assert violation["reason"] == "Draining"
    assert (violation["desired"], violation["observed"]) == ("0", str(48 * MIB))
    write(pod, "0", "memory.swap.current")
    holds(pod, "0")
    applied(api, generation)


def test_a_cut_pod_is_no_success_while_more_is_in_use_than_wanted(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    """Its file is right at once; the status reports success only once the last page is back."""
    pod = tree.pod(1, memory_swap_current=f"{32 * MIB}\n")
    generation = api.put(pods({1: str(MIB)}))
    start().wait_ready()
    applied(api, generation, "Draining")
    assert swap_max(pod) == str(MIB)
    assert api.status["violations"][0]["message"].startswith(f"{31 * MIB} bytes more")
    write(pod, str(MIB), "memory.swap.current")
    applied(api, generation)
    conditions = [each for patch in api.patches for each in patch["status"].get("conditions", [])]
    verdicts = [each["status"] for each in conditions if each["type"] == "Applied"]
    assert verdicts == sorted(verdicts), "once it was true it did not become false again"


def test_a_pod_without_state_is_reported(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    api.put(pods({}))
    start().wait_ready()
    pod = tree.pod(1)
    holds(pod, "0")
    tree.container(pod, "app")
    until(lambda: [v["reason"] for v in api.status.get("violations", [])] == ["AwaitingState"])


def test_the_runtime_reaches_the_status_with_the_first_container(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    generation = api.put(pods({}))
    start().wait_ready()
    applied(api, generation)
    pod = tree.pod(1)
    applied(api, api.put(pods({1: "0"})))
    assert api.status["facts"].get("runtime") is None
    tree.container(pod, "a")
    until(lambda: api.status["facts"].get("runtime") == "containerd", "the runtime is known")


def test_swapon_reaches_the_status(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    (tree.proc / "swaps").write_text("Filename\tType\tSize\tUsed\tPriority\n")
    (tree.proc / "meminfo").write_text("MemTotal: 4194304 kB\nMemAvailable: 1 kB\nSwapTotal: 0 kB\n")
    api.put(pods({}))
    start("--resync-interval", "1").wait_ready()
    until(lambda: "facts" in api.status)
    assert api.status["facts"]["swapBytes"] == 0
    (tree.proc / "meminfo").write_text("MemTotal: 4194304 kB\nMemAvailable: 1 kB\nSwapTotal: 4096 kB\n")
    until(lambda: api.status["facts"]["swapBytes"] == 4 * MIB)


def test_a_status_written_by_others_is_put_right_with_the_next_get(api: FakeApi, start: Start) -> None:
    generation = api.put(pods({}))
    others = {"observedGeneration": 99, "conditions": [], "violations": [{"pod": "x", "reason": "y"}]}
    api.answer_patch({"status": others})
    start().wait_ready()
    applied(api, generation)
    assert "violations" not in api.status or api.status["violations"] == []


def test_a_status_that_others_wipe_is_written_again_without_a_new_list(api: FakeApi, start: Start) -> None:
    generation = api.put(pods({}))
    agent = start().wait_ready()
    applied(api, generation)
    until(lambda: api.watching == 1)
    before = api.status
    api.answer_patch({"status": dict.fromkeys(before)})
    applied(api, generation)
    assert api.status["facts"] == before["facts"]
    assert (api.lists, agent.metric("swapwarden_agent_status_overwritten_total")) == (1, 1)


@pytest.mark.parametrize(
    ("blame", "options"),
    [
        ("NODE_NAME", {"node": ""}),
        ("--cgroup-root", {"root": "nowhere"}),
        ("--run-dir", {"ledger": "a directory"}),
        ("--metrics-address", {"address": "taken"}),
    ],
)
def test_it_names_the_flag_that_it_cannot_start_with(
    tmp_path: pathlib.Path, tree: CgroupTree, api: FakeApi, blame: str, options: dict[str, str]
) -> None:
    if "ledger" in options:
        (tmp_path / "run" / "ledger.jsonl").mkdir(parents=True)
    root, node = tmp_path / options["root"] if "root" in options else tree.root, options.get("node", "n1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        more = ["--metrics-address", f"127.0.0.1:{taken.getsockname()[1]}"] if "address" in options else []
        agent = AgentProcess(tmp_path, root, tree.proc, api.kubeconfig(tmp_path), *more, node=node)
        assert agent.process.wait(30) == 2
    text = agent.log.read_text()
    flags = {"NODE_NAME", "--cgroup-root", "--run-dir", "--metrics-address"}
    assert {flag for flag in flags if flag in text} == {blame}
    assert "Traceback" not in text


@pytest.mark.parametrize("name", ledger.EARLIER)
def test_it_does_not_start_over_records_of_an_earlier_version(
    tmp_path: pathlib.Path, tree: CgroupTree, api: FakeApi, name: str
) -> None:
    """Else values of that version would never be restored."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("{}")
    agent = AgentProcess(tmp_path, tree.root, tree.proc, api.kubeconfig(tmp_path))
    assert agent.process.wait(30) == 2
    text = agent.log.read_text()
    assert f"earlier version ({name})" in text
    assert "uninstall that version first" in text
    assert "Traceback" not in text
    assert (tmp_path / "run" / name).read_text() == "{}"


def test_conditions_are_metrics_without_any_object_at_the_api_server(
    tree: CgroupTree, api: FakeApi, start: Start
) -> None:
    """So an alert works also while the API server is away."""
    agent = start().wait_ready()
    told = 'swapwarden_agent_condition{type="%s",status="%s",reason="%s"}'
    until(lambda: agent.metric(told % ("Compatible", "True", "Compatible")) == 1)
    assert agent.metric(told % ("Applied", "Unknown", "AwaitingState")) == 1
    pod = tree.pod(1)
    applied(api, api.put(pods({1: "0"})))
    api.stop()
    (pod / "memory.swap.max").write_text("garbage\n")
    until(lambda: agent.metric(told % ("Degraded", "True", "WriteFailed")) == 1, "the failure is reported")
    assert agent.metric(told % ("Degraded", "False", "AsExpected")) == 0, "and nothing else"


def test_a_disk_that_hangs_stops_no_repair(
    tmp_path: pathlib.Path, tree: CgroupTree, api: FakeApi, start: Start
) -> None:
    """A pipe that nobody writes to stands for the disk with the kubelet's configuration."""
    file, pod = tmp_path / "kubelet.yaml", tree.pod(1)
    file.write_text("kind: KubeletConfiguration\n")
    applied_at = api.put(pods({1: "0"}))
    agent = start("--resync-interval", "1", "--kubelet-config", str(file)).wait_ready()
    applied(api, applied_at)
    file.unlink()
    os.mkfifo(file)
    before = agent.metric("swapwarden_agent_resyncs_total")
    until(lambda: agent.metric("swapwarden_agent_resyncs_total") >= before + 2, "it continues to compare")
    write(pod, "max")
    holds(pod, "0")
    assert agent.terminate() == 0, "it does not wait for the disk to end, either"
    second = start("--kubelet-config", str(file)).wait_ready()
    write(pod, "max")
    holds(pod, "0")
    assert second.terminate() == 0


def test_a_node_without_cgroup_v2_is_reported_and_left_alone(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    (tree.root / "cgroup.controllers").unlink()
    pod = tree.pod(1)
    api.put(pods({1: "0"}))
    start().wait_ready()
    until(lambda: api.condition("Compatible") == ("False", "NoCgroupV2"))
    assert swap_max(pod) == "max"


def test_it_has_no_huge_pages(api: FakeApi, start: Start) -> None:
    api.put(pods({}))
    agent = start().wait_ready()
    lines = pathlib.Path(f"/proc/{agent.process.pid}/status").read_text().splitlines()
    assert "THP_enabled:\t0" in lines
    rollup = pathlib.Path(f"/proc/{agent.process.pid}/smaps_rollup").read_text()
    assert re.search(r"^AnonHugePages: +0 kB$", rollup, re.MULTILINE)


def test_no_secret_in_the_log(api: FakeApi, start: Start) -> None:
    api.put(pods({1: "0"}))
    agent = start().wait_ready()
    until(lambda: api.condition("Applied")[0] == "True")
    api.failing = 401
    api.cut()
    until(lambda: agent.metric('swapwarden_agent_api_errors_total{request="state"}') >= 1)
    text = agent.log.read_text()
    assert "secret" not in text
    assert all(json.loads(line)["message"] for line in text.splitlines())


def test_containers_by_id(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    pod = tree.pod(1)
    app = tree.container(pod, "app", memory_swap_max="0\n")
    spec = pods({1: "max"})
    spec["pods"][uid(1)]["containers"] = {"app": {"id": container_id("app")[:13], "swapMax": str(MIB + 5)}}
    api.put(spec)
    start().wait_ready()
    holds(app, str(MIB))
    write(app, "0")
    holds(app, str(MIB))
    api.put(pods({1: "max"}))
    holds(app, "0")


def test_no_more_exposures_are_listed_than_the_definition_allows(tree: CgroupTree, api: FakeApi, start: Start) -> None:
    for number in range(40):
        tree.container(tree.pod(number), "app")
    api.put(pods(dict.fromkeys(range(40), "0")))
    start().wait_ready()
    until(lambda: len(api.status.get("exposures", [])) == state.MAX_EXPOSURES)
    assert api.status["exposuresOmitted"] == 8
