"""Costs of the CRDs' rules."""

from hack.celcost import costs


def test_a_rule_fits_only_with_room_to_spare() -> None:
    assert costs.Cost("crd.yaml", "spec rule 0", cost=6, limit=9).fits
    assert not costs.Cost("crd.yaml", "spec rule 0", cost=7, limit=9).fits
    assert not costs.Cost("crd.yaml", "spec rule 0", cost=0, limit=9, error="undeclared reference").fits
