"""The page of metrics has a table for each part, and one for what several parts have."""

from hack.generate import metrics_page

COMMON = metrics_page.Metric("swapwarden_requests_total", "counter", ("method",), "Requests.")


def test_each_metric_is_listed_once() -> None:
    own = metrics_page.Metric("swapwarden_pods", "gauge", (), 'Pods with memory.swap.max < a|b, pod_uid="x".')
    page = metrics_page.page({"agent": [COMMON, own], "controller": [COMMON], "webhook": []})
    agent, controller, webhook, several = (part.splitlines() for part in page.split("\n## ")[1:])
    assert agent[-1] == r'| `swapwarden_pods` | gauge |  | Pods with memory.swap.max \< a\|b, pod\_uid="x". |'
    assert len(controller) == len(webhook) == 4
    assert several[-1] == "| `swapwarden_requests_total` | counter | `method` | agent, controller | Requests. |"
    assert page.count("swapwarden_requests_total") == 1


def test_a_part_has_what_its_module_registers() -> None:
    found = {metric.name for metric in metrics_page.of_part("webhook")}
    assert "swapwarden_webhook_requests_total" in found
    assert not {name for name in found if name.startswith("swapwarden_agent_")}
