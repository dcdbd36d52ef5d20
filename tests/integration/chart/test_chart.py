"""The chart, rendered by helm from several sets of values: what it makes of them, and what the API server says."""

from __future__ import annotations

import copy
import http
import json
import shutil
from pathlib import Path

import pytest
import yaml
from swapwarden.agent.reconcile import settings
from swapwarden.api import runtime_link

from deploy.build import image
from hack.generate import chart, uncommitted
from monitoring import alerts, generate
from testbed.base import paths, process
from testbed.controlplane.servers import ControlPlane
from testbed.product import helm, manifests
from tests.integration import needs
from tests.integration.conftest import Json

PROFILES = {
    "batch": {"nodeSelector": {"matchLabels": {"pool": "batch"}}, "swap": {"behavior": "LimitedSwap"}},
    "audited": {"nodeSelector": {}, "mode": "Audit", "priority": 1, "swap": {"reserved": "10%"}},
}
PLACEMENT: Json = {
    "nodeSelector": {"pool": "infra"},
    "tolerations": [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {}},
    "podLabels": {"team": "nodes"},
    "podAnnotations": {"example.com/note": "a text, with more than a label holds"},
    "priorityClassName": "",
    "annotations": {"example.com/owner": "nodes"},
    "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/a"},
    "extraArgs": ["--log-level=debug"],
    "extraEnv": [{"name": "SSL_CERT_DIR", "value": "/certs"}],
    "dnsPolicy": "Default",
}
SETS: dict[str, Json] = {
    "defaults": {},
    "small": {
        "controller": {"replicas": 1},
        "webhook": {"replicas": 1},
        "networkPolicy": {"enabled": False},
        "log": {"level": "debug", "format": "text"},
        "crds": {"keep": False},
        "flowControl": {"enabled": False},
        "agent": {"updateStrategy": {"type": "OnDelete"}},
    },
    "all": {
        "nameOverride": "limits",
        "commonLabels": {"team": "nodes"},
        "image": {"repository": "registry.example.com/swapwarden", "digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "pull"}],
        "profiles": PROFILES,
        "startupTaint": True,
        "extendedResource": True,
        "podConditions": True,
        "eviction": "Enforce",
        "admission": {
            "failurePolicy": "Ignore",
            "objectSelector": {"matchLabels": {"tier": "batch"}},
            "workloadTemplates": "Deny",
            "timeoutSeconds": 10,
        },
        "priorityClassQuota": {"create": "Always"},
        "networkPolicy": {
            "apiServer": {"cidrs": ["192.0.2.0/24", "2001:db8::/64"], "ports": [443, 6443]},
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        },
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "runbookUrl": "https://runbooks.example.com/{alert}.html",
            "disabled": ["SwapwardenSwapNearlyFull"],
            "thresholds": {"memoryStalledRatio": 0.05, "hiddenMebibytes": 1048576},
        },
        "controller": {
            **PLACEMENT,
            "labelPublisher": "Auto",
            "vouchedNodes": {
                "node-restriction.kubernetes.io/swap": "encrypted",
                "a.node-restriction.kubernetes.io/b": "",
            },
        },
        "webhook": {**PLACEMENT, "port": 9443, "metricsPort": 9081, "hostNetwork": True},
        "agent": {
            **PLACEMENT,
            "realtime": True,
            "seLinuxOptions": {"type": "spc_t"},
            "dropIns": {"mount": True, "prefix": r"my\x2droot-kubepods", "slices": ["system.slice", r"a-b\x2dc.slice"]},
        },
        "grafanaDashboard": {"enabled": True, "annotations": {"grafana_folder": "Nodes"}},
        "nri": {**PLACEMENT, "mode": "required", "socketDir": "/run/nri", "seLinuxOptions": {"type": "spc_t"}},
        "openshift": {"securityContextConstraints": True},
    },
    "without nri": {"nri": {"mode": "off"}},
    "without webhook": {
        "nri": {"mode": "required"},
        "admission": {"mode": "Policy", "objectSelector": {"matchLabels": {"tier": "batch"}}},
        "certificates": {"source": "CertManager"},
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
    },
    "cert-manager": {"fullnameOverride": "sw", "certificates": {"source": "CertManager"}},
    "own issuer": {
        "certificates": {
            "source": "CertManager",
            "certManager": {"issuerRef": {"group": "cert-manager.io", "kind": "ClusterIssuer", "name": "corporate"}},
        }
    },
}
ONE_IN_A_CLUSTER = {
    ("Lease", "swapwarden-controller"),
    ("ConfigMap", "swapwarden-uninstall"),
    ("ValidatingAdmissionPolicy", "swapwarden-namespace-default"),
    ("ValidatingAdmissionPolicyBinding", "swapwarden-namespace-default"),
}
"""Whatever a release is called, its controllers must meet there with those of others, or Helm refuse it."""
FOREIGN = Path(__file__).parent / "foreign"
"""Kinds of others that the chart uses."""


def rendered(folder: Path, values: Json, *options: str) -> list[Json]:
    path = folder / "values.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    key = (path.read_bytes(), options)
    if key not in RENDERED:
        RENDERED[key] = manifests.read(helm.render(f"--values={path}", *options))
    return copy.deepcopy(RENDERED[key])


RENDERED: dict[tuple[bytes, tuple[str, ...]], list[Json]] = {}
"""Rendered objects by values and options: half a second each, and many tests need the same."""


def named(documents: list[Json], kind: str) -> dict[str, Json]:
    return {document["metadata"]["name"]: document for document in documents if document["kind"] == kind}


def pods(documents: list[Json]) -> list[Json]:
    """The specs of all pods."""
    workloads = [each for kind in ("Deployment", "DaemonSet", "Job") for each in named(documents, kind).values()]
    return [each["spec"]["template"]["spec"] for each in workloads]


class Server:
    """An API server that is asked about objects and keeps none."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.cp = control_plane
        self._kinds: dict[tuple[str, str], Json] = {}
        self._accepted: set[str] = set()
        """Most objects are in several sets."""

    def accepts(self, document: Json) -> str:
        """Ask, strictly: a field that the API server does not know is an error. Return what it says against it."""
        text = json.dumps(document, sort_keys=True)
        if text in self._accepted:
            return ""
        path = f"{self._path(document)}?dryRun=All&fieldManager=test&force=true&fieldValidation=Strict"
        status, answer = self.cp.request("PATCH", path, document, content_type="application/apply-patch+yaml")
        if status >= http.HTTPStatus.BAD_REQUEST:
            return str(answer["message"])
        self._accepted.add(text)
        return ""

    def _path(self, document: Json) -> str:
        version, kind, metadata = document["apiVersion"], document["kind"], document["metadata"]
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._kinds:
            found = self.cp.get(group)["resources"]
            self._kinds |= {(version, each["kind"]): each for each in found if "/" not in each["name"]}
        resource = self._kinds[version, kind]
        inside = f"/namespaces/{metadata.get('namespace', 'default')}" if resource["namespaced"] else ""
        return f"{group}{inside}/{resource['name']}/{metadata['name']}"


@pytest.fixture(scope="module")
def namespace(crds: ControlPlane) -> Server:
    """The API server with the namespace that releases are rendered for, and the kinds of others."""
    crds.request("POST", "/api/v1/namespaces", {"metadata": {"name": helm.NAMESPACE}})
    crds.apply_crds(FOREIGN)
    return Server(crds)


@pytest.mark.parametrize("command", [("template", helm.RELEASE), ("lint",)])
def test_a_chart_without_its_generated_files_is_refused(command: tuple[str, ...], cloned: Path, tmp_path: Path) -> None:
    for values in SETS.values():
        path = tmp_path / "values.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        with pytest.raises(process.ProcessError, match=r"files/\S+ is missing from the chart: run `make chart`"):
            helm.run(*command, str(cloned), f"--values={path}", f"--namespace={helm.NAMESPACE}")


def test_a_chart_whose_files_are_made_step_by_step_is_refused_until_it_has_all(cloned: Path) -> None:
    for path, text in uncommitted.of_chart().items():
        with pytest.raises(process.ProcessError, match="run `make chart`"):
            helm.render(folder=cloned)
        new = cloned / path.relative_to(paths.CHART)
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(str(text), encoding="utf-8")
    assert helm.render(folder=cloned) == helm.render()


def test_a_file_that_the_values_need_not_is_missed_as_well(tmp_path: Path) -> None:
    shutil.copytree(helm.chart(), folder := tmp_path / "chart")
    for path in sorted((folder / "files").rglob("*.*")):
        path.rename(aside := tmp_path / path.name)
        for command in (("template", helm.RELEASE), ("lint",)):
            with pytest.raises(process.ProcessError, match=f"{path.name} is missing from the chart: run `make chart`"):
                helm.run(*command, str(folder), "--set=crds.install=false")
        aside.rename(path)
    assert helm.render(folder=folder) == helm.render()


def test_the_chart_of_a_commit_is_complete(tmp_path: Path) -> None:
    try:
        image.take_sources("HEAD", tmp_path / "tree")
    except image.NoCommitError as error:
        pytest.skip(str(error))
    assert helm.render(folder=tmp_path / "tree" / paths.CHART.relative_to(paths.ROOT))


def test_helm_finds_nothing_wrong(tmp_path: Path) -> None:
    for name, values in SETS.items():
        path = tmp_path / "values.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        helm.run("lint", "--strict", str(helm.chart()), f"--values={path}", f"--namespace={helm.NAMESPACE}")
        assert name


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs.MUTATING_POLICIES if name == "without webhook" else ()) for name in SETS],
)
def test_the_api_server_accepts_every_object(name: str, namespace: Server, tmp_path: Path) -> None:
    documents = rendered(tmp_path, SETS[name])
    assert len(documents) > 25
    for document in documents:
        assert namespace.accepts(document) == ""


def test_the_api_server_would_refuse_an_unknown_field(namespace: Server) -> None:
    account: Json = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}}
    assert namespace.accepts(account) == ""
    assert "unknown" in namespace.accepts({**account, "unknown": "x"})


@pytest.mark.parametrize("name", list(SETS))
def test_every_object_has_the_labels_of_the_release(name: str, tmp_path: Path) -> None:
    for document in rendered(tmp_path, SETS[name]):
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == helm.RELEASE
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert SETS[name].get("commonLabels", {}).items() <= labels.items()
        assert document["metadata"].get("namespace", helm.NAMESPACE) == helm.NAMESPACE


def test_names_follow_the_release_everywhere(tmp_path: Path) -> None:
    documents = rendered(tmp_path, {"fullnameOverride": "sw"}, "--namespace=elsewhere")
    crds = named(documents, "CustomResourceDefinition").values()
    text = manifests.written([document for document in documents if document not in crds])
    words = text.translate(str.maketrans("',]", "   ")).split()
    assert {word for word in words if word.startswith("swapwarden-")} == {
        "swapwarden-0.1.0",
        *(name for _, name in ONE_IN_A_CLUSTER),
    }
    assert "swapwarden-system" not in text
    assert "system:serviceaccount:elsewhere:sw-agent" in text
    assert "system:serviceaccount:elsewhere:sw-controller" in text
    assert {"sw-agent", "sw-controller", "sw-webhook"} <= named(documents, "ServiceAccount").keys()


def test_another_release_name_is_in_all_names(tmp_path: Path) -> None:
    for document in rendered(tmp_path, {"nameOverride": "other"}):
        key = document["kind"], document["metadata"]["name"]
        if key not in ONE_IN_A_CLUSTER and key[0] != "CustomResourceDefinition":
            assert key[1].startswith("swapwarden-other"), key


def test_names_of_digits_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "values.json"
    path.write_text(json.dumps({**SETS["all"], "fullnameOverride": "no", "nameOverride": ""}), encoding="utf-8")
    text = helm.run("template", "123", str(helm.chart()), "--namespace=456", f"--values={path}")
    documents = manifests.read(text)
    assert {each["metadata"].get("namespace", "456") for each in documents} == {"456"}
    assert {each["metadata"]["labels"]["app.kubernetes.io/instance"] for each in documents} == {"123"}
    assert all(isinstance(each["metadata"]["name"], str) for each in documents)
    for registration in named(documents, "MutatingWebhookConfiguration").values():
        assert registration["webhooks"][0]["namespaceSelector"]["matchExpressions"][0]["values"] == [
            "kube-system",
            "456",
        ]


@pytest.mark.parametrize(("name", "values"), [("a.b", {}), ("1a", {}), ("a", {"fullnameOverride": "1a"})])
def test_names_that_no_service_can_have_are_refused(name: str, values: Json, tmp_path: Path) -> None:
    path = tmp_path / "values.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(process.ProcessError, match="set fullnameOverride"):
        helm.run("template", name, str(helm.chart()), f"--values={path}")
    assert helm.run("template", name, str(helm.chart()), "--set=fullnameOverride=fine")


def test_kube_system_is_refused_unless_host_access_stays_allowed() -> None:
    arguments = ("template", helm.RELEASE, str(helm.chart()), "--namespace=kube-system")
    with pytest.raises(process.ProcessError, match="Install into a namespace of its own"):
        helm.run(*arguments)
    assert helm.run(*arguments, "--set=namespace.restrictHostAccess=false")


def test_values_that_are_null_are_as_good_as_none_unless_they_are_required(tmp_path: Path) -> None:
    schema = json.loads((paths.CHART / "values.schema.json").read_text(encoding="utf-8"))
    values: Json = {}
    for key, _, _ in chart.entries((paths.CHART / "values.yaml").read_text(encoding="utf-8")):
        *groups, last = key.split(".")
        below, node = schema, values
        for group in groups:
            below, node = below["properties"][group], node.setdefault(group, {})
        if last not in below.get("required", ()):
            node[last] = None
    assert {"startupTaint", "commonLabels"} <= values.keys()
    assert "tolerations" in values["agent"]
    assert rendered(tmp_path, values)
    with pytest.raises(process.ProcessError, match="resources"):
        rendered(tmp_path, {"agent": {"resources": None}})


def test_crds_are_kept_at_uninstallation_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    def policies(values: Json) -> list[str | None]:
        crds = named(rendered(tmp_path, values), "CustomResourceDefinition").values()
        return [(crd["metadata"].get("annotations") or {}).get("helm.sh/resource-policy") for crd in crds]

    assert policies({}) == ["keep", "keep"]
    assert policies({"crds": {"keep": False}}) == [None, None]
    assert policies({"crds": {"install": False}}) == []


def test_crds_are_those_of_the_repository(tmp_path: Path) -> None:
    found = named(rendered(tmp_path, {}), "CustomResourceDefinition")
    wanted = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(paths.CRDS.glob("*.yaml"))]
    assert len(wanted) == 2
    for crd in wanted:
        assert found[crd["metadata"]["name"]]["spec"] == crd["spec"]


def test_upgrades_bring_crds_first_then_agents_then_the_controller(tmp_path: Path) -> None:
    kinds = [document["kind"] for document in rendered(tmp_path, {})]
    assert kinds.index("CustomResourceDefinition") < kinds.index("DaemonSet") < kinds.index("Deployment")


def rules(documents: list[Json]) -> dict[str, Json]:
    """The alerting rules by name."""
    (rule,) = named(documents, "PrometheusRule").values()
    (group,) = rule["spec"]["groups"]
    return {each["alert"]: each for each in group["rules"]}


def test_the_rules_are_those_of_the_repository(tmp_path: Path) -> None:
    (group,) = yaml.safe_load(generate.RULES.read_text(encoding="utf-8"))["groups"]
    found = rules(rendered(tmp_path, {"prometheusRule": {"enabled": True}}))
    assert found.keys() == {each["alert"] for each in group["rules"]}
    for each in group["rules"]:
        # In the repository it is a path; a link that leads nowhere is worth less than none.
        assert each["annotations"].pop("runbook_url") == f"docs/runbooks/{each['alert']}.md"
        assert found[each["alert"]] == each
    assert not named(rendered(tmp_path, {}), "PrometheusRule")


def test_values_reach_the_rules(tmp_path: Path) -> None:
    documents = rendered(tmp_path, SETS["all"])
    found = rules(documents)
    assert "SwapwardenSwapNearlyFull" not in found
    thrashing = found["SwapwardenNodeThrashing"]
    assert thrashing["expr"].endswith("> 0.05")
    assert "a share of 0.05 of the time" in thrashing["annotations"]["description"]
    url = "https://runbooks.example.com/SwapwardenNodeThrashing.html"
    assert thrashing["annotations"]["runbook_url"] == url
    # As Helm writes a large number, which Prometheus reads as well.
    assert "1.048576e+06 * 1024 * 1024" in found["SwapwardenSwapHidesMemoryLimit"]["expr"]
    (rule,) = named(documents, "PrometheusRule").values()
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_without_a_webhook_there_are_no_alerts_about_it(tmp_path: Path) -> None:
    found = rules(rendered(tmp_path, SETS["without webhook"]))
    about = {alert.name for alert in alerts.ALERTS if alert.webhook}
    assert len(about) == 4
    assert found.keys() == {alert.name for alert in alerts.ALERTS} - about


def test_the_dashboard_is_a_config_map_that_grafana_s_sidecar_finds(tmp_path: Path) -> None:
    made = named(rendered(tmp_path, SETS["all"]), "ConfigMap")["swapwarden-limits-dashboard"]
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["metadata"]["annotations"] == {"grafana_folder": "Nodes"}
    assert f"{made['data']['swapwarden.json']}\n" == generate.DASHBOARD.read_text(encoding="utf-8")
    assert "swapwarden-dashboard" not in named(rendered(tmp_path, {}), "ConfigMap")


def test_metrics_of_agents_say_of_which_node_they_are(tmp_path: Path) -> None:
    found = named(rendered(tmp_path, {"podMonitor": {"enabled": True}}), "PodMonitor")
    targets = {
        name: [label["targetLabel"] for label in monitor["spec"]["podMetricsEndpoints"][0].get("relabelings", ())]
        for name, monitor in found.items()
    }
    # Metrics of the controller have a label of that name themselves.
    assert targets == {"swapwarden-agent": ["node"], "swapwarden-controller": [], "swapwarden-webhook": []}


def test_the_image_is_named_once(tmp_path: Path) -> None:
    def images(values: Json) -> set[str]:
        return {pod["containers"][0]["image"] for pod in pods(rendered(tmp_path, values))}

    assert images({}) == {"swapwarden:0.1.0"}
    assert images({"image": {"repository": "a/b", "tag": "c"}, "profiles": PROFILES}) == {"a/b:c"}
    digest = f"sha256:{'0' * 64}"
    assert images({"image": {"tag": "c", "digest": digest}}) == {f"swapwarden@{digest}"}


def test_values_reach_the_pods(tmp_path: Path) -> None:
    documents = rendered(tmp_path, SETS["all"])
    parts = (("DaemonSet", "agent"), ("DaemonSet", "nri"), ("Deployment", "controller"), ("Deployment", "webhook"))
    for kind, part in parts:
        template = named(documents, kind)[f"swapwarden-limits-{part}"]["spec"]["template"]
        pod = template["spec"]
        assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "infra"}
        # Were it not for that, no part could start in a cluster that is all new.
        startup = {"key": "node.swapwarden.dev/agent-not-ready", "operator": "Exists"}
        assert pod["tolerations"] == [*PLACEMENT["tolerations"], startup]
        assert "priorityClassName" not in pod
        assert pod["imagePullSecrets"] == [{"name": "pull"}]
        assert template["metadata"]["labels"]["team"] == "nodes"
        assert (
            template["metadata"]["annotations"]["example.com/note"] == PLACEMENT["podAnnotations"]["example.com/note"]
        )
        workload, account = (named(documents, each)[f"swapwarden-limits-{part}"] for each in (kind, "ServiceAccount"))
        assert workload["metadata"]["annotations"] == PLACEMENT["annotations"]
        assert account["metadata"]["annotations"] == PLACEMENT["serviceAccountAnnotations"]
        (container,) = pod["containers"]
        assert container["args"][-1] == "--log-level=debug"
        assert container["env"][-1] == {"name": "SSL_CERT_DIR", "value": "/certs"}
        assert pod["dnsPolicy"] == "Default"
    for daemons in named(documents, "DaemonSet").values():
        assert daemons["spec"]["template"]["spec"]["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}


def test_the_agent_has_a_capability_only_where_it_is_to_run_before_others(tmp_path: Path) -> None:
    def agent(values: Json) -> tuple[Json, bool]:
        documents = rendered(tmp_path, {"agent": values})
        (container,) = named(documents, "DaemonSet")["swapwarden-agent"]["spec"]["template"]["spec"]["containers"]
        return container["securityContext"]["capabilities"], "--realtime" in container["args"]

    assert agent({}) == ({"drop": ["ALL"]}, False)
    assert agent({"realtime": True}) == ({"drop": ["ALL"], "add": ["SYS_NICE"]}, True)


def test_the_agent_is_given_files_of_the_kernel_one_by_one_and_only_on_request(tmp_path: Path) -> None:
    def agent(values: Json) -> tuple[dict[str, str], list[str]]:
        documents = rendered(tmp_path, {"agent": {"kernel": values}})
        pod = named(documents, "DaemonSet")["swapwarden-agent"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        hosts = {each["name"]: each["hostPath"] for each in pod["volumes"] if "hostPath" in each}
        places = {
            each["mountPath"]: hosts[each["name"]]["path"]
            for each in container["volumeMounts"]
            if hosts.get(each["name"], {}).get("type") == "File"
        }
        return places, [argument for argument in container["args"] if argument.endswith(("/host/vm", "/host/zswap"))]

    assert agent({}) == ({}, [])
    places, flags = agent({"vm": True, "zswap": True})
    assert flags == [
        f"{place.flag}=/host/{place.flag[2:].partition('-')[0]}" for place in (settings.VM, settings.ZSWAP)
    ]
    assert places == {
        f"/host/{setting.folder.flag[2:].partition('-')[0]}/{setting.file}": f"{setting.folder.host}/{setting.file}"
        for setting in settings.SETTINGS.values()
    }
    assert len(agent({"vm": True})[0]) == 4


def test_the_agent_is_given_the_kubelets_configuration_only_on_request_and_only_to_read(tmp_path: Path) -> None:
    def given(**values: str) -> dict[str, Json]:
        documents = rendered(tmp_path, {"agent": values})
        pod = named(documents, "DaemonSet")["swapwarden-agent"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        flags = dict(each.split("=", 1) for each in container["args"] if each.startswith("--kubelet-config"))
        hosts = {each["name"]: each["hostPath"] for each in pod["volumes"] if "hostPath" in each}
        mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
        assert all(mounts[path]["readOnly"] for path in flags.values())
        return {flag: hosts[mounts[path]["name"]] for flag, path in flags.items()}

    assert given() == {}
    file, folder = "/var/lib/kubelet/config.yaml", "/etc/kubernetes/kubelet.conf.d"
    assert given(kubeletConfig=file) == {"--kubelet-config": {"path": file, "type": "File"}}
    assert given(kubeletConfig=file, kubeletConfigDir=folder) == {
        "--kubelet-config": {"path": file, "type": "File"},
        "--kubelet-config-dir": {"path": folder, "type": "Directory"},
    }


def test_only_the_extended_resource_brings_the_right_to_write_the_status_of_nodes(tmp_path: Path) -> None:
    def who_may(values: Json) -> set[str]:
        roles = named(rendered(tmp_path, values), "ClusterRole")
        return {
            name
            for name, role in roles.items()
            for rule in role["rules"]
            if any("nodes/status" in resource for resource in rule["resources"])
        }

    assert who_may({}) == set()
    assert who_may({"extendedResource": True}) == {"swapwarden-controller", "swapwarden-uninstall"}
    [deployment] = [
        each
        for each in rendered(tmp_path, {"extendedResource": True})
        if (each["kind"], each["metadata"]["name"]) == ("Deployment", "swapwarden-controller")
    ]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert "--extended-resource" in container["args"]


def test_only_the_pod_condition_brings_the_right_to_write_the_status_of_pods(
    tmp_path: Path,
) -> None:
    def found(values: Json) -> tuple[set[str], bool, bool]:
        documents = rendered(tmp_path, values)
        roles = named(documents, "ClusterRole").items()
        may = {name for name, role in roles for rule in role["rules"] if "pods/status" in rule["resources"]}
        [container] = named(documents, "Deployment")["swapwarden-controller"]["spec"]["template"]["spec"]["containers"]
        held = "swapwarden-controller-pods" in named(documents, "ValidatingAdmissionPolicyBinding")
        return may, held, "--pod-conditions" in container["args"]

    assert found({}) == (set(), False, False)
    assert found({"podConditions": True}) == ({"swapwarden-controller"}, True, True)


def test_a_value_gives_the_right_to_evict_and_the_policy_that_holds_it(tmp_path: Path) -> None:
    def found(values: Json) -> tuple[set[str], list[str], list[str]]:
        documents = rendered(tmp_path, values)
        roles = named(documents, "ClusterRole").items()
        may = {name for name, role in roles for rule in role["rules"] if "pods/eviction" in rule["resources"]}
        [container] = named(documents, "Deployment")["swapwarden-controller"]["spec"]["template"]["spec"]["containers"]
        policy = named(documents, "ValidatingAdmissionPolicy").get("swapwarden-controller-evictions")
        bound = "swapwarden-controller-evictions" in named(documents, "ValidatingAdmissionPolicyBinding")
        assert bound is (policy is not None)
        held = [one["message"].partition("(")[2].rstrip(")") for one in policy["spec"]["validations"]] if policy else []
        return may, held, [one for one in container["args"] if one.startswith("--eviction")]

    named_and_slow = ["deleteOptions.preconditions.uid", "deleteOptions.gracePeriodSeconds"]
    for off in ({}, {"eviction": "Off"}, {"eviction": False}):
        assert found(off) == (set(), [], [])
    dry_run = found({"eviction": "DryRun"})
    assert dry_run == ({"swapwarden-controller"}, ["dryRun", *named_and_slow], ["--eviction=DryRun"])
    assert found({"eviction": "Enforce"}) == ({"swapwarden-controller"}, named_and_slow, ["--eviction=Enforce"])


def test_who_sets_labels_needs_rights_for_it_and_no_others(tmp_path: Path) -> None:
    def found(values: Json) -> tuple[set[str], set[str]]:
        documents = rendered(tmp_path, values)
        roles = [*named(documents, "ClusterRole").values(), *named(documents, "Role").values()]
        asking = {role["kind"] for role in roles for rule in role["rules"] if "nodefeatures" in rule["resources"]}
        workloads = [*pods(documents)]
        return asking, {each for pod in workloads for each in pod["containers"][0]["args"] if "node" in each.lower()}

    assert found({}) == (set(), set())
    vouched = "--vouched-nodes=a.node-restriction.kubernetes.io/b=,node-restriction.kubernetes.io/swap=encrypted"
    assert found({"controller": SETS["all"]["controller"]}) == ({"Role"}, {"--node-features", vouched})
    assert "--label-publisher=NodeFeature" in found({"controller": {"labelPublisher": "NodeFeature"}})[1]


@pytest.mark.parametrize(
    "controller",
    [
        {"labelPublisher": "Both"},
        {"vouchedNodes": {"pool": "batch"}},
        {"vouchedNodes": {"swapwarden.dev.node-restriction.kubernetes.io/encrypted-swap": "true"}},
        {"vouchedNodes": {"node-restriction.kubernetes.io/a": "b c"}},
    ],
)
def test_labels_that_make_no_sense_are_refused(controller: Json, tmp_path: Path) -> None:
    with pytest.raises(process.ProcessError, match=rf"controller.{next(iter(controller))}|invalid propertyName"):
        rendered(tmp_path, {"controller": controller})


def test_values_reach_admission(tmp_path: Path) -> None:
    def found(values: Json) -> tuple[list[str], list[Json], list[str]]:
        documents = rendered(tmp_path, values)
        ((*entries,),) = (each["webhooks"] for each in named(documents, "MutatingWebhookConfiguration").values())
        bindings = named(documents, "ValidatingAdmissionPolicyBinding")
        actions = [each["spec"]["validationActions"] for name, each in bindings.items() if "templates" in name]
        assert len(actions) == 2
        return (
            sorted({each["failurePolicy"] for each in entries}),
            [each["objectSelector"] for each in entries if "objectSelector" in each],
            sorted({action for each in actions for action in each}),
        )

    assert found({}) == (["Fail", "Ignore"], [], ["Warn"])
    assert found(SETS["all"]) == (["Ignore"], [{"matchLabels": {"tier": "batch"}}] * 7, ["Deny"])


def test_without_the_webhook_none_of_its_objects_exists(tmp_path: Path) -> None:
    for source in ("Controller", "CertManager"):
        values = {**SETS["without webhook"], "certificates": {"source": source}}
        documents = rendered(tmp_path, values)
        others = {"MutatingWebhookConfiguration", "Service", "Secret", "Certificate", "Issuer"}
        assert not others & {document["kind"] for document in documents}
        workloads = named(documents, "Deployment") | named(documents, "DaemonSet")
        assert workloads.keys() == {"swapwarden-agent", "swapwarden-controller", "swapwarden-nri"}
        assert len(named(documents, "PodMonitor")) == 2
        (controller,) = workloads["swapwarden-controller"]["spec"]["template"]["spec"]["containers"]
        assert not any("webhook" in argument for argument in controller["args"])
        rights = {resource for role in ("ClusterRole", "Role") for each in named(documents, role).values()
                  for rule in each["rules"] for resource in rule["resources"]}  # fmt: skip
        assert not {"secrets", "mutatingwebhookconfigurations"} & rights


def test_what_stands_in_for_the_webhook_looks_at_the_pods_that_it_would_be_asked_about(tmp_path: Path) -> None:
    documents = rendered(tmp_path, {"admission": {**SETS["without webhook"]["admission"], "failurePolicy": "Ignore"}})
    completing = named(documents, "MutatingAdmissionPolicy")
    assert completing.keys() == {"swapwarden-pod-completion", "swapwarden-pod-default"}
    policies = named(documents, "ValidatingAdmissionPolicy")
    checking = (policies["swapwarden-pod-contradictions"], policies["swapwarden-pod-without-effect"])
    for policy in (*completing.values(), *checking):
        constraints = policy["spec"]["matchConstraints"]
        assert constraints["objectSelector"] == {"matchLabels": {"tier": "batch"}}
        excluded, *default = constraints["namespaceSelector"]["matchExpressions"]
        assert bool(default) is (policy["metadata"]["name"] == "swapwarden-pod-default")
        assert excluded["values"] == ["kube-system", helm.NAMESPACE]
        assert policy["spec"]["failurePolicy"] == "Ignore"
    assert policies["swapwarden-pod-values"]["spec"]["failurePolicy"] == "Fail"
    assert "objectSelector" not in policies["swapwarden-pod-values"]["spec"]["matchConstraints"]


def test_the_mode_without_webhook_says_which_kubernetes_it_needs() -> None:
    arguments = ("template", helm.RELEASE, str(helm.chart()), "--set=admission.mode=Policy")
    with pytest.raises(process.ProcessError, match=r"needs Kubernetes 1\.36 or newer.* this is v1\.35\.9"):
        helm.run(*arguments, "--kube-version=1.35.9")
    assert helm.run(*arguments, "--kube-version=1.36.0-rc.1")


def test_network_policies_name_the_api_servers(tmp_path: Path) -> None:
    policies = named(rendered(tmp_path, SETS["all"]), "NetworkPolicy")
    blocks = [{"ipBlock": {"cidr": cidr}} for cidr in ("192.0.2.0/24", "2001:db8::/64")]
    ports = [{"protocol": "TCP", "port": port} for port in (443, 6443)]
    monitoring = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    for part in ("agent", "controller"):
        spec = policies[f"swapwarden-limits-{part}"]["spec"]
        assert spec["egress"] == [{"ports": ports, "to": blocks}]
        assert [rule["from"] for rule in spec["ingress"]] == [monitoring]
    webhook = policies["swapwarden-limits-webhook"]["spec"]
    assert webhook["egress"] == []
    assert [rule["from"] for rule in webhook["ingress"]] == [blocks, monitoring]
    assert named(rendered(tmp_path, SETS["small"]), "NetworkPolicy") == {}


def test_nobody_reads_metrics_unless_somebody_is_named(namespace: Server, tmp_path: Path) -> None:
    policies = named(rendered(tmp_path, {}), "NetworkPolicy")
    ingress = {name: policy["spec"]["ingress"] for name, policy in policies.items()}
    assert ingress == {
        "swapwarden-agent": [],
        "swapwarden-controller": [],
        "swapwarden-nri": [],
        "swapwarden-webhook": [{"ports": [{"protocol": "TCP", "port": "https"}]}],
    }
    assert all("Ingress" in policy["spec"]["policyTypes"] for policy in policies.values())
    cluster = (f"--kubeconfig={namespace.cp.kubeconfig}", f"--namespace={helm.NAMESPACE}", "--set=crds.install=false")
    notes = helm.run(
        "install", "notes", str(helm.chart()), "--dry-run=client", *cluster, "--set=podMonitor.enabled=true"
    )
    assert "Nobody may read the metrics yet" in notes


def webhook_pod(tmp_path: Path, values: Json) -> Json:
    pod: Json = named(rendered(tmp_path, values), "Deployment")["swapwarden-webhook"]["spec"]["template"]["spec"]
    return pod


def test_on_the_network_of_the_node_metrics_are_for_the_node_itself_unless_somebody_is_named(tmp_path: Path) -> None:
    everybody = [{"ipBlock": {"cidr": "0.0.0.0/0"}}]
    cases: list[tuple[Json, str, str | None]] = [
        ({"webhook": {"hostNetwork": True}}, "127.0.0.1:8081", "127.0.0.1"),
        ({"webhook": {"hostNetwork": True}, "networkPolicy": {"metricsFrom": everybody}}, ":8081", None),
        ({}, ":8081", None),
    ]
    for values, address, host in cases:
        pod = webhook_pod(tmp_path, values)
        (container,) = pod["containers"]
        assert f"--metrics-address={address}" in container["args"]
        probes = [container[each]["httpGet"] for each in ("startupProbe", "livenessProbe", "readinessProbe")]
        assert {probe.get("host") for probe in probes} == {host}
        assert pod.get("hostNetwork", False) is ("hostNetwork" in values.get("webhook", {}))


def test_ports_of_the_webhook_reach_all_that_names_them(tmp_path: Path) -> None:
    documents = rendered(tmp_path, {"webhook": {"port": 10250, "metricsPort": 9081}})
    (container,) = webhook_pod(tmp_path, {"webhook": {"port": 10250, "metricsPort": 9081}})["containers"]
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == {"https": 10250, "metrics": 9081}
    assert {"--port=10250", "--metrics-address=:9081"} <= set(container["args"])
    (service,) = named(documents, "Service").values()
    assert service["spec"]["ports"][0]["targetPort"] == "https"


@pytest.mark.parametrize(
    ("webhook", "says"),
    [
        ({"port": 8081}, "webhook.port and webhook.metricsPort are the same"),
        ({"port": 10250, "hostNetwork": True}, "is the kubelet's"),
    ],
)
def test_ports_that_cannot_work_are_refused(webhook: Json, says: str, tmp_path: Path) -> None:
    with pytest.raises(process.ProcessError, match=says):
        rendered(tmp_path, {"webhook": webhook})


def test_on_the_network_of_the_node_replicas_need_no_further_node_for_an_upgrade(tmp_path: Path) -> None:
    def strategy(values: Json) -> Json:
        found: Json = named(rendered(tmp_path, values), "Deployment")["swapwarden-webhook"]["spec"]["strategy"]
        return found

    assert strategy({})["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert strategy({"webhook": {"hostNetwork": True}})["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_a_quota_admits_critical_pods_where_the_cluster_asks_for_one(tmp_path: Path) -> None:
    def quotas(create: str, *options: str) -> list[Json]:
        return list(
            named(rendered(tmp_path, {"priorityClassQuota": {"create": create}}, *options), "ResourceQuota").values()
        )

    assert quotas("Auto") == quotas("Never") == quotas("Never", "--api-versions=networking.gke.io/v1") == []
    (quota,) = quotas("Always")
    assert quotas("Auto", "--api-versions=networking.gke.io/v1") == [quota]
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    classes = {pod["priorityClassName"] for pod in pods(rendered(tmp_path, {}))}
    assert classes <= set(scope["values"])


def test_flows_are_made_unless_they_are_turned_off(tmp_path: Path) -> None:
    flows = named(rendered(tmp_path, SETS["all"]), "FlowSchema")
    accounts = {name: flow["spec"]["rules"][0]["subjects"][0]["serviceAccount"]["name"] for name, flow in flows.items()}
    assert accounts == {
        "swapwarden-limits-agent": "swapwarden-limits-agent",
        "swapwarden-limits-controller": "swapwarden-limits-controller",
        "swapwarden-limits-leader-election": "swapwarden-limits-controller",
    }
    assert named(rendered(tmp_path, SETS["small"]), "FlowSchema") == {}


def test_pod_monitors_are_made_when_asked_for(tmp_path: Path) -> None:
    assert named(rendered(tmp_path, {}), "PodMonitor") == {}
    monitors = named(rendered(tmp_path, SETS["all"]), "PodMonitor")
    assert len(monitors) == 3
    for monitor in monitors.values():
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert (endpoint["port"], endpoint["interval"]) == ("metrics", "30s")


def test_the_constraints_for_openshift_allow_what_pods_with_host_paths_have_and_no_more(tmp_path: Path) -> None:
    documents = rendered(tmp_path, SETS["all"])
    found = named(documents, "SecurityContextConstraints")
    assert found.keys() == {"swapwarden-limits-agent", "swapwarden-limits-nri"}
    for name, constraints in found.items():
        pod = named(documents, "DaemonSet")[name]["spec"]["template"]["spec"]
        assert constraints["users"] == [f"system:serviceaccount:{helm.NAMESPACE}:{pod['serviceAccountName']}"]
        assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} <= set(constraints["volumes"])
        capabilities = pod["containers"][0]["securityContext"]["capabilities"]
        assert constraints["requiredDropCapabilities"] == capabilities["drop"]
        assert constraints["allowedCapabilities"] == capabilities.get("add", [])
        assert [key for key, value in constraints.items() if key.startswith("allow") and value is True] == [
            "allowHostDirVolumePlugin"
        ]


def mounts_of(pod: Json, container: Json, *, writable: bool) -> dict[str, str]:
    """The host paths of a container by where they are mounted, either those that it can write to or the others."""
    paths = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
    return {
        each["mountPath"]: paths[each["name"]]
        for each in container["volumeMounts"]
        if each["name"] in paths and each.get("readOnly", False) is not writable
    }


DROP_INS: list[tuple[Json, set[str], list[str]]] = [
    (
        {"mount": True, "prefix": prefix},
        {"--drop-in-dir=/host/drop-ins"},
        [f"drop-ins/{prefix}-{name}-.slice.d" for name in ("burstable", "besteffort")],
    )
    for prefix in ("kubepods", "kubelet-kubepods")
]
DROP_INS.append(
    (
        {"slices": ["system.slice", "a-b.slice"]},
        {"--slice-drop-in-dir=/host/slice-drop-ins"},
        ["slice-drop-ins/system.slice.d", "slice-drop-ins/a-b.slice.d"],
    )
)


@pytest.mark.parametrize(("values", "flags", "folders"), DROP_INS)
def test_only_containers_that_end_can_write_drop_ins(
    values: Json, flags: set[str], folders: list[str], tmp_path: Path
) -> None:
    def agent(given: Json) -> Json:
        found: Json = named(rendered(tmp_path, {"agent": {"dropIns": given}}), "DaemonSet")
        pod: Json = found["swapwarden-agent"]["spec"]["template"]["spec"]
        return pod

    added = {f"/host/{each}": f"/etc/systemd/system/{each.partition('/')[2]}" for each in folders}
    usual, pod = agent({}), agent(values)
    (before,), (container,), (init,) = usual["containers"], pod["containers"], pod["initContainers"]
    assert "initContainers" not in usual
    assert not [path for path in mounts_of(usual, before, writable=True).values() if path.startswith("/etc")]
    assert mounts_of(pod, container, writable=True) == mounts_of(usual, before, writable=True)
    assert mounts_of(pod, container, writable=False) == added
    assert set(container["args"]) - set(before["args"]) == flags
    assert mounts_of(pod, init, writable=True) == added
    assert flags | {"--best-effort"} <= set(init["args"])
    assert init["args"][:2] == ["drop-ins", "install"]
    (init,) = agent({**values, "remove": True})["initContainers"]
    assert init["args"][:2] == ["drop-ins", "remove"]


@pytest.mark.parametrize(("values", "flags", "folders"), DROP_INS)
def test_the_uninstallation_removes_drop_ins_by_pods_that_end(
    values: Json, flags: set[str], folders: list[str], tmp_path: Path
) -> None:
    documents = rendered(tmp_path, {"agent": {"dropIns": values}, "uninstall": {"timeout": 7}})
    (daemons,) = (each for name, each in named(documents, "DaemonSet").items() if name == "swapwarden-drop-ins")
    pod = daemons["spec"]["template"]["spec"]
    (init,), (done,) = pod["initContainers"], pod["containers"]
    assert set(mounts_of(pod, init, writable=True)) == {f"/host/{each}" for each in folders}
    assert init["args"][:2] == ["drop-ins", "remove"]
    assert flags <= set(init["args"])
    assert "--best-effort" not in init["args"], "a pod that fails is not ready"
    assert "volumeMounts" not in done
    assert pod["automountServiceAccountToken"] is False
    jobs = named(documents, "Job")
    hooks = [
        each["metadata"]["annotations"]
        for each in (jobs["swapwarden-uninstall"], daemons, jobs[daemons["metadata"]["name"]])
    ]
    assert [each["helm.sh/hook"] for each in hooks] == ["pre-delete"] * 3
    assert [each["helm.sh/hook-weight"] for each in hooks] == ["0", "1", "2"], "after the agents have restored"
    assert all("hook-failed" in each["helm.sh/hook-delete-policy"] for each in hooks)
    job = jobs["swapwarden-drop-ins"]["spec"]
    assert (job["backoffLimit"], job["activeDeadlineSeconds"]) == (0, 127)
    (container,) = job["template"]["spec"]["containers"]
    asked = dict(each.lstrip("-").split("=", 1) for each in container["args"][1:])
    labels = daemons["spec"]["template"]["metadata"]["labels"]
    assert dict(each.split("=") for each in asked["selector"].split(",")).items() <= labels.items()
    assert (asked["name"], asked["timeout"]) == ("swapwarden-drop-ins", "7")
    rights = {tuple(rule["resourceNames"]): rule["verbs"] for rule in daemon_set_rules(documents)}
    assert rights == {("swapwarden-drop-ins",): ["get"], ("swapwarden-nri",): ["get", "delete"]}


def daemon_set_rules(documents: list[Json]) -> list[Json]:
    rules = [rule for role in named(documents, "Role").values() for rule in role["rules"]]
    return [rule for rule in rules if "daemonsets" in rule["resources"]]


@pytest.mark.parametrize(("mode", "named_so"), [("auto", ["swapwarden-nri"]), ("off", [])])
def test_the_uninstallation_ends_the_plugins_first(mode: str, named_so: list[str], tmp_path: Path) -> None:
    documents = rendered(tmp_path, {"nri": {"mode": mode}})
    (container,) = named(documents, "Job")["swapwarden-uninstall"]["spec"]["template"]["spec"]["containers"]
    asked = [each.partition("=")[2] for each in container["args"] if each.startswith("--nri-daemonset")]
    assert asked == named_so
    assert [rule["resourceNames"] for rule in daemon_set_rules(documents)] == [[each] for each in named_so]


@pytest.mark.parametrize(("mode", "required"), [("auto", False), ("required", True)])
def test_a_required_plugin_knows_it(mode: str, required: bool, tmp_path: Path) -> None:
    (container,) = nri_pod(rendered(tmp_path, {"nri": {"mode": mode}}))["containers"]
    assert ("--required" in container["args"]) is required


def test_without_drop_ins_nothing_removes_any(tmp_path: Path) -> None:
    assert "drop-ins" not in manifests.written(rendered(tmp_path, {"nri": {"mode": "off"}}))


def nri_pod(documents: list[Json]) -> Json:
    pod: Json = named(documents, "DaemonSet")["swapwarden-nri"]["spec"]["template"]["spec"]
    return pod


def test_the_process_beside_the_runtime_has_two_folders_and_nothing_else(tmp_path: Path) -> None:
    documents = rendered(tmp_path, {"nri": {"mode": "auto", "socketDir": "/run/nri"}})
    pod = nri_pod(documents)
    (container,) = pod["containers"]
    hosts = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"]}
    mounts = {each["mountPath"]: hosts[each["name"]] for each in container["volumeMounts"]}
    assert mounts == {"/var/run/nri": "/run/nri", runtime_link.FOLDER: runtime_link.FOLDER}
    assert {"--socket-dir=/var/run/nri", f"--link-dir={runtime_link.FOLDER}"} <= set(container["args"])
    agent = named(documents, "DaemonSet")["swapwarden-agent"]["spec"]["template"]["spec"]
    assert f"--nri-dir={runtime_link.FOLDER}" in agent["containers"][0]["args"]
    assert mounts_of(agent, agent["containers"][0], writable=True)[runtime_link.FOLDER] == runtime_link.FOLDER
    assert "ports" not in container
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert (pod["securityContext"]["runAsUser"], pod["priorityClassName"]) == (0, "system-node-critical")
    subjects = [
        subject["name"]
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for binding in named(documents, kind).values()
        for subject in binding["subjects"]
    ]
    assert subjects
    assert pod["serviceAccountName"] not in subjects
    spec = named(documents, "NetworkPolicy")["swapwarden-nri"]["spec"]
    assert (spec["ingress"], spec["egress"], spec["policyTypes"]) == ([], [], ["Ingress", "Egress"])
    template = named(documents, "DaemonSet")["swapwarden-nri"]["spec"]["template"]
    assert spec["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


@pytest.mark.parametrize("off", ["off", False])
def test_nothing_of_nri_is_left_where_it_is_off(off: object, tmp_path: Path) -> None:
    assert "nri" not in manifests.written(rendered(tmp_path, {"nri": {"mode": off}}))


def test_only_the_mode_required_has_pods_annotated(tmp_path: Path) -> None:
    def asks(mode: str) -> list[bool]:
        policies = rendered(tmp_path, {"nri": {"mode": mode}, "admission": {"mode": "Policy"}})
        (container,) = webhook_pod(tmp_path, {"nri": {"mode": mode}})["containers"]
        return [
            "--require-runtime-plugin" in container["args"],
            runtime_link.REQUIRED_ANNOTATION in manifests.written(policies),
        ]

    assert (asks("auto"), asks("required")) == ([False, False], [True, True])


def test_openshift_chooses_users_and_groups_of_pods_without_host_paths(tmp_path: Path) -> None:
    for pod in pods(rendered(tmp_path, SETS["all"])):
        security = pod["securityContext"]
        ids = {key: security[key] for key in ("runAsUser", "runAsGroup", "fsGroup") if key in security}
        if pod["containers"][0]["name"] in {"agent", "nri", "done"}:
            assert ids == {"runAsUser": 0, "runAsGroup": 0}
        else:
            assert (ids, security["runAsNonRoot"]) == ({}, True)
    for pod in pods(rendered(tmp_path, {"profiles": PROFILES})):
        assert pod["securityContext"]["runAsUser"] in {0, 65532}


def test_each_pod_that_needs_a_token_mounts_one_of_an_hour(tmp_path: Path) -> None:
    documents = rendered(tmp_path, {"profiles": PROFILES, "nri": {"mode": "auto"}})
    assert not any(each["automountServiceAccountToken"] for each in named(documents, "ServiceAccount").values())
    found = {}
    for pod in pods(documents):
        (container,) = pod["containers"]
        mounted = {each["name"]: each["mountPath"] for each in container.get("volumeMounts", [])}
        tokens = [each for each in pod["volumes"] if "projected" in each]
        assert all(
            each["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"] == 3600 for each in tokens
        )
        found[container["name"]] = [mounted[each["name"]] for each in tokens]
    usual = ["/var/run/secrets/kubernetes.io/serviceaccount"]
    assert found == {"webhook": [], "nri": [], **dict.fromkeys(("agent", "controller", "profiles", "uninstall"), usual)}


def test_each_maker_of_the_certificate_has_a_secret_of_its_own(tmp_path: Path) -> None:
    def secret(values: Json) -> str:
        documents = rendered(tmp_path, values)
        (volume,) = named(documents, "Deployment")["swapwarden-webhook"]["spec"]["template"]["spec"]["volumes"]
        return str(volume["secret"]["secretName"])

    assert secret({}) != secret({"certificates": {"source": "CertManager"}})


def test_cert_manager_makes_the_certificate_that_the_webhook_reads(tmp_path: Path) -> None:
    documents = rendered(tmp_path, SETS["cert-manager"])
    certificates = named(documents, "Certificate")
    assert certificates.keys() == {"sw-webhook", "sw-webhook-ca"}
    pod = named(documents, "Deployment")["sw-webhook"]["spec"]["template"]["spec"]
    (volume,) = pod["volumes"]
    certificate = certificates["sw-webhook"]["spec"]
    assert certificate["secretName"] == volume["secret"]["secretName"]
    assert certificate["dnsNames"] == [f"sw-webhook.{helm.NAMESPACE}.svc"]
    assert certificate["issuerRef"]["name"] in named(documents, "Issuer")
    (registration,) = named(documents, "MutatingWebhookConfiguration").values()
    injected = registration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert injected == f"{helm.NAMESPACE}/sw-webhook"
    own = rendered(tmp_path, SETS["own issuer"])
    assert named(own, "Issuer") == {}
    (certificate,) = named(own, "Certificate").values()
    assert certificate["spec"]["issuerRef"]["name"] == "corporate"


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"agents": {}}, "agents"),
        ({"agent": {"replicas": 2}}, "replicas"),
        ({"controller": {"replicas": 0}}, "replicas"),
        ({"controller": {"writesPerSecond": 0}}, "writesPerSecond"),
        ({"flowControl": {"enabled": "no"}}, "enabled"),
        ({"webhook": {"replicas": "2"}}, "replicas"),
        ({"log": {"level": "loud"}}, "level"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"certificates": {"source": "Magic"}}, "source"),
        ({"networkPolicy": {"apiServer": {"cidrs": ["everywhere"]}}}, "cidrs"),
        ({"agent": {"tolerations": [{"keys": "x"}]}}, "keys"),
        ({"agent": {"resources": {"request": {"cpu": 1}}}}, "request"),
        ({"agent": {"podAnnotations": {"a": 1}}}, "podAnnotations"),
        ({"profiles": {"batch": {"swap": {}}}}, "nodeSelector"),
        ({"profiles": {"batch": {"nodeSelector": {}, "swaps": {}}}}, "swaps"),
        ({"profiles": {"batch": {"nodeSelector": {}, "swap": {"behavior": "Sometimes"}}}}, "behavior"),
        ({"profiles": {"Batch": {"nodeSelector": {}}}}, "Batch"),
        ({"profiles": {"batch": {"nodeSelector": {}, "swap": {"reserved": "lots"}}}}, "reserved"),
        ({"profiles": {"batch": {"nodeSelector": {}, "swap": {"reserved": "101%"}}}}, "reserved"),
        ({"profiles": {"batch": {"nodeSelector": {}, "swap": {"reserved": -1}}}}, "reserved"),
        ({"profiles": {"batch": {"nodeSelector": {"matchLabels": {"a b": "c"}}}}}, "a b"),
        ({"image": {"repository": "x:1.0"}}, "repository"),
        ({"image": {"repository": "registry.example.com/x@sha256:00"}}, "repository"),
        ({"agent": {"podLabels": {"a b": "c"}}}, "a b"),
        ({"agent": {"podLabels": {"app.kubernetes.io/component": "x"}}}, "app.kubernetes.io/"),
        ({"commonLabels": {"app.kubernetes.io/instance": "x"}}, "app.kubernetes.io/"),
        ({"podMonitor": {"labels": {"app.kubernetes.io/name": "x"}}}, "app.kubernetes.io/"),
        ({"prometheusRule": {"disabled": ["SwapwardenNoSuchAlert"]}}, "disabled"),
        ({"prometheusRule": {"thresholds": {"swapFullRatio": 90}}}, "swapFullRatio"),
        ({"prometheusRule": {"thresholds": {"swapFull": 0.9}}}, "swapFull"),
        ({"agent": {"resources": {"limits": {"cpu": "a lot"}}}}, "cpu"),
        ({"agent": {"dropIns": {"mount": "yes"}}}, "mount"),
        ({"agent": {"dropIns": {"remove": "yes"}}}, "remove"),
        ({"agent": {"dropIns": {"prefix": "../kubepods"}}}, "prefix"),
        ({"agent": {"dropIns": {"prefix": "system"}}}, "prefix"),
        *(
            ({"agent": {"dropIns": {"slices": [name]}}}, "slices")
            for name in ("kubelet.service", "kubepods.slice", "-.slice", "a-.slice", "../x.slice", "a/b.slice", "")
        ),
        ({"startupTaint": "yes"}, "startupTaint"),
        ({"agent": {"kernel": {"vm": "yes"}}}, "vm"),
        ({"agent": {"kubeletConfig": "kubelet/config.yaml"}}, "kubeletConfig"),
        ({"admission": {"failurePolicy": "Never"}}, "failurePolicy"),
        ({"admission": {"workloadTemplates": "Audit"}}, "workloadTemplates"),
        ({"admission": {"objectSelector": {"matchLabel": {}}}}, "matchLabel"),
        ({"admission": {"timeoutSeconds": 31}}, "timeoutSeconds"),
        ({"webhook": {"port": 443}}, "port"),
        ({"agent": {"updateStrategy": {"rollingUpdate": {"maxSurge": "ten"}}}}, "maxSurge"),
        ({"agent": {"extraArgs": ["log-level=debug"]}}, "extraArgs"),
        ({"priorityClassQuota": {"create": True}}, "create"),
        ({"nri": {"mode": "on"}}, "mode"),
        ({"nri": {"socketDir": "var/run/nri"}}, "socketDir"),
        ({"nri": {"socketDir": "/"}}, "socketDir"),
    ],
)
def test_wrong_values_are_refused_by_name(values: Json, path: str, tmp_path: Path) -> None:
    with pytest.raises(process.ProcessError, match=path) as caught:
        rendered(tmp_path, values)
    assert "schema" in str(caught.value)


def test_what_kubernetes_accepts_is_not_refused(tmp_path: Path) -> None:
    values = {
        "image": {"repository": "registry.example.com:5000/group/swap_warden"},
        "profiles": {"batch": {"nodeSelector": {}, "swap": {"reserved": ".5Gi"}}},
        "agent": {
            "resources": {"requests": {"cpu": 0.5, "memory": "64Mi"}, "limits": {"memory": 134217728}},
            "priorityClassName": "nodes.example.com",
        },
    }
    assert rendered(tmp_path, values)


def test_the_chart_can_be_part_of_another(tmp_path: Path) -> None:
    assert rendered(tmp_path, {"global": {"imageRegistry": "registry.example.com"}})
