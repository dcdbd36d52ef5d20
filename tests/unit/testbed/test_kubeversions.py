"""How an older Kubernetes is put together from modules, and what is told of the tests on each version."""

from hack.celcost import costs
from testbed.controlplane import assets, kubeversions
from testbed.run import tiers, versionmatrix

GO_MOD = """module k8s.io/kubernetes

go 1.22.0

require (
	github.com/example/one v0.0.0-20230101000000-abcdefabcdef
	k8s.io/api v0.0.0
	k8s.io/endpointslice v0.0.0
	k8s.io/kube-openapi v0.0.0-20240228011516-70dd3763d340
	k8s.io/sample-apiserver v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/endpointslice => ./staging/src/k8s.io/endpointslice
	k8s.io/sample-apiserver => ./staging/src/k8s.io/sample-apiserver
)
"""
SUMS = """k8s.io/api v0.31.14 h1:a=
k8s.io/api v0.31.14/go.mod h1:b=
k8s.io/api v0.32.0 h1:c=
k8s.io/endpointslice v0.30.14 h1:d=
k8s.io/endpointslice v0.33.13 h1:e=
"""


def test_staging_modules_take_the_place_of_folders() -> None:
    made = kubeversions.staged(GO_MOD, "1.31.14", SUMS)
    assert "./staging" not in made
    assert "k8s.io/api => k8s.io/api v0.31.14\n" in made
    assert "k8s.io/kube-openapi v0.0.0-20240228011516-70dd3763d340\n" in made
    assert "github.com/example/one v0.0.0-20230101000000-abcdefabcdef\n" in made


def test_a_module_that_cannot_be_had_in_a_version_is_the_nearest_and_one_that_cannot_be_had_is_left_out() -> None:
    made = kubeversions.staged(GO_MOD, "1.31.14", SUMS)
    assert "k8s.io/endpointslice => k8s.io/endpointslice v0.30.14\n" in made
    assert "sample-apiserver" not in made


def test_versions_go_from_the_oldest_to_the_newest_one_of_each_minor() -> None:
    minors = [kubeversions.numbers(each)[1] for each in versionmatrix.versions()]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert (minors[0], versionmatrix.versions()[-1]) == (30, assets.KUBE_VERSION)
    assert tiers.TIERS["oldest"].kubernetes == versionmatrix.versions()[0]


def test_a_rule_fits_only_with_room_to_spare() -> None:
    assert costs.Cost("crd.yaml", "spec rule 0", cost=6, limit=9).fits
    assert not costs.Cost("crd.yaml", "spec rule 0", cost=7, limit=9).fits
    assert not costs.Cost("crd.yaml", "spec rule 0", cost=0, limit=9, error="undeclared reference").fits


def test_a_version_held_only_where_tests_ran_and_none_failed() -> None:
    def outcome(passed: int, failed: int, status: int) -> versionmatrix.Outcome:
        return versionmatrix.Outcome("1.30.14", "abc", "2026-11-23", passed, failed, 0, 0, 6.1, status)

    assert outcome(900, 0, 0).is_good
    assert not any(each.is_good for each in (outcome(900, 1, 1), outcome(0, 0, 0), outcome(900, 0, 2)))
    assert "| 1.30.14 | 900 | 0 | 0 | 0 | 6.1 | 2026-11-23 | abc |" in versionmatrix.table([outcome(900, 0, 0)])
