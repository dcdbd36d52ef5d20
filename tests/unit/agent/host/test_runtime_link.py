"""The socket at which plugins of the container runtime connect: bounded, never waiting, each plugin apart."""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import socket
import stat
import tempfile
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.host import link_messages, runtime_link
from swapwarden.api import runtime_link as protocol

from tests.unit.agent.agent_node import until
from tests.unit.agent.fake_plugin import FakePlugin


class Hearing:
    """A link, and what it reported."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.link = runtime_link.RuntimeLink(folder, self.readable)
        self.events: list[runtime_link.LinkEvent] = []

    def readable(self) -> None:
        self.events += self.link.events()

    def has(self, count: int) -> bool:
        return len(self.link.peers) == count

    def messages(self, plugin: FakePlugin) -> list[link_messages.PluginMessage]:
        said = (each for each in self.events if isinstance(each, runtime_link.PluginSaid))
        return [each.message for each in said if each.peer is plugin.peer]


@pytest.fixture
async def hearing() -> AsyncIterator[Hearing]:
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket has at most 107 bytes
        made = Hearing(pathlib.Path(folder))
        yield made
        made.link.close()


WRONG = [
    b"\xff",
    b"[]",
    b"{}",
    b'{"kind": 1}',
    b'{"kind": "runtime"}',
    b'{"kind": "runtime", "connected": "yes"}',
    b'{"kind": "sandbox", "seq": -1, "uid": "u", "id": "i", "cgroup": ""}',
    b'{"kind": "created", "uid": "", "id": "i", "name": "c"}',
    b'{"kind": "resized", "id": "' + b"i" * 129 + b'"}',
    b'{"kind": "containers", "items": [{"uid": "u"}]}',
    b'{"kind": "hello", "version": "' + b"[" * 5000 + b'"}',
    b"[" * 5000,
    b'{"kind": "hello"}'.ljust(protocol.MAX_PACKET + 1),
]


@pytest.mark.parametrize("packet", WRONG, ids=range(len(WRONG)))
async def test_a_wrong_message_ends_only_its_own_connection(hearing: Hearing, packet: bytes) -> None:
    bad, good = FakePlugin(hearing.link), FakePlugin(hearing.link)
    bad.send(packet)
    await until(lambda: bad.ended)
    good.say(protocol.FromPlugin.HELLO, version="1")
    await until(lambda: hearing.messages(good) == [link_messages.PluginHello("1")])
    assert runtime_link.PluginGone(bad.peer) in hearing.events
    assert list(hearing.link.peers.values()) == [good.peer]


async def test_kinds_and_fields_of_a_newer_plugin_are_ignored(hearing: Hearing) -> None:
    plugin = FakePlugin(hearing.link)
    plugin.send(b'{"kind": "weather", "rain": true}')
    plugin.send(b'{"kind": "removed", "id": "i", "why": "rain"}')
    await until(lambda: hearing.messages(plugin) == [link_messages.ContainerRemoved("i")])


@given(
    st.binary(max_size=300)
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["kind", "items", "id", "uid", "seq", "failed"]), inner)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_a_message_or_a_value_error(packet: bytes) -> None:
    with contextlib.suppress(ValueError):
        link_messages.decode(packet)


async def test_a_plugin_that_reads_nothing_is_dropped_and_others_get_their_messages(hearing: Hearing) -> None:
    deaf, good = FakePlugin(hearing.link), FakePlugin(hearing.link)
    content = {"text": "x" * 60_000}
    sent = 0
    while not deaf.ended:
        hearing.link.send(deaf.peer, protocol.FromAgent.PODS, content)
        sent += len(content["text"])
        assert sent < 2 * runtime_link.BACKLOG_BYTES
    hearing.link.send(good.peer, protocol.FromAgent.READY)
    await good.hears(protocol.FromAgent.READY)


async def test_what_does_not_fit_at_once_follows_as_the_plugin_reads(hearing: Hearing) -> None:
    plugin = FakePlugin(hearing.link)
    for number in range(40):
        hearing.link.send(plugin.peer, protocol.FromAgent.PODS, {"number": number, "text": "x" * 60_000})
    assert plugin.peer.backlog, "the socket took all: the test shows nothing"
    await plugin.hears(protocol.FromAgent.PODS, 40)
    assert [each["number"] for each in plugin.heard] == list(range(40))


async def test_the_socket_is_the_agents_alone_and_replaces_one_that_was_left(hearing: Hearing) -> None:
    path = hearing.folder / protocol.SOCKET
    path.touch(0o666)
    hearing.link.open()
    assert hearing.link.failed == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    hearing.link.close()
    assert not path.exists()


async def test_of_too_many_plugins_the_last_is_refused(hearing: Hearing) -> None:
    hearing.link.open()
    made = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(protocol.MAX_PLUGINS + 1)]
    try:
        for number, each in enumerate(made[:-1]):
            each.connect(str(hearing.folder / protocol.SOCKET))
            await until(functools.partial(hearing.has, number + 1))
        made[-1].connect(str(hearing.folder / protocol.SOCKET))
        made[-1].setblocking(False)

        def is_refused() -> bool:
            try:
                return made[-1].recv(1) == b""
            except BlockingIOError:
                return False

        await until(is_refused)
        assert len(hearing.link.peers) == protocol.MAX_PLUGINS
    finally:
        for each in made:
            each.close()


async def test_the_file_of_the_mode_is_replaced_as_a_whole(hearing: Hearing, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seen = hearing.folder / protocol.MODE_FILE, []
    real = pathlib.Path.replace

    def replace(path: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
        seen.append((path.read_text(), to.read_text() if to.exists() else None))
        return real(path, to)

    monkeypatch.setattr(pathlib.Path, "replace", replace)
    for mode in ("", "Enforce", "Enforce", "Restore"):
        hearing.link.set_mode(mode)
    assert seen == [("\n", None), ("Enforce\n", "\n"), ("Restore\n", "Enforce\n")]
    assert file.read_text() == "Restore\n"
    hearing.link.close()
    assert file.exists(), "a plugin that starts later must not enforce"


async def test_a_folder_that_is_missing_is_reported_and_tried_again(hearing: Hearing) -> None:
    link = runtime_link.RuntimeLink(hearing.folder / "later", hearing.readable)
    link.open()
    link.set_mode("Enforce")
    assert link.failed
    (hearing.folder / "later").mkdir()
    link.open()
    link.set_mode("Enforce")
    assert (link.failed, (hearing.folder / "later" / protocol.MODE_FILE).read_text()) == ("", "Enforce\n")
    link.close()


async def test_without_a_free_descriptor_the_loop_does_not_spin(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    class Full(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            tried.append(1)
            if len(tried) == 1:
                raise OSError(24, "Too many open files")
            return super().accept()

    monkeypatch.setattr(socket, "socket", Full)
    monkeypatch.setattr(runtime_link, "ACCEPT_SECONDS", 0.05)
    hearing.link.open()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as plugin:
        plugin.connect(str(hearing.folder / protocol.SOCKET))
        await until(lambda: bool(hearing.link.peers))
    assert len(tried) == 2


@given(st.dictionaries(st.text(max_size=40), st.text(max_size=9000), max_size=40))
def test_parts_have_each_entry_once_and_fit_a_packet(entries: dict[str, str]) -> None:
    parts = runtime_link.parts(entries.items())
    joined = [pair for part in parts for pair in part.items()]
    assert joined == list(entries.items())
    packets = [msgspec.json.encode({"kind": "pods", "pods": part}) for part in parts]
    assert all(len(packet) <= protocol.MAX_PACKET for packet in packets)
