"""What cannot be read of one form, an item or a whole file, takes nothing from what stands before it or behind it."""

from __future__ import annotations

import gzip
import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from every_form import ANSWER, ASKED, ITEMS
from system_files import lines

from arttrace.commands import cli
from arttrace.formats import systems
from arttrace.formats.imported_files import read_file
from arttrace.formats.systems import completions, exchanges, training_rows
from arttrace.formats.systems.forms import FORMS
from arttrace.formats.systems.rollouts import verl
from arttrace.formats.systems.sessions import claude_code, codex, gemini_cli
from arttrace.store import Store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir

_OTHER_FORMS = {"otlp", "records", "langfuse", "conversations"}
_ODD = [None, 7, "x", [], {}, [[{"a": 1}]]]


def good(task: str) -> dict[str, Any]:
    return {"messages": [{**ASKED, "content": task}, ANSWER]}


def test_there_is_an_item_of_every_form() -> None:
    modules = pkgutil.walk_packages(systems.__path__, f"{systems.__name__}.")
    kinds = {getattr(importlib.import_module(one.name), "KIND", None) for one in modules} - {None}
    assert kinds | _OTHER_FORMS == set(ITEMS)


@pytest.mark.parametrize("form", ITEMS)
def test_a_whole_item_of_every_form_is_read(form: str) -> None:
    found = read_file(lines(*ITEMS[form]), "file")
    assert (found.kinds, found.refused, found.left_out, bool(found.spans)) == ({form: 1}, 0, {}, True)


@pytest.mark.parametrize("form", ITEMS)
def test_no_item_is_of_two_forms(form: str) -> None:
    modules = (claude_code, codex, gemini_cli, verl, *FORMS, completions, exchanges)
    for item in ITEMS[form]:
        kinds = [module.KIND for module in modules if module.recognises(item)]
        assert kinds == ([] if form in {*_OTHER_FORMS, training_rows.KIND} else [form])


@pytest.mark.parametrize("form", ITEMS)
def test_an_item_with_odd_values_takes_nothing_from_those_beside_it(form: str) -> None:
    for at, item in enumerate(ITEMS[form]):
        for name in item:
            for odd in _ODD:
                bad = [*ITEMS[form][:at], {**item, name: odd}, *ITEMS[form][at + 1 :]]
                found = read_file(lines(good("before"), *bad, good("behind")), "file")
                assert found.kinds["conversations"] >= 2, (name, odd)


def imported(folder: Path, *files: Path) -> tuple[Result, int]:
    """What the command says of files, and how many runs it stored."""
    data = DataDir(folder / "data")
    result = CliRunner().invoke(cli, ["import", *map(str, files), "--dir", str(data.root)])
    with Store.open(data) as store:
        return result, len(store.trajectories())


def placed(folder: Path, bad: bytes) -> tuple[Path, Path, Path]:
    files = folder / "first.jsonl", folder / "bad.jsonl", folder / "last.jsonl"
    for file, content in zip(files, (lines(good("first")), bad, lines(good("last"))), strict=True):
        file.write_bytes(content)
    return files


AVIARY = {"responses_create_params": {"input": []}, "response": {"output": "none"}, "reward": 0.0}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        *((lines(*items)[:-1].rpartition(b"\n")[2][:-9], "is in no known form: ") for items in ITEMS.values()),
        (lines(AVIARY, AVIARY), "line 1: the output of its response is no list of items"),
        (b'{"a": 1}', "item 1: an object of no known form, with the keys a"),
        (b"", "it is empty"),
        (gzip.compress(lines(good("packed")))[:-12], "is in no known form: "),
        (b"PK\x03\x04", "it is a zip archive"),
        (b"PAR1" + b"\0" * 40, "is in no known form: "),
        (b"\x00\xff garbage", "neither JSON nor"),
    ],
)
def test_a_file_that_cannot_be_read_takes_nothing_from_those_beside_it(tmp_path: Path, bad: bytes, said: str) -> None:
    result, stored = imported(tmp_path, *placed(tmp_path, bad))
    assert stored == 2
    assert f"{tmp_path / 'bad.jsonl'} is in no known form: " in result.stderr
    assert said in result.stderr
    assert isinstance(result.exception, ArttraceError)
    assert result.exception.message == "1 of 3 files cannot be read"


def test_items_and_files_that_cannot_be_read_are_told_together(tmp_path: Path) -> None:
    first, bad, last = placed(tmp_path, b"[]]")
    last.write_bytes(lines(good("last"), {"a": 1}))
    result, stored = imported(tmp_path, first, bad, last)
    assert stored == 2
    assert isinstance(result.exception, ArttraceError)
    assert result.exception.message == "1 of 3 files, and 1 item in the others, cannot be read"


def test_a_file_that_cannot_be_read_is_among_those_of_the_json(tmp_path: Path) -> None:
    files = placed(tmp_path, lines(AVIARY, AVIARY))
    result = CliRunner().invoke(cli, ["import", *map(str, files), "--json", "--dir", str(tmp_path / "data")])
    shown = json.loads(result.stdout)
    assert [(one["traces"], one["refused"]) for one in shown] == [(1, 0), (0, 2), (1, 0)]
    assert "no list of items" in shown[1]["reasons"][0]
