from __future__ import annotations

import pytest


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swapwarden.kube.informer.BACKOFF_SECONDS", (0.0, 0.0))
