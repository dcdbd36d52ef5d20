"""Only networks that a gone process of ours left behind are removed."""

import os

from testbed.controlplane import netns


def test_leftovers_are_ours_and_their_process_is_gone() -> None:
    names = ["swapwarden-10-1", "swapwarden-10-2", "swapwarden-11-1", "swapwarden", "swapwarden-x-1", "cni-10-1"]
    assert netns.leftovers(names, alive=[11, 1]) == ["swapwarden-10-1", "swapwarden-10-2"]


def test_each_network_has_a_name_of_its_own_with_this_process_in_it() -> None:
    first, second = netns.NetworkNamespace(), netns.NetworkNamespace()
    assert first.name != second.name
    assert netns.leftovers([first.name, second.name], alive=[os.getpid()]) == []
    assert netns.leftovers([first.name, second.name], alive=[]) == [first.name, second.name]
