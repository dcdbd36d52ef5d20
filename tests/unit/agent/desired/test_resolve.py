import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.host import cgroup_files, cgroupfs
from swapwarden.agent.ledger import ledger
from swapwarden.api import names

PAGE = 4096
bytes_ = st.integers(0, 1 << 30).map(lambda number: number // PAGE * PAGE)
limit_ = st.one_of(bytes_, st.just(cgroupfs.NO_LIMIT))


def state(mode: names.Mode, unknown: names.BeforePlan) -> spec.NodeSpec:
    return spec.NodeSpec("u", 1, mode, unknown, None, {})


settings_: st.SearchStrategy[spec.FileSettings] = st.just({}) | st.builds(
    lambda limit: {cgroupfs.SWAP_MAX: spec.FileSetting(limit)}, limit_
)
pod_ = st.one_of(st.none(), st.builds(spec.PodEntry, settings_, st.just({})))
origin_ = st.sampled_from(resolve.Origin)
unknown_ = st.sampled_from(names.BeforePlan)


@given(pod_, origin_, st.one_of(st.none(), limit_), unknown_)
def test_only_enforce_writes(
    pod: spec.PodEntry | None, origin: resolve.Origin, last: int | None, unknown: names.BeforePlan
) -> None:
    for mode in (names.Mode.AUDIT, names.Mode.RESTORE):
        target = resolve.of_pod(state(mode, unknown), pod, mode=mode, origin=origin, last=last)
        assert target is resolve.Handling.RESTORE


def test_pod_target_in_enforce() -> None:
    def target(
        pod: spec.PodEntry | None = None,
        *,
        origin: resolve.Origin = resolve.Origin.APPEARED,
        last: int | None = None,
        unknown: names.BeforePlan | None = names.BeforePlan.NO_SWAP,
    ) -> resolve.DesiredValue:
        current = None if unknown is None else state(names.Mode.ENFORCE, unknown)
        return resolve.of_pod(current, pod, mode=names.Mode.ENFORCE, origin=origin, last=last)

    assert target(spec.PodEntry({"memory.swap.max": spec.FileSetting(5 * PAGE)}, {}), last=0) == 5 * PAGE
    assert target(spec.PodEntry({}, {}), last=0) is resolve.Handling.RESTORE
    assert target(last=7 * PAGE) == 7 * PAGE
    assert target(unknown=None) == 0
    assert target() == 0
    assert target(unknown=names.BeforePlan.UNMANAGED) is resolve.Handling.RESTORE
    assert target(origin=resolve.Origin.PREEXISTING) is resolve.Handling.UNMANAGED
    assert target(origin=resolve.Origin.PREEXISTING, unknown=None) is resolve.Handling.UNMANAGED


def test_what_audit_would_write() -> None:
    assert resolve.differs(8, 9, at_most=True)
    assert not resolve.differs(8, 4, at_most=True)
    assert resolve.differs(8, 4, at_most=False)
    assert not resolve.differs(8, 8, at_most=False)
    assert not resolve.differs(resolve.Handling.RESTORE, 8, at_most=False)


def test_the_root_is_left_alone_until_a_state_arrives_and_put_back_when_one_has_no_value_for_it() -> None:
    some = msgspec.structs.replace(state(names.Mode.ENFORCE, names.BeforePlan.NO_SWAP), kubepods=7 * PAGE)
    assert resolve.of_root(None, mode=resolve.mode_of(None)) is resolve.Handling.UNMANAGED
    assert resolve.of_root(some, mode=names.Mode.ENFORCE) == 7 * PAGE
    assert resolve.of_root(some, mode=names.Mode.RESTORE) is resolve.Handling.RESTORE
    assert (
        resolve.of_root(msgspec.structs.replace(some, kubepods=None), mode=names.Mode.ENFORCE)
        is resolve.Handling.RESTORE
    )


def test_a_file_that_is_not_denied_keeps_what_it_holds_until_a_state_names_its_pod() -> None:
    low = cgroup_files.CgroupFile("memory.low", denied=None)
    target = resolve.of_pod(None, None, mode=names.Mode.ENFORCE, origin=resolve.Origin.APPEARED, last=None, file=low)
    assert target is resolve.Handling.UNMANAGED


KEY = ledger.Key("memory.swap.max", "pod", inode=1)


@pytest.mark.parametrize(
    ("record", "observed", "number"),
    [
        (None, 7, None),
        (ledger.LimitRecord(KEY), 7, None),
        (ledger.LimitRecord(KEY, found=9, wrote=(5, 7)), 7, 9),
        (ledger.LimitRecord(KEY, found=9, wrote=(5, 7)), 5, 9),
        (ledger.LimitRecord(KEY, found=9, wrote=(5, 7)), 6, None),
        (ledger.LimitRecord(KEY, found=9, systemd_zero=True), 0, 9),
        (ledger.LimitRecord(KEY, found=9, wrote=(5,)), 0, None),
    ],
)
def test_only_what_the_agent_or_its_drop_ins_wrote_is_restored_over(
    record: ledger.LimitRecord | None, observed: int, number: int | None
) -> None:
    assert resolve.to_restore(record, observed) == number
