"""As much of an API server as profiles and kopf need: discovery, lists, watches and statuses, over TLS on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import pathlib
import ssl
from typing import Any, Self

from aiohttp import web
from swapwarden.api import names
from swapwarden.kube import config

from testbed.controlplane import pki
from tests.unit.objects import profile_object

NAME = "api.example.org"
"""The name that the server's certificate is for: no other one, and no address."""
GROUP = f"/apis/{names.API_VERSION}"
PROFILES = f"{GROUP}/{names.PROFILE_PLURAL}"
Json = dict[str, Any]


def _group(name: str, version: str) -> Json:
    entry = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [entry], "preferredVersion": entry}


def _resource(plural: str, kind: str) -> Json:
    verbs = ["get", "list", "watch", "patch"]
    return {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": False, "verbs": verbs}


def _at(found: Any, path: str) -> Any:
    for key in path.split("/")[1:]:
        found = found[int(key) if isinstance(found, list) else key]
    return found


class ProfileApi:
    """Use it as an async context manager."""

    def __init__(self, authority: pki.Authority) -> None:
        pair = authority.issue("api", "api", [NAME])
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(pair.certificate, pair.key)
        self.token = "first"
        self.objects: dict[str, Json] = {}
        self.version = 10
        self.port = 0
        self.lists = 0
        self.refused = 0
        self.patches: list[tuple[str, Json | list[Json]]] = []
        """Name of the profile, /status where it is that of it, and the patch."""
        self.watches = 0
        """How many were begun."""
        self._watching: list[asyncio.Queue[Json | None]] = []

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._check])
        app.router.add_get("/api", self._json({"versions": ["v1"]}))
        app.router.add_get("/api/v1", self._json({"resources": [_resource("namespaces", "Namespace")]}))
        groups = {names.GROUP: names.VERSION, "apiextensions.k8s.io": "v1"}
        app.router.add_get("/apis", self._json({"groups": [_group(name, groups[name]) for name in groups]}))
        crds = _resource("customresourcedefinitions", "CustomResourceDefinition")
        app.router.add_get("/apis/apiextensions.k8s.io/v1", self._json({"resources": [crds]}))
        profiles = _resource(names.PROFILE_PLURAL, names.PROFILE_KIND)
        app.router.add_get(GROUP, self._json({"resources": [profiles]}))
        app.router.add_get(PROFILES, self._profiles)
        app.router.add_patch(PROFILES + "/{name:.*}", self._patch)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._context)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        await self._runner.cleanup()

    def set(self, name: str, **spec: Any) -> Json:
        """Make an object, or change it, and send it to all watches."""
        self.version += 1
        known = self.objects.get(name)
        generation = known["metadata"]["generation"] + 1 if known else 1
        found = profile_object(name, self.version, generation, **spec)
        self.objects[name] = found
        self.tell({"type": "MODIFIED" if known else "ADDED", "object": found})
        return found

    def observe(self, name: str, generation: int | None = None) -> None:
        """Write the status with this observedGeneration, by default the newest."""
        found = self.objects[name]
        self.replace({**found, "status": {"observedGeneration": generation or found["metadata"]["generation"]}})

    def replace(self, body: Json) -> Json:
        """Store an object, send it to all watches, and return it with its new version."""
        self.version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.version)}
        found = {**body, "metadata": metadata}
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            self.objects.pop(metadata["name"], None)
            self.tell({"type": "DELETED", "object": found})
        else:
            self.objects[metadata["name"]] = found
            self.tell({"type": "MODIFIED", "object": found})
        return found

    def begin_delete(self, name: str) -> None:
        """As the API server does: the object stays as long as it has a finalizer, and has another generation."""
        found = self.objects[name]
        metadata = {**found["metadata"], "deletionTimestamp": "2026-01-02T00:00:00Z"}
        self.replace({**found, "metadata": {**metadata, "generation": metadata["generation"] + 1}})

    def delete(self, name: str, *, silently: bool = False) -> None:
        """Delete an object; `silently`: as if no watch was on its way just then."""
        self.version += 1
        gone = self.objects.pop(name)
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
        if not silently:
            self.tell({"type": "DELETED", "object": gone})

    def tell(self, event: Json) -> None:
        """Send an event to all watches."""
        for queue in self._watching:
            queue.put_nowait(event)

    def cut(self) -> None:
        """End all watches."""
        for queue in self._watching:
            queue.put_nowait(None)

    @web.middleware
    async def _check(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            self.refused += 1
            return web.json_response({"kind": "Status", "code": 401, "message": "Unauthorized"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    @staticmethod
    def _json(body: Json) -> Any:
        async def answer(_: web.Request) -> web.Response:
            return web.json_response(body)

        return answer

    async def _profiles(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") == "true":
            return await self._watch(request)
        self.lists += 1
        meta = {"resourceVersion": str(self.version)}
        return web.json_response({"metadata": meta, "items": list(self.objects.values())})

    async def _patch(self, request: web.Request) -> web.Response:
        name, body = request.match_info["name"], await request.json()
        self.patches.append((name, body))
        found = copy.deepcopy(self.objects.get(name))
        if found is None:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        metadata = found["metadata"]
        for each in body if isinstance(body, list) else ():
            if each["op"] == "test" and each["value"] != _at(found, each["path"]):
                return web.json_response({"kind": "Status", "code": 422}, status=422)
            if each["op"] == "add":
                value = each["value"]
                metadata["finalizers"] = value if isinstance(value, list) else [*metadata.get("finalizers", ()), value]
            if each["op"] == "remove":
                metadata.pop("finalizers", None)
        # Kopf waits until it sees the version that the answer has.
        return web.json_response(self.replace(found))

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        queue: asyncio.Queue[Json | None] = asyncio.Queue()
        self._watching.append(queue)
        response = web.StreamResponse()
        try:
            await response.prepare(request)
            self.watches += 1
            with contextlib.suppress(ConnectionError):
                while (event := await queue.get()) is not None:
                    await response.write(json.dumps(event).encode() + b"\n")
        finally:
            self._watching.remove(queue)
        return response


def client_config(server: ProfileApi, authority: pki.Authority, token_file: pathlib.Path) -> config.Config:
    """Return a client's settings for the server, and write its token to the file."""
    token_file.write_text(server.token)
    return config.Config(
        server=f"https://127.0.0.1:{server.port}",
        ca_data=authority.certificate.read_text(),
        tls_server_name=NAME,
        token_file=config.TokenFile(token_file),
    )
