"""Marks for tests of what older versions of Kubernetes lack, with the reason that a run on one of them gives."""

from __future__ import annotations

import pytest

from testbed.controlplane import assets


def _since(minor: int, what: str) -> pytest.MarkDecorator:
    lacks = assets.version() < (1, minor)
    return pytest.mark.skipif(lacks, reason=f"Kubernetes has {what} from 1.{minor} on")


NODES_TELL_SWAP = _since(33, "status.nodeInfo.swap of Nodes (agents' reports are also tested on older versions)")
RESIZES = _since(33, "pods/resize")
MUTATING_POLICIES = _since(36, "MutatingAdmissionPolicy, which admission.mode Policy needs,")
