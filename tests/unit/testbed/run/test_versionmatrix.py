"""Which versions of Kubernetes the tests run on, and when one counts as held."""

from testbed.controlplane import assets, kubeversions
from testbed.run import tiers, versionmatrix


def test_versions_go_from_the_oldest_to_the_newest_one_of_each_minor() -> None:
    minors = [kubeversions.numbers(each)[1] for each in versionmatrix.versions()]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert (minors[0], versionmatrix.versions()[-1]) == (30, assets.KUBE_VERSION)
    assert tiers.TIERS["oldest"].kubernetes == versionmatrix.versions()[0]


def test_a_version_held_only_where_tests_ran_and_none_failed() -> None:
    def outcome(passed: int, failed: int, status: int) -> versionmatrix.VersionOutcome:
        return versionmatrix.VersionOutcome("1.30.14", "abc", "2026-11-23", passed, failed, 0, 0, 6.1, status)

    assert outcome(900, 0, 0).is_good
    assert not any(each.is_good for each in (outcome(900, 1, 1), outcome(0, 0, 0), outcome(900, 0, 2)))
    assert "| 1.30.14 | 900 | 0 | 0 | 0 | 6.1 | 2026-11-23 | abc |" in versionmatrix.table([outcome(900, 0, 0)])
