"""The two kinds through the eyes of the official Python client, which shares no code with swapwarden.kube."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import kubernetes.client
import kubernetes.config
import pytest
from swapwarden.api import names

from testbed.controlplane.servers import ControlPlane

KIND = (names.GROUP, names.VERSION, names.PROFILE_PLURAL)


@pytest.fixture
def objects(crds: ControlPlane) -> Iterator[kubernetes.client.CustomObjectsApi]:
    connect: Any = kubernetes.config.new_client_from_config  # its types are incomplete
    with connect(str(crds.kubeconfig)) as client:
        yield kubernetes.client.CustomObjectsApi(client)


def test_a_profile_is_created_with_defaults_and_read_back(objects: kubernetes.client.CustomObjectsApi) -> None:
    name = f"official-{uuid.uuid4().hex[:8]}"
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.PROFILE_KIND,
        "metadata": {"name": name},
        "spec": {"nodeSelector": {}, "swap": {"behavior": "NoSwap"}},
    }
    objects.create_cluster_custom_object(*KIND, body=body)
    try:
        read: Any = objects.get_cluster_custom_object(*KIND, name=name)
        assert read["spec"]["swap"]["behavior"] == "NoSwap"
        assert (read["spec"]["mode"], read["spec"]["priority"]) == ("Enforce", 100)
    finally:
        objects.delete_cluster_custom_object(*KIND, name=name)


def test_a_profile_that_is_wrong_is_refused_with_the_field(objects: kubernetes.client.CustomObjectsApi) -> None:
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.PROFILE_KIND,
        "metadata": {"name": "wrong"},
        "spec": {"nodeSelector": {}, "swap": {"behavior": "Sometimes"}},
    }
    with pytest.raises(kubernetes.client.ApiException) as refusal:
        objects.create_cluster_custom_object(*KIND, body=body)
    assert refusal.value.status == 422
    assert "spec.swap.behavior" in str(refusal.value.body)
