"""Kinds of workloads: how they are called, and where their pod template is."""

from __future__ import annotations

from typing import Final

import msgspec


class WorkloadKind(msgspec.Struct, frozen=True):
    """A kind of workload."""

    name: str
    group: str
    plural: str
    template: tuple[str, ...] = ("spec", "template")
    """Path of the pod template in it."""
    immutable: bool = False
    """Whether the template cannot be changed once the object exists."""

    @property
    def word(self) -> str:
        """Return the kind as kubectl takes it: deployment."""
        return self.name.lower()

    @property
    def api(self) -> str:
        """Return the start of its paths: apis/apps/v1."""
        return f"apis/{self.group}/v1" if self.group else "api/v1"

    @property
    def version(self) -> str:
        """Return its apiVersion."""
        return f"{self.group}/v1" if self.group else "v1"


KINDS: Final = (
    WorkloadKind("Deployment", "apps", "deployments"),
    WorkloadKind("StatefulSet", "apps", "statefulsets"),
    WorkloadKind("DaemonSet", "apps", "daemonsets"),
    WorkloadKind("ReplicaSet", "apps", "replicasets"),
    WorkloadKind("ReplicationController", "", "replicationcontrollers"),
    WorkloadKind("Job", "batch", "jobs", immutable=True),
    WorkloadKind("CronJob", "batch", "cronjobs", template=("spec", "jobTemplate", "spec", "template")),
)
_SHORT: Final = {
    "deploy": "deployment",
    "sts": "statefulset",
    "ds": "daemonset",
    "rs": "replicaset",
    "rc": "replicationcontroller",
    "cj": "cronjob",
}
_BY_WORD: Final = {
    **{word: kind for kind in KINDS for word in (kind.word, kind.plural)},
    **{short: next(kind for kind in KINDS if kind.word == word) for short, word in _SHORT.items()},
}


def kind_of(word: str) -> WorkloadKind | None:
    """Return the kind that a user means by deployment, deployments, deploy, deployment.apps or deployments.v1.apps."""
    first, _, group = word.casefold().partition(".")
    kind = _BY_WORD.get(first)
    return kind if kind is not None and group in {"", kind.group, f"v1.{kind.group}"} else None
