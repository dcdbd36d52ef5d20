"""A Kubernetes control plane for tests: a real etcd and a real kube-apiserver on free ports of 127.0.0.1.

Nodes can join a control plane with a network of its own and an address there: see testbed.vm.cluster.
"""

import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from testbed.base import process
from testbed.controlplane import assets, netns
from testbed.controlplane.credentials import GUEST_VIEW_OF_HOST, LOOPBACK, SERVICES, Credentials
from testbed.controlplane.etcd import Etcd
from testbed.controlplane.requests import ControlPlaneError, Json, Requests

__all__ = ["LOOPBACK", "SERVICES", "ControlPlane", "ControlPlaneError", "Servers"]

_START_ATTEMPTS = 3
_READY_TIMEOUT = 90.0
# Memory for time: garbage collection takes a quarter of an API server's CPU time until it is ready.
_ENVIRONMENT = {"GOGC": "400"}


class Servers:
    """etcd and kube-apiserver, with their data in FOLDER; REQUESTS learns the API server's port."""

    def __init__(
        self,
        folder: Path,
        credentials: Credentials,
        requests: Requests,
        network: netns.NetworkNamespace | None,
        *,
        address: str,
        audit: Sequence[str],
        etcd_quota: int | None,
    ) -> None:
        self._folder = folder
        self._credentials = credentials
        self._requests = requests
        self._network = network
        self._address = address
        self._audit = audit
        self._audited: list[Json] = []
        self._audit_read = 0
        self._etcd_quota = etcd_quota
        self._assets = assets.ensure()
        self.etcd = Etcd(folder, self.command, requests.network, etcd_quota)
        self._apiserver: process.Process | None = None

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs ARGV where it reaches the control plane."""
        return self._network.command(argv) if self._network else list(argv)

    def start(self) -> None:
        """Start both on free ports, and wait until they are ready."""
        for attempt in range(1, _START_ATTEMPTS + 1):
            # Another process may take a port between the search and the start.
            with self._requests.network():
                self.etcd.port, self._requests.port = process.free_port(), process.free_port()
            try:
                self.etcd.forget()
                self.etcd.start()
                self.start_apiserver()
            except process.ProcessError as error:
                self.stop()
                if attempt == _START_ATTEMPTS or "address already in use" not in str(error):
                    raise
            else:
                return

    def start_apiserver(self) -> None:
        """Start the API server on its earlier port and data, and wait until it is ready."""
        argv = [
            str(self._assets.kube_apiserver),
            f"--etcd-servers=http://127.0.0.1:{self.etcd.port}",
            f"--bind-address={LOOPBACK if self._network is None else '0.0.0.0'}",  # noqa: S104 - in a network of its own
            # Without it the machine would need a default route.
            f"--advertise-address={self._address}",
            f"--secure-port={self._requests.port}",
            # No pod can reach a loopback address.
            f"--endpoint-reconciler-type={'none' if self._address == LOOPBACK else 'lease'}",
            f"--kubelet-certificate-authority={self._credentials.ca_file}",
            f"--kubelet-client-certificate={self._credentials.admin.certificate}",
            f"--kubelet-client-key={self._credentials.admin.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--tls-cert-file={self._credentials.serving.certificate}",
            f"--tls-private-key-file={self._credentials.serving.key}",
            f"--client-ca-file={self._credentials.ca_file}",
            f"--cert-dir={self._credentials.pki}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._credentials.token_key}",
            f"--service-account-signing-key-file={self._credentials.token_key}",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--enable-aggregator-routing=true",
            "--allow-privileged=true",
            "--profiling=false",
        ]
        if self._audit:
            policy = self._folder / "audit-policy.json"
            policy.write_text(json.dumps(_audit_policy(self._audit)), encoding="utf-8")
            argv += [f"--audit-policy-file={policy}", f"--audit-log-path={self._audit_log}"]
        log = self._folder / "kube-apiserver.log"
        # A server with enough objects to need a quota has no memory to spare.
        environment = os.environ if self._etcd_quota else os.environ | _ENVIRONMENT
        self._apiserver = process.Process("kube-apiserver", self.command(argv), log=log, env=environment)
        self._wait_ready()

    def stop(self) -> None:
        """End both programs."""
        if self._apiserver:
            self._apiserver.kill()
        self._apiserver = None
        self.etcd.kill()

    def _wait_ready(self) -> None:
        running = [self._running(), *([self.etcd.process] if self.etcd.process else [])]
        process.until(self._requests.ready, "kube-apiserver is ready", _READY_TIMEOUT, running=running, said=self.logs)

    def stop_apiserver(self) -> None:
        """End the API server like a crash; etcd and its data stay. start_apiserver() restarts it."""
        self._running().kill()

    def pause(self) -> None:
        """Freeze the API server: connections stay open, and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause."""
        self._running().send_signal(signal.SIGCONT)

    def save(self) -> Path:
        """Return a copy of the data in etcd, which is ended for it, like by a crash, and restarted."""
        saved = Path(tempfile.mkdtemp(prefix="etcd-", dir=self._folder)) / "data"
        self.etcd.kill()
        self.etcd.copy(saved)
        self.etcd.start()
        self._wait_ready()
        return saved

    def restore(self, saved: Path) -> None:
        """Restore etcd to the data of save(): objects and their versions go back in time.

        The API server is restarted, as etcd's documentation requires: its watch cache is from the later time.
        """
        self.stop_apiserver()
        self.etcd.kill()
        self.etcd.put_back(saved)
        self.etcd.start()
        self.start_apiserver()

    def pids(self) -> dict[str, int]:
        """Return the process ids of running servers, by name: etcd and kube-apiserver."""
        return {running.name: running.pid for running in (self.etcd.process, self._apiserver) if running}

    def _running(self) -> process.Process:
        if not self._apiserver:
            raise ControlPlaneError("the control plane has not been started")
        return self._apiserver

    @property
    def _audit_log(self) -> Path:
        return self._folder / "audit.log"

    def audited(self) -> list[Json]:
        """Return the events (audit.k8s.io/v1) of all writes so far to audited resources, by time of their end."""
        if self._audit_log.exists():
            with self._audit_log.open("rb") as log:
                log.seek(self._audit_read)
                for line in log:
                    # The last one may be unfinished.
                    if line.endswith(b"\n"):
                        self._audited.append(json.loads(line))
                        self._audit_read += len(line)
        return list(self._audited)

    def logs(self, lines: int = 30) -> str:
        """Return the end of the output of etcd and kube-apiserver."""
        running = [started for started in (self.etcd.process, self._apiserver) if started]
        return "\n".join(f"  {started.name}:\n{started.tail(lines)}" for started in running)


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


class ControlPlane(Requests, process.Managed):
    """etcd and kube-apiserver with their own data, ports and certificate authority; several may run side by side.

    In NETWORK, if given, the API server listens at all addresses and publishes ADDRESS to the cluster. For the
    resources of AUDIT (plural and group, "nodeswapstates.swapwarden.dev") it logs each write with its content.
    """

    def __init__(
        self,
        network: netns.NetworkNamespace | None = None,
        address: str = LOOPBACK,
        audit: Sequence[str] = (),
        *,
        etcd_quota: int | None = None,
    ) -> None:
        """ETCD_QUOTA: bytes that etcd may store, if its own default of 2 GiB is not enough.

        The API server has the version that TESTBED_KUBERNETES names, else the newest.
        """
        self.folder = Path(tempfile.mkdtemp(prefix=f"swapwarden-controlplane-{os.getpid()}-"))
        self.credentials = Credentials(self.folder, address)
        self.ca_file = self.credentials.ca_file
        super().__init__(self.credentials, network)
        self.servers = Servers(
            self.folder, self.credentials, self, network, address=address, audit=audit, etcd_quota=etcd_quota
        )

    def start(self) -> None:
        self.servers.start()

    def stop(self) -> None:
        """End both programs and remove their data."""
        self.close()
        self.servers.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs ARGV where it reaches the control plane."""
        return self.servers.command(argv)

    @property
    def url(self) -> str:
        """The API server's address on this host."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def guest_url(self) -> str:
        """The API server's address in a KernelVM."""
        return f"https://{GUEST_VIEW_OF_HOST}:{self.port}"

    @functools.cached_property
    def kubeconfig(self) -> Path:
        """A kubeconfig of the cluster's administrator."""
        return self.credentials.kubeconfig("admin", self.credentials.admin, self.url)

    def kubeconfig_as(self, user: str, organization: str | None = None, *, server: str | None = None) -> Path:
        """A kubeconfig with a certificate of USER in the group ORGANIZATION, in a new file; SERVER as below."""
        return self.credentials.kubeconfig(user, self.credentials.issue(user, (), organization), server or self.url)

    def kubeconfig_for(self, token: str, name: str, *, server: str | None = None) -> Path:
        """A kubeconfig with a bearer token, in a new file. SERVER is `url` unless given (`guest_url` for a guest)."""
        return self.credentials.kubeconfig(name, token, server or self.url)

    def kubectl(self, *args: str, text: str | None = None, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator, with TEXT on its stdin; process.ProcessError with its stderr if it fails."""
        options = [f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.folder / 'kubectl-cache'}"]
        argv = self.command([str(assets.ensure().kubectl), *options, *args])
        return process.run(argv, timeout=timeout, text=text)

    def apply(self, *manifests: Path | str) -> None:
        """Apply manifests with kubectl, in their order: a Path is a file or a folder, a str is YAML in block style.

        It loads no schemas, which takes seconds of CPU time: so an unknown field is no error.
        """
        command = ("apply", "--validate=false", "--openapi-patch=false")
        for is_file, some in itertools.groupby(manifests, lambda each: isinstance(each, Path)):
            if is_file:
                self.kubectl(*command, *(f"--filename={path}" for path in some))
            else:
                self.kubectl(*command, "--filename=-", text="\n---\n".join(map(str, some)))

    def apply_crds(self, *manifests: Path | str) -> None:
        """Apply CustomResourceDefinitions and wait until the API server serves them."""
        self.apply(*manifests)
        for crd in self.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]:
            spec = crd["spec"]
            served = next(version["name"] for version in spec["versions"] if version["served"])
            self.wait_served(f"/apis/{spec['group']}/{served}/{spec['names']['plural']}?limit=1")
