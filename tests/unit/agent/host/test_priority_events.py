from __future__ import annotations

import logging
import pathlib

import pytest
from swapwarden.agent.host import priority_events

KERNELS = pathlib.Path("/proc/swaps")


@pytest.mark.parametrize("name", ["swaps", "gone"])
async def test_a_file_that_cannot_be_watched_is_left_to_the_timer(
    name: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "swaps").write_text("Filename\n")
    with priority_events.watch(tmp_path / name, lambda: pytest.fail("nothing changed")):
        pass
    assert "cannot be watched" in caplog.text


@pytest.mark.skipif(not KERNELS.exists(), reason="this kernel has no swap at all")
async def test_the_kernels_own_can_be_watched(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with priority_events.watch(KERNELS, lambda: None):
        pass
    assert not caplog.text
