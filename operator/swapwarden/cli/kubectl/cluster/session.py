"""The API server as a user sees it: forbidden and missing objects are errors with a remedy."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import re
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import click
import msgspec

import swapwarden
from swapwarden.api import decoding, names
from swapwarden.cli import kubectl
from swapwarden.cli.kubectl.cluster import connection
from swapwarden.cli.kubectl.output import tables
from swapwarden.kube import client, config, errors, paging, transport

T = TypeVar("T")
Renew = Callable[[], Awaitable[client.Client]]
"""Gets new credentials after a refusal. Raises ConfigError if there are none."""

REQUEST_SECONDS: Final = 30.0
MANAGER: Final = "kubectl-swap"
"""The field manager of writes."""
NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods"
NAMESPACES: Final = "/api/v1/namespaces"
EVERYTHING: Final = (NODES, PODS, NAMESPACES, names.PROFILES_PATH, names.STATES_PATH)
"""The collections of commands that judge a whole cluster."""
REGISTRATION: Final = "/apis/admissionregistration.k8s.io/v1"
_PAGE_CHARACTERS: Final = 16 * 1024
"""The start of a web page in which its title is looked for."""
RIGHTS: Final = "docs/kubectl-swap.md lists the rights that each command needs"


@dataclasses.dataclass(frozen=True)
class Target:
    """The cluster and the namespace by flags."""

    kubeconfig: str | None = None
    context: str | None = None
    request_seconds: float = REQUEST_SECONDS
    namespace: str | None = None
    all_namespaces: bool = False
    wishes: connection.Wishes = dataclasses.field(default_factory=connection.Wishes)
    """Other flags in place of the kubeconfig's values."""
    interactive: bool = True
    """Whether a program that gives credentials may ask the user something."""


class CommandError(click.ClickException):
    """The command cannot show its result; the message names the reason and the remedy. Exit status 1."""


class ForbiddenError(CommandError):
    """The user lacks a right."""


class NotInstalledError(CommandError):
    """The API server does not know the kind of object."""


class NotFoundError(CommandError):
    """There is no such object."""


class NotUnderstoodError(CommandError):
    """The object is invalid here: one of another version."""


class ApiUnreachableError(CommandError):
    """No answer."""


class Session:
    """One user's requests to one API server. Use it within run()."""

    def __init__(self, api: client.Client, namespace: str, target: Target, renew: Renew | None = None) -> None:
        self._api = api
        self._renew = renew
        self._renewing = asyncio.Lock()
        self._seconds = target.request_seconds
        self._said: set[str] = set()
        self._held: list[str] | None = None
        """Notes that are held back."""
        # Not left to the client: the time in which a request waits for its turn there counts as its own.
        self._free = asyncio.Semaphore(transport.MAX_CONNECTIONS)
        self._ahead: dict[str, asyncio.Future[bytes]] = {}
        self.own_namespace = target.namespace or namespace
        """The one that the user named, or else the context's."""
        self.namespace = "" if target.all_namespaces else self.own_namespace
        """The one that is asked about; empty for all."""
        self.flags = [f"--kubeconfig={target.kubeconfig}"] if target.kubeconfig else []
        """The flags with which kubectl reaches the same cluster."""
        self.flags += [f"--context={target.context}"] if target.context else []

    def note(self, text: str, *, again: bool = False) -> None:
        """Print a note on standard error, once, or again."""
        if text in self._said and not again:
            return
        self._said.add(text)
        if self._held is not None:
            self._held.append(text)
        else:
            click.echo(f"note: {tables.clean(' '.join(text.split()))}", err=True)

    @contextlib.contextmanager
    def repeat_notes(self) -> Iterator[None]:
        """Hold back notes, and print them at the end, repeated ones included."""
        self._said.clear()
        held = self._held = []
        try:
            yield
        finally:
            self._held = None
            for text in held:
                self.note(text, again=True)

    def namespaced(self, group: str, plural: str, namespace: str | None = None) -> str:
        """Return a collection's path in a namespace, by default the session's; `group`: api/v1, apis/GROUP/VERSION."""
        chosen = self.namespace if namespace is None else namespace
        return f"/{group}/namespaces/{quote(chosen)}/{plural}" if chosen else f"/{group}/{plural}"

    async def body(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        seconds: float = math.inf,
        accept: str = transport.JSON,
    ) -> bytes:
        """Return the body of a GET's answer. Raise CommandError if it failed."""
        wait = min(seconds, self._seconds)
        return await self._answered(
            f"GET {path}", lambda api: api.get(path, params=params, accept=accept, timeout=wait)
        )

    async def dry_run(self, path: str, document: object) -> bytes:
        """Create an object in a dry run; return the answer. Raise CommandError if it is refused."""
        body, params = msgspec.json.encode(document), {"dryRun": "All", "fieldManager": MANAGER}
        return await self._answered(
            f"POST {path}", lambda api: api.post(path, body, params=params, timeout=self._seconds)
        )

    async def _answered(self, request: str, ask: Callable[[client.Client], Awaitable[bytes]]) -> bytes:
        try:
            async with self._free:
                api = self._api
                try:
                    return await ask(api)
                except errors.ApiError as error:
                    if error.status != 401 or self._renew is None:
                        raise
                    return await ask(await self._renewed(api, self._renew))
        except errors.ApiError as error:
            raise _failure(request, error) from error
        except errors.Unreachable as error:
            raise ApiUnreachableError(
                f"{error}; check that the context is the right one (kubectl config current-context)"
                " and the cluster is up"
            ) from error
        except errors.ConfigError as error:
            raise CommandError(str(error)) from error

    async def _renewed(self, refused: client.Client, renew: Renew) -> client.Client:
        """Return a client with other credentials than the refused ones; they are requested once for all requests."""
        async with self._renewing:
            if self._api is refused:
                self._api = await renew()
            return self._api

    async def get(self, path: str, kind: type[T]) -> T:
        """Return one object. Raise NotFoundError if it does not exist, CommandError for other failures."""
        body = await self.body(path)
        try:
            return decoding.decode(body, kind)
        except msgspec.MsgspecError as error:
            _refuse_page(f"GET {path}", body)
            raise NotUnderstoodError(
                f"{path} is not understood: {error}; is this version of kubectl swap too old?"
            ) from error

    def prefetch(self, *paths: str) -> None:
        """Ask for the first page of each of these collections now; collect() takes each once."""
        for path in paths:
            self._ahead[path] = asyncio.ensure_future(self.body(path, {"limit": str(paging.PAGE_SIZE)}))

    async def close(self) -> None:
        """Cancel prefetched requests that nobody took."""
        for asking in self._ahead.values():
            asking.cancel()
        await asyncio.gather(*self._ahead.values(), return_exceptions=True)

    async def collect(self, path: str, kind: type[T], *, selector: str = "", fields: str = "") -> list[T]:
        """Return all objects of a collection, without invalid ones; else CommandError."""
        objects: list[T] = []
        await self.each(path, kind, objects.append, selector=selector, fields=fields)
        return objects

    async def each(
        self, path: str, kind: type[T], take: Callable[[T], None], *, selector: str = "", fields: str = ""
    ) -> None:
        """Pass each object of a collection to `take`; otherwise as collect().

        An object of which `take` raises ValueError (msgspec.DecodeError is one) is left out as well, with a note.
        CommandError if the collection cannot be read.
        """
        params = {"labelSelector": selector} if selector else {}
        params |= {"fieldSelector": fields} if fields else {}
        ahead = None if params else self._ahead.pop(path, None)
        decoder = decoding.Decoder(kind)

        async def get(asked: str, *, params: Mapping[str, str], accept: str) -> bytes:
            nonlocal ahead
            begun, ahead = ahead, None
            try:
                return await (begun or self.body(asked, params, accept=accept))
            except CommandError as error:
                match error.__cause__:
                    case errors.TooLarge() as cause:
                        raise cause from None
                    case errors.ApiError() as cause if paging.is_too_deep(cause) or asked != path:
                        raise cause from None
                raise

        def read(body: bytes) -> decoding.ListMetadata:
            try:
                page = decoding.page(body)
            except msgspec.DecodeError:
                _refuse_page(f"GET {path}", body)
                raise
            for item in page.items or ():
                try:
                    take(decoder.decode(item))
                except ValueError as error:
                    self.note(f"{path.rpartition('/')[2]} '{_name(item)}' is left out: not understood: {error}")
            return page.metadata

        try:
            await paging.read(get, path, read, params)
        except errors.TooLarge as error:
            raise ApiUnreachableError(f"GET {path}: {error}") from error
        except errors.ApiError as error:
            raise _failure(f"GET {path}", error) from error
        except msgspec.DecodeError as error:
            raise CommandError(f"the answer to GET {path} is no list: {error}") from error

    async def objects(
        self, path: str, kind: type[T], chosen: Sequence[str], *, selector: str = "", lenient: bool = False
    ) -> list[T]:
        """Return those of the names `chosen`, or all that the selector matches.

        NotFoundError if one is missing, NotUnderstoodError if one is invalid; `lenient` leaves out both.
        """
        if not chosen:
            return await self.collect(path, kind, selector=selector)

        async def one(name: str) -> T | None:
            try:
                return await self.get(f"{path}/{quote(name)}", kind)
            except (NotFoundError, NotUnderstoodError) as error:
                if not lenient:
                    raise
                if isinstance(error, NotUnderstoodError):
                    self.note(error.message)
                return None

        return [each for each in await asyncio.gather(*map(one, chosen)) if each is not None]


def _name(item: msgspec.Raw) -> str:
    """Return the name of an object for a note; empty if it has none."""
    with contextlib.suppress(msgspec.DecodeError):
        return decoding.shown(decoding.identity(item).name)
    return ""


def _refuse_page(request: str, body: bytes) -> None:
    """Raise CommandError if the answer is a web page in place of an object."""
    if page := web_page(body[:_PAGE_CHARACTERS].decode("utf-8", "replace")):
        raise CommandError(f"{request}: {page}")


def quote(name: str) -> str:
    """Return a name as one segment of a path, with any character escaped."""
    return urllib.parse.quote(name, safe="")


def web_page(answer: str) -> str | None:
    """Return the error for an answer that is a web page, which no API server sends; None for any other."""
    start = answer[:512].lstrip("\ufeff \t\r\n").lower()
    if not start.startswith(("<!doctype html", "<html", "<head", "<body", "<!--")):
        return None
    match = re.search(r"<title[^>]*>([^<]{1,200})", answer[:_PAGE_CHARACTERS], re.IGNORECASE)
    title = f" titled {' '.join(match[1].split())[:80]!r}" if match else ""
    return (
        f"the answer is a web page{title}, and no API server's; check that the context names the API server's address"
        " (kubectl config view --minify), and that no proxy in between wants a login"
    )


def _failure(request: str, error: errors.ApiError) -> CommandError:
    page = web_page(error.message)
    if page is not None:
        return CommandError(f"{request} ({error.status}): {page}")
    if error.status == 401:
        return CommandError(
            f"the API server refused the credentials (401): {error.message}; log in again, or see what the context"
            " uses with kubectl config view --minify"
        )
    if error.status == 403:
        return ForbiddenError(f"{error.message} (403); {RIGHTS}")
    if error.status == 404 and f"/{names.GROUP}/" in request and error.reason != "NotFound":
        return NotInstalledError(
            f"Swapwarden is not installed in this cluster, or is another version: it does not know"
            f" {names.API_VERSION}; install it (docs/install.md), or choose another cluster with --context"
        )
    if error.status == 404:
        # Without a reason, the answer may not be an API server's.
        return NotFoundError(error.message if error.reason == "NotFound" else f"{request}: {error}")
    return CommandError(f"{request}: {error}")


def run(target: Target, work: Callable[[Session], Awaitable[T]]) -> T:
    """Run `work` with a session of its own. CommandError if that fails."""
    try:
        return asyncio.run(_run(*_load(target), target, work))
    except errors.ConfigError as error:
        raise CommandError(str(error)) from error


def _load(target: Target) -> tuple[config.Config, bool]:
    """Return the server and the user, and whether a plugin gave the credentials, which expire."""
    plugins: list[connection.Plugin] = []

    def ask(plugin: connection.Plugin) -> connection.Credentials:
        plugins.append(plugin)
        # Most kubeconfigs name no program, and their users do not wait for the module.
        credentials = kubectl.load("cluster.credentials")
        seconds = credentials.WAIT_SECONDS if target.interactive else target.request_seconds
        given: connection.Credentials = credentials.ask(plugin, interactive=target.interactive, seconds=seconds)
        return given

    return connection.load(target.kubeconfig, target.context, ask, target.wishes), bool(plugins)


async def _run(cfg: config.Config, expires: bool, target: Target, work: Callable[[Session], Awaitable[T]]) -> T:  # noqa: FBT001 as _load returns it
    agent = f"kubectl-swap/{swapwarden.__version__}"
    async with contextlib.AsyncExitStack() as stack:

        async def connect(cfg: config.Config) -> client.Client:
            return await stack.enter_async_context(client.Client(cfg, user_agent=agent))

        async def renew() -> client.Client:
            return await connect((await asyncio.to_thread(_load, target))[0])

        asked = Session(await connect(cfg), cfg.namespace, target, renew if expires else None)
        stack.push_async_callback(asked.close)
        if cfg.insecure:
            text = (
                f"{cfg.server} is not verified (insecure-skip-tls-verify): a proxy in between can read the credentials"
                " and change the answers"
            )
            click.echo(f"warning: {tables.clean(text)}", err=True)
        return await work(asked)
