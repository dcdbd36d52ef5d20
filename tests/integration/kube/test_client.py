from __future__ import annotations

import asyncio
import dataclasses
import json
import pathlib
from typing import Any

import pytest
from swapwarden.kube import client, config, errors, transport

from testbed.controlplane import pki
from testbed.controlplane.servers import ControlPlane
from tests.integration.conftest import Json
from tests.integration.kube.conftest import ConfigMaps
from tests.integration.kube.proxy import Proxy


def body(content: Json) -> bytes:
    return json.dumps(content).encode()


async def refused(request: Any) -> tuple[int, str]:
    with pytest.raises(errors.ApiError) as caught:
        await request
    return caught.value.status, caught.value.reason


async def test_the_life_of_an_object(api: client.Client, maps: ConfigMaps, proxy: Proxy) -> None:
    made = json.loads(await api.post(maps.path, body({"metadata": {"name": "a"}, "data": {"v": "1"}})))
    path = f"{maps.path}/a"
    patched = json.loads(await api.merge_patch(path, body({"data": {"v": None, "w": "2"}})))
    assert patched["data"] == {"w": "2"}
    assert await refused(api.put(path, body(made))) == (409, "Conflict")
    put = json.loads(await api.put(path, body(patched | {"data": {"w": "3"}})))
    assert json.loads(await api.get(path)) == put
    assert await refused(api.post(maps.path, body({"metadata": {"name": "a"}}))) == (409, "AlreadyExists")
    assert await refused(api.post(maps.path, body({"metadata": {"name": "A B"}}))) == (422, "Invalid")
    assert await refused(api.post(maps.path, b"{")) == (400, "BadRequest")
    assert json.loads(await api.delete(path, body=body({"preconditions": {"uid": made["metadata"]["uid"]}})))
    assert await refused(api.get(path)) == (404, "NotFound")
    assert await refused(api.get("/apis/nobody.example.com/v1/things")) == (404, "")
    assert proxy.connections == 1


async def test_many_at_once(api: client.Client, maps: ConfigMaps, proxy: Proxy) -> None:
    async with asyncio.TaskGroup() as tasks:
        for at in range(100):
            tasks.create_task(api.post(maps.path, body({"metadata": {"name": f"c{at}"}, "data": {"v": "x" * 1000}})))
    assert len(json.loads(await api.get(maps.path))["items"]) == 100
    assert proxy.connections <= transport.MAX_CONNECTIONS


async def test_connections_that_were_cut_are_replaced(api: client.Client, maps: ConfigMaps, proxy: Proxy) -> None:
    await api.get(maps.path)
    proxy.cut()
    await api.get(maps.path)
    assert proxy.connections == 2


async def test_an_answer_that_is_cut(api: client.Client, maps: ConfigMaps, proxy: Proxy) -> None:
    maps.create("large", "x" * 500_000)
    proxy.cut_after(100_000)
    with pytest.raises(errors.Unreachable, match=f"{transport.CUT_OFF}|{transport.BROKE}"):
        await api.get(maps.path)
    assert len(await api.get(maps.path)) > 500_000


async def test_a_restart(own: ControlPlane, api: client.Client, maps: ConfigMaps) -> None:
    await api.get(maps.path)
    own.servers.stop_apiserver()
    try:
        with pytest.raises(errors.Unreachable):
            await api.get(maps.path)
    finally:
        await asyncio.to_thread(own.servers.start_apiserver)
    await api.get(maps.path)


async def test_a_server_that_hangs(own: ControlPlane, api: client.Client, maps: ConfigMaps) -> None:
    await api.get(maps.path)
    own.servers.pause()
    try:
        with pytest.raises(errors.Unreachable, match=r"no answer from 127.0.0.1:\d+ within 0.3 s to GET"):
            await api.get(maps.path, timeout=0.3)
    finally:
        own.servers.resume()
    await api.get(maps.path)


def with_token(own: ControlPlane, token: str) -> client.Client:
    return client.Client(config.load(str(own.kubeconfig_for(token, "test"))), user_agent="test")


async def who(api: client.Client) -> str:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = json.loads(await api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", body(review)))
    return str(answer["status"]["userInfo"]["username"])


async def test_identities(own: ControlPlane, api: client.Client, maps: ConfigMaps) -> None:
    assert await who(api) == "admin"
    async with with_token(own, own.token(maps.namespace, "default")) as bearer:
        assert await who(bearer) == f"system:serviceaccount:{maps.namespace}:default"
        assert await refused(bearer.get(maps.path)) == (403, "Forbidden")
    async with with_token(own, "no-token") as nobody:
        assert await refused(who(nobody)) == (401, "Unauthorized")


async def test_a_token_that_was_revoked_and_replaced(
    own: ControlPlane, maps: ConfigMaps, tmp_path: pathlib.Path
) -> None:
    """The old one is of a pod that is gone; the API server takes it for 10 s more if it has seen it, so it has not."""
    pods = f"/api/v1/namespaces/{maps.namespace}/pods"
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "none"}]}
    own.create(pods, {"metadata": {"name": "bound"}, "spec": spec})
    file = tmp_path / "token"
    file.write_text(own.token(maps.namespace, "default", pod="bound"))
    tokens = config.TokenFile(file, now=lambda: 0.0)
    made = config.Config(server=own.url, ca_data=own.ca_file.read_text(), token_file=tokens)
    async with client.Client(made, user_agent="test") as api:
        assert made.token() == file.read_text()
        assert own.request("DELETE", f"{pods}/bound?gracePeriodSeconds=0")[0] == 200
        assert await refused(who(api)) == (401, "Unauthorized")
        file.with_name("new").write_text(own.token(maps.namespace, "default"))
        file.with_name("new").rename(file)
        assert await who(api) == f"system:serviceaccount:{maps.namespace}:default"


async def test_a_server_that_is_somebody_else(own: ControlPlane, tmp_path: pathlib.Path) -> None:
    admin = config.load(str(own.kubeconfig))
    other = pki.Authority(tmp_path).certificate.read_text()
    for cfg, why in (
        (dataclasses.replace(admin, ca_data=other), "certificate verify failed"),
        (dataclasses.replace(admin, tls_server_name="example.org"), "Hostname mismatch"),
        (dataclasses.replace(admin, ca_data=None), "certificate verify failed"),
    ):
        async with client.Client(cfg, user_agent="test") as api:
            with pytest.raises(errors.Unreachable, match=why):
                await api.get("/version")


async def test_a_server_by_another_name(own: ControlPlane) -> None:
    admin = config.load(str(own.kubeconfig))
    async with client.Client(
        dataclasses.replace(admin, tls_server_name="kubernetes.default.svc"), user_agent="test"
    ) as api:
        assert json.loads(await api.get("/version"))["major"]


async def test_tls_asked_of_a_server_without(tmp_path: pathlib.Path) -> None:
    """An answer in plain text, where TLS is due."""

    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    cfg = config.Config(server=f"https://127.0.0.1:{port}", ca_data=pki.Authority(tmp_path).certificate.read_text())
    async with server, client.Client(cfg, user_agent="test") as api:
        with pytest.raises(errors.Unreachable, match=f"cannot connect to 127.0.0.1:{port}"):
            await api.get("/version")
