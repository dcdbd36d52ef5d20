from __future__ import annotations

from swapwarden.controller.nodes import label_publisher

ON: dict[str, str | None] = {"swap": "true"}
OFF: dict[str, str | None] = {"swap": None}


def test_a_label_is_set_at_once_and_once() -> None:
    labels = label_publisher.LabelGrace(grace=600)
    assert labels.decide("n", ON, {"other": "x"}, now=0) == label_publisher.LabelChange({"swap": "true"}, None)
    assert labels.decide("n", ON, {"swap": "true"}, now=1) == label_publisher.LabelChange({}, None)
    assert labels.decide("n", ON, {"swap": "false"}, now=1) == label_publisher.LabelChange({"swap": "true"}, None)


def test_a_label_is_taken_away_when_it_has_been_wrong_for_long() -> None:
    labels = label_publisher.LabelGrace(grace=600)
    assert labels.decide("n", OFF, {"swap": "true"}, now=100) == label_publisher.LabelChange({}, 600)
    assert labels.decide("n", OFF, {"swap": "true"}, now=400) == label_publisher.LabelChange({}, 300)
    assert labels.decide("n", OFF, {"swap": "true"}, now=700) == label_publisher.LabelChange({"swap": None}, None)
    assert labels.decide("n", OFF, {}, now=701) == label_publisher.LabelChange({}, None)


def test_swap_that_was_off_for_a_moment_restarts_the_time() -> None:
    labels = label_publisher.LabelGrace(grace=600)
    labels.decide("n", OFF, {"swap": "true"}, now=0)
    labels.decide("n", ON, {"swap": "true"}, now=300)
    assert labels.decide("n", OFF, {"swap": "true"}, now=599) == label_publisher.LabelChange({}, 600)


def test_each_node_has_its_own_time() -> None:
    labels = label_publisher.LabelGrace(grace=600)
    labels.decide("m", OFF, {"swap": "true"}, now=0)
    assert labels.decide("n", OFF, {"swap": "true"}, now=600) == label_publisher.LabelChange({}, 600)
    labels.forget("m")
    assert labels.decide("m", OFF, {"swap": "true"}, now=600) == label_publisher.LabelChange({}, 600)


def test_a_label_that_is_not_there_need_not_go() -> None:
    assert label_publisher.LabelGrace(grace=600).decide("n", OFF, {}, now=0) == label_publisher.LabelChange({}, None)
