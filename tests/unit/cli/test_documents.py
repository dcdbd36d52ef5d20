from __future__ import annotations

import io
import pathlib
import sys

import pytest
from swapwarden.cli import documents


def read(text: str, tmp_path: pathlib.Path, name: str = "in.yaml") -> tuple[list[documents.Found], documents.Log]:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    log = documents.Log()
    return list(documents.read([str(file)], log)), log


def names(found: list[documents.Found]) -> list[str]:
    return [one.object["metadata"]["name"] for one in found]


def messages(entries: list[documents.Message], tmp_path: pathlib.Path) -> list[str]:
    return [str(entry).removeprefix(f"{tmp_path}/") for entry in entries]


def pod(name: str) -> str:
    return f"{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}}}"


def test_several_documents_and_empty_ones(tmp_path: pathlib.Path) -> None:
    found, log = read(f"# nothing yet\n---\n---\n{pod('a')}\n---\n# nothing\n---\n{pod('b')}\n", tmp_path)
    assert names(found) == ["a", "b"]
    assert [one.place.document for one in found] == [2, 4]
    assert log == documents.Log()


def test_lists_in_lists(tmp_path: pathlib.Path) -> None:
    text = f"""
apiVersion: v1
kind: List
items:
- {pod("a")}
- apiVersion: v1
  kind: PodList
  items: [{{metadata: {{name: b}}}}]
- {{apiVersion: v1, kind: NodeList, items: []}}
- {{apiVersion: example.com/v1, kind: AllowList, metadata: {{name: c}}}}
"""
    found, log = read(text, tmp_path)
    assert [(one.object["kind"], str(one.place.path)) for one in found] == [
        ("Pod", "items[0]"),
        ("Pod", "items[1].items[0]"),
        ("AllowList", "items[3]"),
    ]
    assert names(found) == ["a", "b", "c"]
    assert not log.problems


def test_json_whatever_the_file_is_called(tmp_path: pathlib.Path) -> None:
    found, log = read('{\t"apiVersion": "v1",\n\t"kind": "Pod", "metadata": {"name": "a", "name": "b"}}', tmp_path)
    assert names(found) == ["b"]
    assert messages(log.notes, tmp_path) == [
        "in.yaml: document 1: the key 'name' is repeated in one mapping; the last one counts"
    ]


def test_flow_style_yaml_is_not_taken_for_json(tmp_path: pathlib.Path) -> None:
    found, log = read(f"{pod('a')}\n---\n{pod('b')}", tmp_path)
    assert names(found) == ["a", "b"]
    assert log == documents.Log()


def test_values_are_what_kubectl_sees(tmp_path: pathlib.Path) -> None:
    (found,), log = read(
        "{apiVersion: v1, kind: X, time: 2026-01-01T00:00:00Z, day: 2026-01-01, none: null, n: 1, f: 0.5, 5: x,"
        " op: =, at: 12:30, long: 1:30.5}",
        tmp_path,
    )
    assert found.object == {
        "apiVersion": "v1",
        "kind": "X",
        "time": "2026-01-01T00:00:00Z",
        "day": "2026-01-01",
        "n": 1,
        "f": 0.5,
        "5": "x",
        "op": "=",
        "at": "12:30",
        "long": "1:30.5",
    }
    assert log == documents.Log()


def test_a_repeated_key(tmp_path: pathlib.Path) -> None:
    found, log = read(f"{pod('a')}\n---\napiVersion: v1\nkind: Pod\nmetadata: {{name: b, name: c}}\n", tmp_path)
    assert names(found) == ["a", "c"]
    assert messages(log.notes, tmp_path) == [
        "in.yaml: document 2: the key 'name' is repeated in one mapping; the last one counts"
    ]


def test_merged_keys_are_not_repeated_ones(tmp_path: pathlib.Path) -> None:
    text = "x: &base {kind: A, apiVersion: v1}\n<<: *base\nkind: B\n"
    (found,), log = read(text, tmp_path)
    assert (found.object["kind"], found.object["apiVersion"]) == ("B", "v1")
    assert log == documents.Log()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "document 1: not YAML: "),
        (
            f"{pod('a')}\n---\na: b: c\n",
            "document 2: not YAML: mapping values are not allowed in this context (line 3, ",
        ),
        ("a: !!python/object:os.system x", "document 1: not YAML: could not determine a constructor"),
        ("a: \x01", "document 1: not YAML: "),
        ("- a", "document 1: expected an object with apiVersion and kind, got a list"),
        ("text", "document 1: expected an object with apiVersion and kind, got a string"),
        ("5", "document 1: expected an object with apiVersion and kind, got a number"),
        ("true", "document 1: expected an object with apiVersion and kind, got a boolean"),
        ("kind: Pod", "document 1: apiVersion: Required value"),
        ("apiVersion: v1", "document 1: kind: Required value"),
        ("{apiVersion: v1, kind: 5}", "document 1: kind: Required value"),
        ("{apiVersion: v1, kind: List, items: {}}", "document 1: items: expected a list, got a mapping"),
        ("{apiVersion: v1, kind: List, items: [null]}", "document 1: items[0]: expected an object"),
        ("{apiVersion: v1, kind: List, items: [{kind: Pod}]}", "document 1: items[0].apiVersion: Required value"),
        ("a: &a [*a]", "document 1: its aliases expand to too much"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "document 1: nested too deeply"),
        (
            "a: !!binary aGVsbG8=",
            "document 1: not YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:binary'",
        ),
        ("a: !!timestamp 2026-01-01", "document 1: not YAML: could not determine a constructor"),
        ("a: !!set {b}", "document 1: not YAML: could not determine a constructor"),
        (f"a: 0x{'f' * 5000}", "document 1: holds a number of 20000 bits, which is more than an object can"),
        (f"? 0x{'f' * 5000}\n: a", "document 1: holds a number of 20000 bits"),
        (f'{{"a": {"9" * 5000}}}', "document 1: not YAML: Exceeds the limit"),
    ],
)
def test_bad_input_is_named_by_file_document_and_path(text: str, message: str, tmp_path: pathlib.Path) -> None:
    _, log = read(text, tmp_path)
    (problem,) = messages(log.problems, tmp_path)
    assert problem.startswith(f"in.yaml: {message}")


def test_aliases_that_expand_to_gigabytes(tmp_path: pathlib.Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    _, log = read("\n".join(lines), tmp_path)
    assert messages(log.problems, tmp_path) == ["in.yaml: document 1: its aliases expand to too much"]


def test_a_directory_is_read_like_kubectl_does(tmp_path: pathlib.Path) -> None:
    for name in ("b.yaml", "a.yml", "c.json", "d.txt", "e.YAML"):
        (tmp_path / name).write_text(pod(name))
    (tmp_path / "inside.yaml").mkdir()
    (tmp_path / "inside.yaml" / "f.yaml").write_text(pod("f"))
    log = documents.Log()
    assert names(list(documents.read([str(tmp_path)], log))) == ["a.yml", "b.yaml", "c.json"]
    assert log == documents.Log()


def test_files_that_cannot_be_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    (tmp_path / "good.yaml").write_text(pod("a"))
    log = documents.Log()
    found = list(documents.read([str(tmp_path / name) for name in ("none", "empty", "latin.yaml", "good.yaml")], log))
    assert names(found) == ["a"]
    assert messages(log.problems, tmp_path) == [
        "none: cannot be read: No such file or directory",
        "empty: no file in this directory ends in one of .json, .yaml, .yml",
        "latin.yaml: not UTF-8 text: unexpected end of data at byte 3",
    ]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"\ufeff{pod('a')}".encode())))
    log = documents.Log()
    (found,) = documents.read(["-"], log)
    assert (str(found.place), log) == ("standard input: document 1", documents.Log())
