from __future__ import annotations

import asyncio
import contextlib
import pathlib
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
import pytest_asyncio
from swapwarden.kube import client, config, informer, watch

from testbed.controlplane.servers import ControlPlane
from tests.integration.kube.conftest import ConfigMaps
from tests.integration.kube.proxy import Proxy
from tests.unit.kube.scripted import until

Change = tuple[str, str | None, str | None]


class Meta(msgspec.Struct):
    name: str


class Wire(msgspec.Struct):
    metadata: Meta
    data: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "BACKOFF_SECONDS", (0.05, 0.2))


class Running:
    """An informer of a namespace's ConfigMaps, in pages of two; its rows are their values."""

    def __init__(self, api: client.Client, maps: ConfigMaps) -> None:
        self.changes: list[Change] = []
        self.react: Callable[[], None] = lambda: None
        self.informer = informer.Informer(
            api,
            maps.path,
            wire=Wire,
            project=lambda wire: wire.data["v"],
            name=maps.namespace,
            on_change=self._changed,
            page_size=2,
        )
        self._task = asyncio.create_task(self.informer.run())

    def _changed(self, key: str, old: str | None, new: str | None) -> None:
        self.changes.append((key, old, new))
        self.react()

    @property
    def rows(self) -> dict[str, str]:
        return dict(self.informer.rows)

    async def knows(self, **values: str) -> None:
        """Wait until these are the rows."""
        await until(lambda: self.informer.synced.is_set() and self.rows == values, 20)

    def lists(self, reason: str) -> float:
        return informer.LISTS.value(self.informer.name, reason)

    @property
    def errors(self) -> float:
        return informer.ERRORS.value(self.informer.name, "request")

    async def stop(self) -> None:
        assert not self._task.done(), self._task
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@pytest_asyncio.fixture
async def running(api: client.Client, maps: ConfigMaps) -> AsyncIterator[Running]:
    made = Running(api, maps)
    yield made
    await made.stop()


async def test_pages_and_changes(running: Running, maps: ConfigMaps) -> None:
    await running.knows()
    for name in "abcde":
        maps.create(name)
    await running.knows(a="1", b="1", c="1", d="1", e="1")
    maps.set("a", "2")
    maps.delete("b")
    await running.knows(a="2", c="1", d="1", e="1")
    assert running.changes == [
        *((name, None, "1") for name in "abcde"),
        ("a", "1", "2"),
        ("b", "1", None),
    ]


async def test_objects_from_before(api: client.Client, maps: ConfigMaps) -> None:
    names = [f"c{at:02}" for at in range(11)]
    for name in names:
        maps.create(name)
    late = Running(api, maps)
    await late.knows(**dict.fromkeys(names, "1"))
    assert late.changes == [(name, None, "1") for name in names]
    await late.stop()


async def test_a_cut_in_the_middle_of_the_first_list(api: client.Client, maps: ConfigMaps, proxy: Proxy) -> None:
    for name in "abcdef":
        maps.create(name, name * 20_000)
    proxy.cut_after(105_000, refuse=True)
    late = Running(api, maps)
    await until(lambda: late.errors)
    assert (late.rows, late.changes) == ({}, [])
    assert not late.informer.synced.is_set()
    proxy.refusing = False
    await late.knows(**{name: name * 20_000 for name in "abcdef"})
    assert len(late.changes) == 6
    await late.stop()


async def test_a_continue_token_that_expired(
    own: ControlPlane, api: client.Client, maps: ConfigMaps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first page and the second, etcd and the API server forget what the list was made of."""
    for name in "abc":
        maps.create(name)
    answers: list[bytes] = []
    get = client.Client.get

    async def slow(self: client.Client, path: str, **options: object) -> bytes:
        answers.append(await get(self, path, **options))  # type: ignore[arg-type]  # as they came
        if len(answers) == 1:
            maps.delete("a")
            maps.create("d")
            own.servers.etcd.compact()
            own.servers.stop_apiserver()
            await asyncio.to_thread(own.servers.start_apiserver)
        return answers[-1]

    monkeypatch.setattr(client.Client, "get", slow)
    late = Running(api, maps)
    await late.knows(b="1", c="1", d="1")
    assert [change[0] for change in late.changes] == ["b", "c", "d"]
    assert (late.lists("start"), late.errors) == (2, 1)
    await late.stop()


async def test_a_gap_in_which_things_were_deleted(
    own: ControlPlane, running: Running, maps: ConfigMaps, proxy: Proxy
) -> None:
    """The API server is away to us, and has forgotten all but the newest when it returns."""
    for name in ("kept", "changed", "deleted", "replaced"):
        maps.create(name)
    await running.knows(kept="1", changed="1", deleted="1", replaced="1")
    proxy.refusing = True
    proxy.cut()
    maps.delete("deleted")
    maps.delete("replaced")
    maps.create("replaced", "2")
    maps.set("changed", "2")
    maps.create("new")
    own.servers.etcd.compact()
    own.servers.stop_apiserver()
    await asyncio.to_thread(own.servers.start_apiserver)
    await until(lambda: running.errors > 2)
    assert running.rows == dict.fromkeys(("kept", "changed", "deleted", "replaced"), "1")
    proxy.refusing = False
    await running.knows(kept="1", changed="2", new="1", replaced="2")
    assert sorted(running.changes[4:], key=str) == [
        ("changed", "1", "2"),
        ("deleted", "1", None),
        ("new", None, "1"),
        ("replaced", "1", "2"),
    ]
    assert running.lists("expired") == 1


async def test_an_outage(own: ControlPlane, running: Running, maps: ConfigMaps) -> None:
    """Killed, and back with all it knew: no list is needed. Rows stay meanwhile."""
    maps.create("a")
    await running.knows(a="1")
    own.servers.stop_apiserver()
    await until(lambda: running.errors > 1)
    assert running.rows == {"a": "1"}
    await asyncio.to_thread(own.servers.start_apiserver)
    maps.set("a", "2")
    await running.knows(a="2")
    assert running.changes == [("a", None, "1"), ("a", "1", "2")]


async def test_a_freeze(own: ControlPlane, running: Running, maps: ConfigMaps, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen API server answers no one, and closes nothing."""
    monkeypatch.setattr(watch, "WATCH_SECONDS", (1, 1))
    assert watch.watch.__kwdefaults__ is not None
    monkeypatch.setitem(watch.watch.__kwdefaults__, "silence", 0.1)
    await running.knows()
    maps.create("a")
    await running.knows(a="1")
    await until(lambda: informer.EVENTS.value(running.informer.name, "ADDED"))
    own.servers.pause()
    try:
        await until(lambda: running.errors > 0, 10)
    finally:
        own.servers.resume()
    maps.set("a", "2")
    await running.knows(a="2")


async def test_many_cuts(running: Running, maps: ConfigMaps, proxy: Proxy) -> None:
    """Wherever they fall, the rows finally equal the objects, and each change follows from the one before."""
    await running.knows()
    names = [f"c{at}" for at in range(5)]
    for name in names:
        maps.create(name, "0")
    for value in range(20):
        proxy.cut_after(700 + 300 * value)
        for name in names[value % 5 :]:
            maps.set(name, str(value))
            await asyncio.sleep(0)
    for name in names:
        maps.set(name, "end")
    await running.knows(**dict.fromkeys(names, "end"))
    for name in names:
        told = [(old, new) for key, old, new in running.changes if key == name]
        assert told[0][0] is None
        assert [new for _, new in told[:-1]] == [old for old, _ in told[1:]]


async def test_a_slow_consumer(running: Running, maps: ConfigMaps) -> None:
    await running.knows()
    running.react = lambda: time.sleep(0.02)
    for at in range(10):
        maps.create(f"c{at}", "0")
    for value in range(1, 11):
        for at in range(10):
            maps.set(f"c{at}", f"{value} {'x' * 5000}")
    await running.knows(**{f"c{at}": f"10 {'x' * 5000}" for at in range(10)})
    assert len(running.changes) == 110


async def test_a_token_that_was_revoked_while_another_came(
    own: ControlPlane, maps: ConfigMaps, proxy: Proxy, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "TOKEN_CHECK_SECONDS", 3600.0)
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{maps.namespace}"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}
    own.create(f"{rbac}/roles", {"metadata": {"name": "reader"}, "rules": [rule]})
    subject = {"kind": "Group", "name": f"system:serviceaccounts:{maps.namespace}"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    binding = {"metadata": {"name": "readers"}, "subjects": [subject], "roleRef": role}
    accounts = f"/api/v1/namespaces/{maps.namespace}/serviceaccounts"
    own.create(accounts, {"metadata": {"name": "short-lived"}})

    file = tmp_path / "token"
    file.write_text(own.token(maps.namespace, "short-lived"))
    cfg = config.Config(server=proxy.url, ca_data=own.ca_file.read_text(), token_file=config.TokenFile(file))
    async with client.Client(cfg, user_agent="test") as api:
        assert cfg.token() == file.read_text()
        assert own.request("DELETE", f"{accounts}/short-lived")[0] == 200
        late = Running(api, maps)
        await until(lambda: late.errors)
        own.create(f"{rbac}/rolebindings", binding)
        file.with_name("new").write_text(own.token(maps.namespace, "default"))
        file.with_name("new").rename(file)
        maps.create("a")
        await late.knows(a="1")
        await late.stop()


async def test_refusals_are_in_the_log(own: ControlPlane, maps: ConfigMaps, caplog: pytest.LogCaptureFixture) -> None:
    for token, said in (
        (own.token(maps.namespace, "default"), "(403 Forbidden): grant list and watch, as the chart does"),
        ("nonsense", "(401 Unauthorized): the token is not accepted"),
    ):
        cfg = config.load(str(own.kubeconfig_for(token, "refused")))
        async with client.Client(cfg, user_agent="test") as api:
            late = Running(api, maps)
            await until(lambda said=said: said in caplog.text)  # type: ignore[misc]  # a default argument
            assert not late.informer.synced.is_set()
            await late.stop()
