"""`swapwarden` as an earlier version of it is: one that does not know `containerDefault` of a state's pods."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from swapwarden import __main__ as program
from swapwarden.api import state
from swapwarden.policy import pod_settings
from swapwarden.policy.observed import states


def main(arguments: list[str]) -> int:
    known = states.spec

    def spec(row: states.StateRow) -> state.StateSpec | dict[str, Any]:
        found = known(row)
        assert isinstance(found, state.StateSpec)
        pods = {key: msgspec.structs.replace(pod, container_default=None) for key, pod in found.pods.items()}
        return msgspec.structs.replace(found, pods=pods)

    def alike(_: Sequence[state.ContainerSettings]) -> state.ContainerDefault | None:
        return None

    states.spec = spec
    pod_settings._alike = alike  # type: ignore[assignment]  # the names of parameters differ
    return program.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
