"""A Kubernetes control plane for tests: a real etcd and a real kube-apiserver on free ports of 127.0.0.1.

Nodes can join one that is in a network of its own, with an address there: testbed.vm.cluster makes such.
"""

import base64
import contextlib
import http.client
import itertools
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import types
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from testbed.base import process
from testbed.controlplane import assets, netns, pki

# How a guest of QEMU's user-mode network reaches the host's loopback.
GUEST_VIEW_OF_HOST = "10.0.2.2"
LOOPBACK = "127.0.0.1"
SERVICES = "10.96.0.0/16"
_KUBERNETES_SERVICE = "10.96.0.1"
_START_ATTEMPTS = 3
_READY_TIMEOUT = 90.0
_REQUEST_TIMEOUT = 60.0
# Below the range that the kernel takes client ports from: while the API server is down, no client may sit on its port.
_PORTS = range(20000, 32000)
_CRD_TIMEOUT = 30.0
# Memory for time: a quarter of what an API server computes until it is ready is the collection of garbage.
_ENVIRONMENT = {"GOGC": "400"}

Json = Any


class ControlPlaneError(Exception):
    """The control plane did not do what was asked of it."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    for port in random.sample(_PORTS, 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ControlPlaneError(f"no free TCP port between {_PORTS.start} and {_PORTS.stop}")


class ControlPlane:
    """etcd and kube-apiserver with their own data, ports and certificate authority; several may run side by side.

    In NETWORK, if given, the API server listens at all addresses and tells the cluster that it is at ADDRESS. Of the
    resources of AUDIT (plural and group, "nodeswapstates.swapwarden.dev") it logs each write with what was sent.
    """

    def __init__(
        self,
        network: netns.NetworkNamespace | None = None,
        address: str = LOOPBACK,
        audit: Sequence[str] = (),
        *,
        etcd_quota: int | None = None,
    ) -> None:
        """ETCD_QUOTA: bytes that etcd may store, where its own default of 2 GiB is not enough.

        The API server is of the version that TESTBED_KUBERNETES names, else the newest.
        """
        self._network = network
        self._etcd_quota = etcd_quota
        self._address = address
        self._audit = audit
        self._assets = assets.ensure()
        self.folder = Path(tempfile.mkdtemp(prefix=f"swapwarden-controlplane-{os.getpid()}-"))
        self._pki = self.folder / "pki"
        self._pki.mkdir(mode=0o700)
        self._authority = pki.Authority(self._pki)
        self.ca_file = self._authority.certificate
        sans = [LOOPBACK, GUEST_VIEW_OF_HOST, _KUBERNETES_SERVICE, "localhost", "kubernetes", "kubernetes.default.svc"]
        if address != LOOPBACK:
            sans.append(address)
        self._serving = self._authority.issue("apiserver", "kube-apiserver", sans)
        self._admin = self._authority.issue("admin", "admin", organization="system:masters")
        self.token_key = pki.write_key(pki.new_key(), self._pki / "service-accounts.key")
        self._data = self.folder / "etcd"
        self._etcd: process.Process | None = None
        self._apiserver: process.Process | None = None
        self._etcd_port = self._port = 0
        self._contexts: dict[bool, ssl.SSLContext] = {}
        self._names = 0

    # --- life cycle ---

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End both programs and remove their data."""
        if self._apiserver:
            self._apiserver.kill()
        if self._etcd:
            self._etcd.kill()
        self._apiserver = self._etcd = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        for attempt in range(1, _START_ATTEMPTS + 1):
            # Someone else may take a port between the search and the start.
            with self.network():
                self._etcd_port, self._port = free_port(), free_port()
            try:
                shutil.rmtree(self._data, ignore_errors=True)
                self._start_etcd()
                self.start_apiserver()
            except process.ProcessError as error:
                for running in (self._apiserver, self._etcd):
                    if running:
                        running.kill()
                if attempt == _START_ATTEMPTS or "address already in use" not in str(error):
                    raise
            else:
                return

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{free_port()}"
        argv = [str(self._assets.etcd), "--name=testbed", f"--data-dir={self._data}"]
        argv += ["--unsafe-no-fsync", "--log-level=warn"]
        argv += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        argv += [
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=testbed={peer}",
        ]
        argv += [f"--quota-backend-bytes={self._etcd_quota}"] if self._etcd_quota else []
        self._etcd = process.Process("etcd", self.command(argv), log=self.folder / "etcd.log")

    def start_apiserver(self) -> None:
        """Start the API server on the port and data it had, and wait until it is ready."""
        argv = [
            str(self._assets.kube_apiserver),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--bind-address={LOOPBACK if self._network is None else '0.0.0.0'}",  # noqa: S104 - in a network of its own
            # Without it the machine would need a default route.
            f"--advertise-address={self._address}",
            f"--secure-port={self._port}",
            # No pod can reach a loopback address.
            f"--endpoint-reconciler-type={'none' if self._address == LOOPBACK else 'lease'}",
            f"--kubelet-certificate-authority={self.ca_file}",
            f"--kubelet-client-certificate={self._admin.certificate}",
            f"--kubelet-client-key={self._admin.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
            f"--client-ca-file={self.ca_file}",
            f"--cert-dir={self._pki}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.token_key}",
            f"--service-account-signing-key-file={self.token_key}",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--enable-aggregator-routing=true",
            "--allow-privileged=true",
            "--profiling=false",
        ]
        if self._audit:
            policy = self.folder / "audit-policy.json"
            policy.write_text(json.dumps(_audit_policy(self._audit)), encoding="utf-8")
            argv += [f"--audit-policy-file={policy}", f"--audit-log-path={self._audit_log}"]
        log = self.folder / "kube-apiserver.log"
        # One with as many objects as need a quota has no memory to spare.
        environment = os.environ if self._etcd_quota else os.environ | _ENVIRONMENT
        self._apiserver = process.Process("kube-apiserver", self.command(argv), log=log, env=environment)
        self._wait_ready()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT
        while not self.ready():
            self._running().check_alive()
            if self._etcd:
                self._etcd.check_alive()
            if time.monotonic() > deadline:
                raise process.ProcessError(f"kube-apiserver is not ready after {_READY_TIMEOUT:.0f} s\n{self.logs()}")
            time.sleep(0.05)

    def ready(self, timeout: float = 5.0) -> bool:
        """Whether the API server answers within TIMEOUT seconds that it is ready."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._port, timeout=timeout, context=self._context(admin=True)
        )
        try:
            with self.network():
                connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def version(self) -> tuple[int, int]:
        """The API server's: (1, 37)."""
        found = self.get("/version")
        return int(found["major"]), int(found["minor"])

    def stop_apiserver(self) -> None:
        """End the API server as a crash would; etcd and its data stay. start_apiserver() brings it back."""
        self._running().kill()

    def pause(self) -> None:
        """Freeze the API server: connections stay open and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause."""
        self._running().send_signal(signal.SIGCONT)

    def save(self) -> Path:
        """A copy of what etcd holds now. etcd ends for it, as a crash would end it, and is started anew."""
        self._names += 1
        saved = self.folder / f"etcd-{self._names}"
        self._kill_etcd()
        shutil.copytree(self._data, saved)
        self._start_etcd()
        self._wait_ready()
        return saved

    def restore(self, saved: Path) -> None:
        """Have etcd hold again what it held at save(): objects and their versions go back in time.

        The API server is started anew, as etcd's documentation asks for: its watch cache is of the time that is gone.
        """
        self.stop_apiserver()
        self._kill_etcd()
        shutil.rmtree(self._data)
        shutil.copytree(saved, self._data)
        self._start_etcd()
        self.start_apiserver()

    def _kill_etcd(self) -> None:
        if not self._etcd:
            raise ControlPlaneError("the control plane has not been started")
        self._etcd.kill()

    def compact(self) -> None:
        """Make etcd forget all versions but the newest, as kube-apiserver has it do every 5 minutes.

        The API server's watch cache still knows some of them, until it is started anew.
        """
        newest = self._etcd_request("/v3/kv/range", {"key": _base64(b"\0")})["header"]["revision"]
        self._etcd_request("/v3/kv/compaction", {"revision": newest, "physical": True})

    def etcd_metrics(self) -> str:
        """What etcd counts, in Prometheus' text format."""
        return self._ask_etcd("GET", "/metrics", None).decode()

    def _etcd_request(self, path: str, body: Json) -> Json:
        return json.loads(self._ask_etcd("POST", path, json.dumps(body)))

    def _ask_etcd(self, method: str, path: str, body: str | None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._etcd_port, timeout=_REQUEST_TIMEOUT)
        try:
            with self.network():
                connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise ControlPlaneError(f"etcd: {path}: HTTP {answer.status}: {content.decode(errors='replace')}")
        return content

    def pids(self) -> dict[str, int]:
        """Process ids of what runs, by name: etcd and kube-apiserver."""
        return {running.name: running.pid for running in (self._etcd, self._apiserver) if running}

    def _running(self) -> process.Process:
        if not self._apiserver:
            raise ControlPlaneError("the control plane has not been started")
        return self._apiserver

    @property
    def _audit_log(self) -> Path:
        return self.folder / "audit.log"

    def audited(self) -> list[Json]:
        """The events (audit.k8s.io/v1) of all writes so far to the resources that are audited, by time of their end."""
        if not self._audit_log.exists():
            return []
        lines = self._audit_log.read_text(encoding="utf-8").splitlines(keepends=True)
        # The last line may be on its way.
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def logs(self, lines: int = 30) -> str:
        """The end of what etcd and kube-apiserver wrote."""
        running = [started for started in (self._etcd, self._apiserver) if started]
        return "\n".join(f"  {started.name}:\n{started.tail(lines)}" for started in running)

    # --- access ---

    def network(self) -> contextlib.AbstractContextManager[None]:
        """In this block the thread's new connections reach the control plane; needed only if it has its own network."""
        return self._network.entered() if self._network else contextlib.nullcontext()

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs ARGV where it reaches the control plane."""
        return self._network.command(argv) if self._network else list(argv)

    @property
    def port(self) -> int:
        """The API server's port."""
        return self._port

    @property
    def url(self) -> str:
        """The API server's address on this host."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def guest_url(self) -> str:
        """The API server's address in a KernelVM."""
        return f"https://{GUEST_VIEW_OF_HOST}:{self._port}"

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig of the cluster's administrator."""
        path = self.folder / "admin.kubeconfig"
        if not path.exists():
            user = {
                "client-certificate-data": _base64(self._admin.certificate.read_bytes()),
                "client-key-data": _base64(self._admin.key.read_bytes()),
            }
            self._write_kubeconfig(path, "admin", user, self.url, None)
        return path

    def kubeconfig_as(self, user: str, organization: str | None = None, *, server: str | None = None) -> Path:
        """A kubeconfig with a certificate of USER in the group ORGANIZATION, in a new file; SERVER as below."""
        self._names += 1
        pair = self._authority.issue(f"user-{self._names}", user, organization=organization)
        credentials = {
            "client-certificate-data": _base64(pair.certificate.read_bytes()),
            "client-key-data": _base64(pair.key.read_bytes()),
        }
        path = self.folder / f"user-{self._names}.kubeconfig"
        self._write_kubeconfig(path, user, credentials, server or self.url, None)
        return path

    def kubeconfig_for(
        self, token: str, name: str, *, server: str | None = None, tls_server_name: str | None = None
    ) -> Path:
        """A kubeconfig with a bearer token, in a new file. SERVER is `url` unless given (`guest_url` for a guest)."""
        self._names += 1
        path = self.folder / f"{name}-{self._names}.kubeconfig"
        self._write_kubeconfig(path, name, {"token": token}, server or self.url, tls_server_name)
        return path

    def _write_kubeconfig(
        self, path: Path, name: str, user: dict[str, str], server: str, tls_server_name: str | None
    ) -> None:
        cluster = {"server": server, "certificate-authority-data": _base64(self.ca_file.read_bytes())}
        if tls_server_name:
            cluster["tls-server-name"] = tls_server_name
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": "testbed", "user": name}}],
            "current-context": name,
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=2), encoding="utf-8")  # JSON is YAML too

    def issue_certificate(self, common_name: str, sans: list[str]) -> tuple[Path, Path]:
        """A server's certificate and key (PEM files) from the authority in `ca_file`."""
        self._names += 1
        pair = self._authority.issue(f"{common_name}-{self._names}", common_name, sans)
        return pair.certificate, pair.key

    def kubectl(self, *args: str, text: str | None = None, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator, with TEXT on its stdin; process.ProcessError with its stderr when it fails."""
        options = [f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.folder / 'kubectl-cache'}"]
        argv = self.command([str(self._assets.kubectl), *options, *args])
        return process.run(argv, timeout=timeout, text=text)

    def apply(self, *manifests: Path | str) -> None:
        """Apply manifests with kubectl, in their order: a Path is a file or a folder, a str is YAML in block style."""
        for is_file, some in itertools.groupby(manifests, lambda each: isinstance(each, Path)):
            if is_file:
                self.kubectl("apply", *(f"--filename={path}" for path in some))
            else:
                self.kubectl("apply", "--filename=-", text="\n---\n".join(map(str, some)))

    def apply_crds(self, *manifests: Path | str) -> None:
        """Apply CustomResourceDefinitions and wait until the API server serves them."""
        self.apply(*manifests)
        self.kubectl("wait", "--for=condition=Established", "crd", "--all", f"--timeout={_CRD_TIMEOUT:.0f}s")
        for crd in self.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]:
            spec = crd["spec"]
            served = next(version["name"] for version in spec["versions"] if version["served"])
            self._wait_served(f"/apis/{spec['group']}/{served}/{spec['names']['plural']}?limit=1")

    def _wait_served(self, path: str) -> None:
        deadline = time.monotonic() + _CRD_TIMEOUT
        while (answer := self.request("GET", path))[0] != http.HTTPStatus.OK:
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"{path} is not served after {_CRD_TIMEOUT:.0f} s: {answer}")
            time.sleep(0.02)

    def request(
        self, method: str, path: str, body: Json = None, token: str | None = None, content_type: str | None = None
    ) -> tuple[int, Json]:
        """One request of the API as administrator, or as the bearer of TOKEN: (HTTP status, decoded answer).

        BODY is sent as JSON; a PATCH is a JSON merge patch unless CONTENT_TYPE says otherwise.
        """
        content = None if body is None else json.dumps(body).encode()
        status, answer, kind = self.send(method, path, content, token, content_type)
        return status, json.loads(answer) if "json" in kind else answer.decode(errors="replace")

    def send(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        token: str | None = None,
        content_type: str | None = None,
    ) -> tuple[int, bytes, str]:
        """As request(), of what is JSON already: (HTTP status, answer as it came, its content type)."""
        default_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json", "Content-Type": content_type or default_type}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        context = self._context(admin=token is None)
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=_REQUEST_TIMEOUT, context=context)
        try:
            with self.network():
                connection.request(method, path, content, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers.get("Content-Type", "")
        finally:
            connection.close()

    def get(self, path: str) -> Json:
        """The object at PATH; ControlPlaneError when there is none."""
        return self._expect("GET", path, None)

    def create(self, path: str, body: Json) -> Json:
        """POST of an object; ControlPlaneError with the API server's words when it is refused."""
        return self._expect("POST", path, body)

    def _expect(self, method: str, path: str, body: Json) -> Json:
        status, answer = self.request(method, path, body)
        if status >= http.HTTPStatus.BAD_REQUEST:
            said = answer.get("message", answer) if isinstance(answer, dict) else answer
            raise ControlPlaneError(f"{method} {path}: HTTP {status}: {said}")
        return answer

    def _context(self, *, admin: bool) -> ssl.SSLContext:
        if admin not in self._contexts:
            context = ssl.create_default_context(cafile=str(self.ca_file))
            if admin:
                context.load_cert_chain(self._admin.certificate, self._admin.key)
            self._contexts[admin] = context
        return self._contexts[admin]

    def create_namespace(self, name: str, labels: dict[str, str] | None = None) -> None:
        """Create a namespace and its default service account, which pods need and no controller manager makes here."""
        self.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels or {}}})
        self.create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})

    def wait_for_policies(self) -> None:
        """Wait until all admission policies are in force that were applied before, and none that was deleted."""
        # The API server takes them over in their order, so that one more comes after all others.
        self._names += 1
        name, group = f"testbed-probe-{self._names}", "admissionregistration.k8s.io"
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
        specs: dict[str, Json] = {
            "policies": {
                "matchConstraints": {"resourceRules": [{**rule, "resourceNames": [name]}]},
                "validations": [{"expression": "false"}],
            },
            "policybindings": {"policyName": name, "validationActions": ["Deny"]},
        }
        paths = {kind: f"/apis/{group}/v1/validatingadmission{kind}" for kind in specs}
        for kind, spec in specs.items():
            self.create(paths[kind], {"metadata": {"name": name}, "spec": spec})
        deadline = time.monotonic() + _CRD_TIMEOUT
        probe = {"metadata": {"name": name}}
        while (
            self.request("POST", "/api/v1/namespaces/default/configmaps?dryRun=All", probe)[0]
            < http.HTTPStatus.BAD_REQUEST
        ):
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"admission policies are not in force after {_CRD_TIMEOUT:.0f} s")
            time.sleep(0.02)
        for kind in specs:
            self.request("DELETE", f"{paths[kind]}/{name}")

    def token(self, namespace: str, service_account: str, pod: str | None = None, seconds: int = 3600) -> str:
        """A service account's token; bound to POD when given, so that the API server knows the bearer's node."""
        spec: dict[str, Json] = {"expirationSeconds": seconds}
        if pod:
            found = self.get(f"/api/v1/namespaces/{namespace}/pods/{urllib.parse.quote(pod)}")
            uid = found["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        made = self.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
        return str(made["status"]["token"])


def _audit_policy(resources: Sequence[str]) -> Json:
    watched = [
        {"group": group, "resources": [plural]} for plural, _, group in (each.partition(".") for each in resources)
    ]
    writes = {"level": "Request", "verbs": ["create", "update", "patch", "delete"], "resources": watched}
    rules = [writes, {"level": "None"}]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": rules,
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
