"""The manifests agree with the code, and with themselves."""

from __future__ import annotations

import argparse
import base64
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import swapwarden
import yaml
from swapwarden.api import names, quantity, runtime_link
from swapwarden.controller import app
from swapwarden.controller.watches import restore_request
from swapwarden.kube import config
from swapwarden.policy.admission import pod_annotations
from swapwarden.policy.observed import namespaces
from swapwarden.telemetry import server as telemetry
from swapwarden.webhook import bodies, connections, review, server

from testbed.base import paths
from testbed.product import manifests
from tests.integration.conftest import Json

NAMESPACE = "swapwarden-system"
EXCLUDED = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]}
OF_SWAP = {names.POLICY_ANNOTATION, names.LIMIT_ANNOTATION, names.POLICY_SOURCE_ANNOTATION}
ALL_KEYS = {rule.key for rule in pod_annotations.RULES if not rule.per_container}
OF_MEMORY = ALL_KEYS - OF_SWAP
AMOUNTS = {names.LIMIT_ANNOTATION, names.MEMORY_LOW_ANNOTATION, names.MEMORY_HIGH_ANNOTATION}
POLICIES = [policy.value for policy in names.Policy]


@functools.cache
def documents() -> tuple[Json, ...]:
    files = sorted(manifests.folder().glob("*.yaml"))
    return tuple(each for path in files for each in manifests.read(path.read_text(encoding="utf-8")))


def of_kind(*kinds: str) -> list[Json]:
    return [document for document in documents() if document["kind"] in kinds]


def expressions(value: Any) -> Iterator[str]:
    """Every CEL expression below a value."""
    if isinstance(value, dict):
        for key, child in value.items():
            if key in {"expression", "messageExpression"}:
                yield child
            else:
                yield from expressions(child)
    elif isinstance(value, list):
        for child in value:
            yield from expressions(child)


def path_of(entry: Json) -> str:
    service = entry["clientConfig"]["service"]
    assert (service["namespace"], service["name"]) == (NAMESPACE, "swapwarden-webhook")
    return str(service["path"])


def webhooks() -> list[Json]:
    """The entries of the registration: for a pod's own keys, for warnings, and one for each default."""
    (configuration,) = of_kind("MutatingWebhookConfiguration")
    return list(configuration["webhooks"])


def test_every_object_says_what_it_belongs_to() -> None:
    for document in documents():
        assert document["metadata"]["labels"]["app.kubernetes.io/name"] == "swapwarden", document["metadata"]["name"]


def test_no_object_exists_twice() -> None:
    keys = [(document["kind"], document["metadata"]["name"]) for document in documents()]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("number", range(2 + len(POLICIES)))
def test_how_each_webhook_is_called(number: int) -> None:
    entry = webhooks()[number]
    assert entry["failurePolicy"] == ("Ignore" if number == 1 else "Fail"), "only what counts may wait"
    assert entry["timeoutSeconds"] == 5
    assert entry["timeoutSeconds"] < connections.READ_TIMEOUT
    assert entry["sideEffects"] == "None"
    assert entry["matchPolicy"] == "Equivalent"
    assert entry["admissionReviewVersions"] == ["v1"]
    assert EXCLUDED in entry["namespaceSelector"]["matchExpressions"]
    assert "caBundle" not in entry["clientConfig"]
    (rule,) = entry["rules"]
    assert (rule["apiGroups"], rule["resources"], rule["scope"]) == ([""], ["pods"], "Namespaced")
    assert rule["operations"] == ["CREATE"], "no update ever waits for the webhook"
    assert entry["reinvocationPolicy"] == "IfNeeded", "it is called again when others change the pod"
    assert any(names.CONFIG_MIRROR_ANNOTATION in text for text in expressions(entry))


def test_each_policy_has_a_default_entry_that_leads_to_its_path() -> None:
    own, warnings, *defaults = webhooks()
    found = {
        entry["namespaceSelector"]["matchLabels"][names.DEFAULT_POLICY_LABEL]: path_of(entry) for entry in defaults
    }
    assert found == {policy: f"/pods/{policy.lower()}" for policy in POLICIES}
    assert path_of(own) == path_of(warnings) == "/pods"
    assert {path_of(own), *found.values()} == server.ROUTES.keys()


def test_a_pod_is_sent_with_its_own_keys_before_any_default() -> None:
    own = webhooks()[0]
    assert "matchLabels" not in own["namespaceSelector"], "a pod that has just got its default is not sent again"


def test_there_is_one_registration() -> None:
    assert of_kind("ValidatingWebhookConfiguration") == []


def test_match_conditions_avoid_fields_that_are_nil_there() -> None:
    assert not any("namespaceObject" in text for entry in webhooks() for text in expressions(entry))


def test_wherever_our_annotations_are_listed_all_of_them_are() -> None:
    lists = [
        (set(re.findall(r"'([^']*)'", listed)), text)
        for document in documents()
        for text in expressions(document)
        for listed in re.findall(r"in \[('swapwarden\.dev/[^\]]*)\]", text)
    ]
    assert sum(keys == ALL_KEYS for keys, _ in lists) >= 5
    for keys, text in lists:
        # The webhook completes nothing about memory; choices have a list of their own.
        assert keys in (ALL_KEYS, OF_SWAP, OF_MEMORY, ALL_KEYS - AMOUNTS), keys
        if names.LIMIT_ANNOTATION in keys:
            assert f"startsWith('{names.CONTAINER_LIMIT_PREFIX}')" in text
        if names.MEMORY_HIGH_ANNOTATION in keys:
            assert f"startsWith('{names.CONTAINER_HIGH_PREFIX}')" in text


def test_the_namespace_label_is_checked_against_the_policies_that_are_understood() -> None:
    checked, unknown = (
        document for document in of_kind("ValidatingAdmissionPolicy") if "namespace" in document["metadata"]["name"]
    )
    (accepted,) = (each["expression"] for each in checked["spec"]["variables"] if each["name"] == "accepted")
    assert sorted(yaml.safe_load(accepted)) == sorted(POLICIES)
    selectors = unknown["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert {"key": names.DEFAULT_POLICY_LABEL, "operator": "Exists"} in selectors
    (values,) = (each["values"] for each in selectors if each["key"] == names.DEFAULT_POLICY_LABEL and "values" in each)
    assert sorted(values) == sorted(POLICIES)
    assert EXCLUDED in selectors
    texts = " ".join(expressions([checked, unknown]))
    assert all(f'"{policy}"' in texts for policy in POLICIES)


def test_the_controller_may_change_the_labels_that_it_has() -> None:
    (policy,) = (
        document
        for document in of_kind("ValidatingAdmissionPolicy")
        if document["metadata"]["name"] == "swapwarden-controller-nodes"
    )
    (own,) = (each["expression"] for each in policy["spec"]["variables"] if each["name"] == "own")
    assert set(yaml.safe_load(own)) == set(names.NODE_LABELS)


def test_every_policy_is_in_force_and_fails_closed() -> None:
    policies = {document["metadata"]["name"]: document["spec"] for document in of_kind("ValidatingAdmissionPolicy")}
    bindings = [document["spec"] for document in of_kind("ValidatingAdmissionPolicyBinding")]
    assert {binding["policyName"] for binding in bindings} == policies.keys()
    assert len(bindings) == len(policies)
    # Pods of templates are checked in any case.
    lenient = {"swapwarden-templates", "swapwarden-cronjob-templates", "swapwarden-pod-memory-without-effect"}
    for binding in bindings:
        warns = binding["policyName"] in lenient
        assert binding["validationActions"] == (["Warn"] if warns else ["Deny"])
        assert policies[binding["policyName"]]["failurePolicy"] == ("Ignore" if warns else "Fail")
    assert all(
        "message" in validation or "messageExpression" in validation
        for spec in policies.values()
        for validation in spec["validations"]
    )


def test_policies_about_service_accounts_name_ones_that_exist() -> None:
    accounts = {document["metadata"]["name"] for document in of_kind("ServiceAccount")}
    assert accounts == {"swapwarden-agent", "swapwarden-controller", "swapwarden-nri", "swapwarden-webhook"}
    named = {
        name
        for document in documents()
        for text in expressions(document)
        for name in re.findall(r"system:serviceaccount:swapwarden-system:([\w-]+)", text)
    }
    # The last one exists only during its hook.
    assert named == {"swapwarden-agent", "swapwarden-controller", "swapwarden-uninstall"}


def test_nobody_gets_everything_nor_secrets_of_others() -> None:
    (secret,), (order,) = of_kind("Secret"), of_kind("ConfigMap")
    for role in of_kind("ClusterRole", "Role"):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"serviceaccounts/token", "pods/exec"} & set(rule["resources"])
            if "configmaps" in rule["resources"]:
                assert (rule["resourceNames"], rule["verbs"]) == ([order["metadata"]["name"]], ["get"])
            if "secrets" in rule["resources"]:
                assert role["metadata"]["name"] == "swapwarden-controller"
                assert rule["resourceNames"] == [secret["metadata"]["name"]]
                assert set(rule["verbs"]) == {"get", "update"}
            assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])


def test_roles_go_to_the_account_of_their_name() -> None:
    for binding in of_kind("ClusterRoleBinding", "RoleBinding"):
        (subject,) = binding["subjects"]
        assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", NAMESPACE)
        assert subject["name"] == binding["roleRef"]["name"] == binding["metadata"]["name"]


def test_flows_cover_all_that_an_account_may_ask_for() -> None:
    flows = {document["metadata"]["name"]: document["spec"] for document in of_kind("FlowSchema")}
    assert set(flows) == {"swapwarden-agent", "swapwarden-controller", "swapwarden-leader-election"}
    for name, spec in flows.items():
        (rule,) = spec["rules"]
        (subject,) = rule["subjects"]
        account = "swapwarden-controller" if name == "swapwarden-leader-election" else name
        assert subject["serviceAccount"] == {"name": account, "namespace": NAMESPACE}
        # Behind what Kubernetes itself needs, before what all service accounts get.
        assert 900 < spec["matchingPrecedence"] < 9000
    assert (
        flows["swapwarden-leader-election"]["matchingPrecedence"] < flows["swapwarden-controller"]["matchingPrecedence"]
    )
    (role,) = (each for each in of_kind("ClusterRole") if each["metadata"]["name"] == "swapwarden-agent")
    (covered,) = flows["swapwarden-agent"]["rules"][0]["resourceRules"]
    for rule in role["rules"]:
        for key in ("apiGroups", "resources", "verbs"):
            assert set(rule[key]) <= set(covered[key])


def test_the_webhook_has_no_rights_and_no_token() -> None:
    (account,) = (each for each in of_kind("ServiceAccount") if each["metadata"]["name"] == "swapwarden-webhook")
    assert account["automountServiceAccountToken"] is False
    bound = {binding["subjects"][0]["name"] for binding in of_kind("ClusterRoleBinding", "RoleBinding")}
    assert bound == {"swapwarden-agent", "swapwarden-controller"}


@pytest.mark.parametrize("part", ["agent", "controller"])
def test_tokens_are_valid_for_an_hour_and_no_other_is_mounted(part: str) -> None:
    (account,) = (each for each in of_kind("ServiceAccount") if each["metadata"]["name"] == f"swapwarden-{part}")
    assert account["automountServiceAccountToken"] is False
    assert "automountServiceAccountToken" not in pod_of(part)
    (volume,) = (each for each in pod_of(part)["volumes"] if each["name"] == "token")
    sources = {kind: source for each in volume["projected"]["sources"] for kind, source in each.items()}
    # API servers extend those of 3607 seconds (k/k: pkg/serviceaccount/claims.go) and no others.
    assert sources["serviceAccountToken"] == {"path": "token", "expirationSeconds": 3600}
    assert sources["configMap"] == {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    assert [each["path"] for each in sources["downwardAPI"]["items"]] == ["namespace"]
    (mount,) = (each for each in container_of(part)["volumeMounts"] if each["name"] == "token")
    assert (mount["mountPath"], mount["readOnly"]) == (str(config.SERVICE_ACCOUNT), True)


# --- workloads ---

PARTS = ("agent", "controller", "nri", "webhook")


def workloads() -> dict[str, Json]:
    """The DaemonSets and the Deployments by name."""
    return {document["metadata"]["name"]: document for document in of_kind("Deployment", "DaemonSet")}


def pod_of(part: str) -> Json:
    spec: Json = workloads()[f"swapwarden-{part}"]["spec"]["template"]["spec"]
    return spec


def container_of(part: str) -> Json:
    (container,) = pod_of(part)["containers"]
    found: Json = container
    return found


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_started_as_its_command_line_allows(part: str) -> None:
    module = importlib.import_module(f"swapwarden.{part}.main")
    parser = argparse.ArgumentParser(exit_on_error=False)
    module.add_arguments(parser)
    container = container_of(part)
    command, *arguments = container["args"]
    assert command == part
    parsed = parser.parse_args(arguments)
    if part == "nri":
        assert not {"ports", "startupProbe", "livenessProbe", "readinessProbe"} & container.keys(), "it has no network"
        return
    address = parsed.metrics_address
    _, port = telemetry.parse_address(address) if isinstance(address, str) else address
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports["metrics"] == port
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "metrics"


def test_the_controller_keeps_the_certificate_that_the_webhook_reads() -> None:
    arguments = [argument.lstrip("-").partition("=") for argument in container_of("controller")["args"]]
    flags = {name: value for name, _, value in arguments}
    (secret,) = of_kind("Secret")
    assert "data" not in secret
    (volume,) = pod_of("webhook")["volumes"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"] == f"{flags['webhook-service']}-tls"
    (service,) = of_kind("Service")
    assert service["metadata"]["name"] == flags["webhook-service"]
    (configuration,) = of_kind("MutatingWebhookConfiguration")
    assert configuration["metadata"]["name"] == flags["webhook-registration"]
    items = {item["key"]: f"/tls/{item['path']}" for item in volume["secret"]["items"]}
    its = dict(argument.lstrip("-").split("=", 1) for argument in container_of("webhook")["args"][1:])
    assert (items["tls.crt"], items["tls.key"]) == (its["tls-cert"], its["tls-key"])


def test_the_controller_knows_the_agents_pods_by_what_the_chart_gives_them() -> None:
    assert "--agent-pods" in container_of("controller")["args"]
    labels = workloads()["swapwarden-agent"]["spec"]["template"]["metadata"]["labels"]
    assert names.AGENT_LABELS.items() <= labels.items()
    assert {each["metadata"]["namespace"] for each in of_kind("DaemonSet", "Deployment")} == {"swapwarden-system"}


def test_the_order_to_restore_is_not_given() -> None:
    (order,) = of_kind("ConfigMap")
    assert order["metadata"]["name"] == restore_request.CONFIG_MAP
    assert order["data"].keys() == {restore_request.KEY}
    assert order["data"][restore_request.KEY] != restore_request.YES


def test_objects_that_controllers_make_are_removed_with_the_rest() -> None:
    (lease,) = of_kind("Lease")
    assert lease["metadata"]["name"] == app.LEASE


def test_the_service_leads_to_the_webhook() -> None:
    (service,) = of_kind("Service")
    ports = {each["name"]: each["containerPort"] for each in container_of("webhook")["ports"]}
    assert [(each["port"], ports[each["targetPort"]]) for each in service["spec"]["ports"]] == [(443, 8443)]
    assert service["metadata"]["name"] == "swapwarden-webhook"


@pytest.mark.parametrize("part", PARTS)
def test_each_part_has_only_needed_rights_on_its_node(part: str) -> None:
    pod, container = pod_of(part), container_of(part)
    assert not {"hostPID", "hostIPC", "hostNetwork", "hostUsers", "shareProcessNamespace"} & pod.keys()
    assert "initContainers" not in pod
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert all("hostPort" not in port for port in container.get("ports", ()))


def test_only_the_parts_on_every_node_are_root_and_see_the_host() -> None:
    own = {"cgroup": "/sys/fs/cgroup", "run": "/run/swapwarden", "state": "/var/lib/swapwarden"}
    for part, expected in (
        ("agent", {**own, "nri": runtime_link.FOLDER}),
        ("nri", {"runtime": "/var/run/nri", "link": runtime_link.FOLDER}),
    ):
        assert pod_of(part)["securityContext"]["runAsUser"] == 0
        volumes = [volume for volume in pod_of(part)["volumes"] if "hostPath" in volume]
        assert {volume["name"]: volume["hostPath"]["path"] for volume in volumes} == expected
    for part in ("controller", "webhook"):
        assert pod_of(part)["securityContext"]["runAsNonRoot"] is True
        assert pod_of(part)["securityContext"]["runAsUser"] == 65532
        assert all("hostPath" not in volume for volume in pod_of(part).get("volumes", []))


def test_the_agent_reads_the_mounted_paths() -> None:
    mounts = {mount["name"]: mount["mountPath"] for mount in container_of("agent")["volumeMounts"]}
    flags = dict(argument.lstrip("-").split("=", 1) for argument in container_of("agent")["args"][1:])
    folders = {"cgroup": flags["cgroup-root"], "run": flags["run-dir"], "state": flags["state-dir"]}
    folders["nri"] = flags["nri-dir"]
    assert mounts == {"token": str(config.SERVICE_ACCOUNT), **folders}
    environment = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container_of("agent")["env"]}
    assert environment == {"NODE_NAME": "spec.nodeName", "POD_UID": "metadata.uid"}


def test_a_node_is_never_without_an_agent_nor_the_api_server_without_a_webhook() -> None:
    agent = workloads()["swapwarden-agent"]["spec"]
    assert agent["updateStrategy"]["rollingUpdate"] == {"maxSurge": "10%", "maxUnavailable": 0}
    assert pod_of("agent")["tolerations"] == [{"operator": "Exists"}]
    assert pod_of("agent")["priorityClassName"] == "system-node-critical"
    for part in ("controller", "webhook"):
        spec = workloads()[f"swapwarden-{part}"]["spec"]
        assert spec["replicas"] == 2
        assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        assert {each["topologyKey"] for each in pod_of(part)["topologySpreadConstraints"]} == {
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        }
    budgets = {each["metadata"]["name"]: each["spec"]["maxUnavailable"] for each in of_kind("PodDisruptionBudget")}
    assert budgets == {"swapwarden-controller": 1, "swapwarden-webhook": 1}


def test_the_webhook_ends_before_it_is_killed() -> None:
    flags = dict(argument.lstrip("-").split("=", 1) for argument in container_of("webhook")["args"][1:])
    assert float(flags["shutdown-delay"]) + connections.READ_TIMEOUT < pod_of("webhook").get(
        "terminationGracePeriodSeconds", 30
    )


def test_what_selects_pods_selects_those_of_one_part() -> None:
    labels = {name: document["spec"]["template"]["metadata"]["labels"] for name, document in workloads().items()}
    found = [(document, document["spec"]["selector"]) for document in of_kind("Service")]
    found += [(document, document["spec"]["podSelector"]["matchLabels"]) for document in of_kind("NetworkPolicy")]
    found += [
        (document, document["spec"]["selector"]["matchLabels"])
        for document in of_kind("Deployment", "DaemonSet", "PodDisruptionBudget")
    ]
    found += [
        (document, each["labelSelector"]["matchLabels"])
        for document in of_kind("Deployment")
        for each in document["spec"]["template"]["spec"]["topologySpreadConstraints"]
    ]
    assert len(found) == 15
    for document, selector in found:
        selected = [name for name, pod in labels.items() if selector.items() <= pod.items()]
        assert selected == [document["metadata"]["name"]]


@pytest.mark.parametrize("part", PARTS)
def test_the_memory_of_each_part_is_limited(part: str) -> None:
    resources = container_of(part)["resources"]
    assert resources["limits"].keys() == {"memory"}, "a limit of CPU would slow down repairs and answers"
    assert quantity.capped(resources["requests"]["memory"]) < quantity.capped(resources["limits"]["memory"])


def test_the_webhook_s_memory_is_enough_for_all_that_clients_may_send() -> None:
    buffered = bodies.MAX_BUFFERED_BYTES + server.MAX_BODY_BYTES
    decoded = 300 * review.MAX_VALUES + 60 * review.MAX_QUOTES
    handshakes = 100_000 * connections.MAX_HANDSHAKES
    # Each read of a connection passes as a whole through TLS and the parser.
    held = 700_000 * connections.MAX_CONNECTIONS
    limit = quantity.capped(container_of("webhook")["resources"]["limits"]["memory"])
    assert 60 * 1024 * 1024 + buffered + decoded + handshakes + held < limit


def test_agents_stay_away_from_nodes_that_are_no_machines() -> None:
    affinity = pod_of("agent")["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    kept_away = {each["key"]: (each["operator"], each["values"]) for each in term["matchExpressions"]}
    assert kept_away == {
        "type": ("NotIn", ["virtual-kubelet"]),
        "eks.amazonaws.com/compute-type": ("NotIn", ["fargate"]),
    }


def test_network_policies_admit_calls_only() -> None:
    policies = {each["metadata"]["name"].removeprefix("swapwarden-"): each["spec"] for each in of_kind("NetworkPolicy")}
    assert policies.keys() == set(PARTS)
    for part, spec in policies.items():
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        ports = [port["port"] for rule in spec["ingress"] for port in rule["ports"]]
        assert ports == (["https"] if part == "webhook" else [])
        assert spec["egress"] == ([] if part in {"nri", "webhook"} else [{"ports": [{"protocol": "TCP"}]}])


def test_the_image_is_renamed_as_the_docs_say() -> None:
    docs = (paths.DOCS / "install.md").read_text(encoding="utf-8")
    line = re.search(r"^sed -i 's\|(.*)\|(.*)\|' build/manifests/\*\.yaml$", docs, re.MULTILINE)
    assert line
    files = sorted(manifests.folder().glob("*.yaml"))
    texts = [path.read_text(encoding="utf-8").replace(line[1], line[2]) for path in files]
    images = re.findall(r"^ +image: (.*)$", "".join(texts), re.MULTILINE)
    assert images == [f"{line[2].removeprefix('image: ')}{swapwarden.__version__}"] * len(PARTS)


def test_where_the_webhook_is_not_asked_the_plan_counts_no_default() -> None:
    selectors = [each for entry in webhooks() for each in entry["namespaceSelector"]["matchExpressions"]]
    assert selectors
    for expression in selectors:
        assert expression["operator"] == "NotIn"
        assert set(expression["values"]) == namespaces.UNDEFAULTED


# --- the testbed ---


def test_the_testbed_points_every_webhook_at_its_own(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"authority")
    text = manifests.webhook_manifests("https://127.0.0.1:1234/", (tmp_path / "ca.pem").read_text(encoding="utf-8"))
    clients = [entry["clientConfig"] for document in manifests.read(text) for entry in document["webhooks"]]
    assert [client["url"] for client in clients] == [f"https://127.0.0.1:1234{path_of(entry)}" for entry in webhooks()]
    assert {base64.b64decode(client["caBundle"]) for client in clients} == {b"authority"}
    assert all(client.keys() == {"url", "caBundle"} for client in clients)


def test_the_testbed_applies_the_namespace_first_and_forgets_nothing() -> None:
    applied = [document for path in manifests.other_manifests() for document in manifests.read(path.read_text())]
    assert applied[0]["kind"] == "Namespace"
    kinds = {"Namespace", "ServiceAccount", "Secret", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    kinds |= {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "FlowSchema"}
    wanted = of_kind(*kinds)
    assert len(applied) == len(wanted)
    assert all(document in wanted for document in applied)


def test_the_controller_prefers_control_plane_nodes_and_needs_none() -> None:
    """The kubelet's owner may have the agent's token."""
    [deployment] = [each for each in of_kind("Deployment") if each["metadata"]["name"] == "swapwarden-controller"]
    spec = deployment["spec"]["template"]["spec"]
    label = "node-role.kubernetes.io/control-plane"
    [preferred] = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"]["matchExpressions"] == [{"key": label, "operator": "Exists"}]
    assert {"key": label, "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in spec["affinity"]["nodeAffinity"]
    assert label not in spec["nodeSelector"]
