from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent import limits, targets, wanted
from swapwarden.api import names

PAGE = 4096
bytes_ = st.integers(0, 1 << 30).map(lambda number: number // PAGE * PAGE)
limit_ = st.one_of(bytes_, st.just(limits.NO_LIMIT))


def state(mode: names.Mode, unknown: names.UnknownPod) -> wanted.State:
    return wanted.State("u", 1, mode, unknown, None, {})


pod_ = st.one_of(st.none(), st.builds(wanted.Pod, st.one_of(st.none(), limit_), st.just({})))
origin_ = st.sampled_from(targets.Origin)
unknown_ = st.sampled_from(names.UnknownPod)


@given(pod_, origin_, st.one_of(st.none(), limit_), unknown_)
def test_only_enforce_writes(
    pod: wanted.Pod | None, origin: targets.Origin, last: int | None, unknown: names.UnknownPod
) -> None:
    for mode in (names.Mode.AUDIT, names.Mode.RESTORE):
        target = targets.of_pod(state(mode, unknown), pod, mode=mode, origin=origin, last=last)
        assert target is targets.Hold.PUT_BACK


def test_pod_target_in_enforce() -> None:
    def target(
        pod: wanted.Pod | None = None,
        *,
        origin: targets.Origin = targets.Origin.APPEARED,
        last: int | None = None,
        unknown: names.UnknownPod | None = names.UnknownPod.DENY,
    ) -> targets.Target:
        current = None if unknown is None else state(names.Mode.ENFORCE, unknown)
        return targets.of_pod(current, pod, mode=names.Mode.ENFORCE, origin=origin, last=last)

    assert target(wanted.Pod(5 * PAGE, {}), last=0) == 5 * PAGE
    assert target(wanted.Pod(None, {}), last=0) is targets.Hold.PUT_BACK
    assert target(last=7 * PAGE) == 7 * PAGE
    assert target(unknown=None) == 0
    assert target() == 0
    assert target(unknown=names.UnknownPod.ALLOW) is targets.Hold.PUT_BACK
    assert target(origin=targets.Origin.FOUND) is targets.Hold.LEAVE
    assert target(origin=targets.Origin.FOUND, unknown=None) is targets.Hold.LEAVE


def test_what_audit_would_write() -> None:
    assert targets.differs(8, 9, cap=True)
    assert not targets.differs(8, 4, cap=True)
    assert targets.differs(8, 4, cap=False)
    assert not targets.differs(8, 8, cap=False)
    assert not targets.differs(targets.Hold.PUT_BACK, 8, cap=False)


def test_the_root_is_left_alone_until_a_state_arrives_and_put_back_when_one_has_no_value_for_it() -> None:
    some = state(names.Mode.ENFORCE, names.UnknownPod.DENY)._replace(kubepods=7 * PAGE)
    assert targets.of_root(None, mode=targets.mode_of(None)) is targets.Hold.LEAVE
    assert targets.of_root(some, mode=names.Mode.ENFORCE) == 7 * PAGE
    assert targets.of_root(some, mode=names.Mode.RESTORE) is targets.Hold.PUT_BACK
    assert targets.of_root(some._replace(kubepods=None), mode=names.Mode.ENFORCE) is targets.Hold.PUT_BACK
