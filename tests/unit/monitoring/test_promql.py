from monitoring import promql


def test_selectors_are_found_with_their_matchers() -> None:
    expression = r'sum by (cluster, node) (rate(kube_a_total{x="1", y=~"(a|b)\\."}[5m])) / on (node) swapwarden_b'
    assert list(promql.selectors(expression)) == [
        promql.Selector("kube_a_total", (("x", "=", "1"), ("y", "=~", r"(a|b)\\."))),
        promql.Selector("swapwarden_b", ()),
    ]


def test_labels_in_groups_are_found_and_not_those_in_strings() -> None:
    expression = 'max by (a, b) (x{c="by (d)"}) * on () group_left (e) y'
    assert promql.grouped(expression) == {"a", "b", "e"}
