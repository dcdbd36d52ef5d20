"""Output with unknown values, and output that is repeated."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from swapwarden.api import state
from swapwarden.cli.kubectl import top
from swapwarden.cli.kubectl.cluster import session
from swapwarden.cli.kubectl.output import tables

SPEC = state.StateSpec(profile_ref=state.ProfileRef("p", 1))


class States(session.Session):
    """Sessions that read what they are given for each node."""

    def __init__(self, **found: state.StateSpec | session.CommandError) -> None:
        self.found = found
        self.notes: list[str] = []

    def note(self, text: str, *, again: bool = False) -> None:
        assert not again
        self.notes.append(text)

    async def get(self, path: str, kind: Any) -> Any:
        name = path.rpartition("/")[2]
        found = self.found[name]
        if isinstance(found, session.CommandError):
            raise found
        return kind(metadata=state.ObjectMeta(name=name), spec=msgspec.Raw(msgspec.json.encode(found)))


async def test_a_state_of_another_version_hides_those_of_no_other_node() -> None:
    states = States(
        one=SPEC,
        two=session.NotUnderstoodError("/states/two is not understood"),
        three=session.NotFoundError("no such state"),
    )
    found = await top.states_of(states, set(states.found))
    assert {name: each.spec for name, each in found.items()} == {"one": SPEC}
    assert states.notes == ["/states/two is not understood"]


async def test_without_the_right_to_states_that_is_said_once() -> None:
    states = States(one=session.ForbiddenError("not yours"), two=session.ForbiddenError("not yours"))
    assert await top.states_of(states, set(states.found)) == {}
    [note] = states.notes
    assert note.endswith(": not yours")


class Shown:
    """A followed table: each look prints, or fails, and then the user ends it."""

    def __init__(self, kubeconfig: Path, looks: Sequence[str | None]) -> None:
        content = {
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        kubeconfig.write_text(json.dumps(content))
        self._target = session.Target(str(kubeconfig))
        self._looks: Iterator[str | None] = iter(looks)

    async def _look(self, asked: session.Session) -> list[str]:
        try:
            said = next(self._looks)
        except StopIteration:
            raise KeyboardInterrupt from None
        if said is None:
            raise session.ApiUnreachableError("no answer")
        asked.note("some is not known")
        return [said]

    def follow(self) -> None:
        def show(rows: Sequence[str]) -> None:
            sys.stderr.write(f"{rows[0]}\n")

        with pytest.raises(KeyboardInterrupt):
            top.follow(top.Given((), "", "usage", 0.001, tables.Form(), self._target), self._look, show)


def test_each_outage_is_noted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Shown(tmp_path / "config", ["a", None, None, "b", None, "c"]).follow()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["note: some is not known", "a", "note: no answer", "b", "note: no answer", "c"]


def test_on_a_terminal_notes_stay_below_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier lines are wiped."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Shown(tmp_path / "config", ["a", "b", None, "c"]).follow()
    note = "note: some is not known"
    assert capsys.readouterr().err.splitlines() == [note, "a", "b", note, "note: no answer", "c", note]
