"""Progress is reported at a bounded rate, with what is left, and the last one always."""

from __future__ import annotations

import json
import shlex
import threading
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from simulated_agent import research_run
from stored_runs import store_by_an_earlier_version

from arttrace.commands import cli
from arttrace.commands.shared.progress import CountedProgress, Progress, watched
from arttrace.records.values.units import duration_text
from arttrace.store import Store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir


def test_progress_has_a_rate_and_the_time_that_is_left() -> None:
    shown: list[str] = []
    now = 0.0
    progress = Progress(100, "steps", shown.append, every_s=5.0, clock=lambda: now)
    for done in range(1, 101):
        now = done * 2.0
        progress(done, "; loss 1")
    assert shown[0] == "3 of 100 steps, 2.0 s each, 3 min 14 s left; loss 1"
    assert shown[-1] == "100 of 100 steps, 2.0 s each; loss 1"
    assert len(shown) == 34, "not more than one in five seconds"


def test_fast_work_says_how_many_a_second() -> None:
    shown: list[str] = []
    now = 0.0
    progress = Progress(1000, "runs", shown.append, every_s=5.0, clock=lambda: now)
    now = 10.0
    progress(500)
    assert shown == ["500 of 1000 runs, 50.0 per second, 10 s left"]


def test_a_duration_is_reported_in_its_largest_units() -> None:
    assert [duration_text(seconds) for seconds in (4.4, 75, 7300)] == ["4 s", "1 min 15 s", "2 h 1 min"]


def test_short_work_need_not_be_reported() -> None:
    shown: list[str] = []
    now = 0.0
    progress = Progress(2, "runs", shown.append, every_s=5.0, tells_short=False, clock=lambda: now)
    progress(2)
    assert shown == []
    now = 5.0
    progress(1)
    now = 6.0
    progress(2)
    assert shown == ["1 of 2 runs, 5.0 s each, 5 s left", "2 of 2 runs, 3.0 s each"]


def test_work_that_tells_its_size_late_is_timed_from_its_beginning() -> None:
    shown: list[str] = []
    now = 0.0
    bar = CountedProgress(0, "runs", shown.append, every_s=5.0, clock=lambda: now)
    now = 2.0
    bar.of(4, 4)
    assert shown == ["4 of 4 runs, 2.0 per second"]


def test_the_end_is_reported_once_however_often_it_is_said() -> None:
    """As where the last mebibyte of a file is long."""
    shown: list[str] = []
    now = 0.0
    progress = Progress(4, "MiB", shown.append, every_s=5.0, clock=lambda: now)
    for second in range(1, 6):
        now = float(second)
        progress(4)
    assert len(shown) == 1
    now = 6.0
    progress(4)
    assert len(shown) == 2, "and again when it is due"


def test_work_that_says_when_it_begins_is_timed_from_then() -> None:
    """What had to be read before is in no rate."""
    shown: list[str] = []
    now = 0.0
    bar = CountedProgress(0, "runs", shown.append, every_s=5.0, clock=lambda: now)
    now = 100.0
    bar.of(0, 400)
    now = 110.0
    bar.of(100, 400)
    assert shown == ["100 of 400 runs, 10.0 per second, 30 s left"]


def test_work_that_does_not_say_how_far_it_is_is_watched() -> None:
    shown: list[str] = []
    measured, looked = [3, 7], threading.Event()

    def measure() -> int:
        if not measured:
            looked.set()
            raise OSError("it is gone")
        return measured.pop(0)

    with watched(measure, Progress(10, "MB", shown.append, every_s=0.0, tells_short=False), every_s=0.001):
        assert looked.wait(60)
    assert [line.partition(",")[0] for line in shown] == ["3 of 10 MB", "7 of 10 MB"]


def test_an_import_is_as_far_as_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a few mebibytes is read at once, and is not done then."""
    said = [{"role": "user", "content": "x" * (1 << 18)}, {"role": "assistant", "content": "y"}]
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps({"messages": said, "n": number}) + "\n" for number in range(16)))
    monkeypatch.setattr("arttrace.formats.imported_files._RECORDS_AT_ONCE", 8)
    monkeypatch.setattr("arttrace.commands.data.import_.Progress", partial(Progress, every_s=0.0))
    done = CliRunner().invoke(cli, ["import", str(file), "--dir", str(tmp_path / "data")])
    assert done.exit_code == 0, done.output
    at = [int(line.partition(" of 4 MiB")[0]) for line in done.stderr.splitlines()]
    assert at == [1, 2, 3, 4]


def test_a_prune_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataDir(tmp_path)
    with Store.open(data, create=True) as store:
        store.append([*research_run("a"), *research_run("b")])
    shown, prune = threading.Event(), Store.prune

    def slow(self: Store, *, dry_run: bool = False, **given: Any) -> Any:
        if not dry_run:
            assert shown.wait(60)
        return prune(self, dry_run=dry_run, **given)

    def echo(line: str) -> None:
        click.echo(line, err=True)
        shown.set()

    monkeypatch.setattr(Store, "prune", slow)
    monkeypatch.setattr("arttrace.commands.shared.progress.say", echo)
    monkeypatch.setattr("arttrace.commands.data.prune._LOOK_S", 0.001)
    monkeypatch.setattr("arttrace.commands.data.prune.Progress", partial(Progress, every_s=0.0))
    done = CliRunner().invoke(cli, ["prune", "--max-size", "1KB", "--dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "MB (estimated)" in done.stderr


@pytest.mark.parametrize(
    ("module", "command", "shown"),
    [
        ("arttrace.commands.data.export", "export a b", "2 of 2 runs"),
        ("arttrace.commands.data.export", "export", "16 of 16 spans"),
        ("arttrace.commands.inspect.group", "group --by input --dry-run", "2 of 2 runs read"),
    ],
)
def test_long_reading_says_how_far_it_is(
    module: str, command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*research_run("a"), *research_run("b")])
    quiet = CliRunner().invoke(cli, [*command.split(), "--dir", str(tmp_path)])
    assert quiet.stderr == ""
    monkeypatch.setattr(f"{module}.Progress", partial(Progress, every_s=0.0))
    done = CliRunner().invoke(cli, [*command.split(), "--dir", str(tmp_path)])
    assert done.stdout == quiet.stdout
    assert shown in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "ls --errors",
        "sql 'SELECT count(*) FROM tool_calls'",
        "stats --by tool",
        "group --by input --dry-run",
        "dataset --format trl-sft --output rows.jsonl",
    ],
)
def test_the_first_reading_of_many_runs_says_how_far_it_is(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*research_run("a"), *research_run("b")])
    monkeypatch.setattr("arttrace.store.access.queries._SPANS_AT_ONCE", 1)
    monkeypatch.setattr("arttrace.store.access.summary_pages._RUNS_OF_PAGE", 1)
    monkeypatch.setattr("arttrace.commands.shared.progress.Progress", partial(Progress, every_s=0.0))
    again = [CliRunner().invoke(cli, [*shlex.split(command), "--dir", str(tmp_path)]) for _ in range(2)]
    assert [done.exit_code for done in again] == [0, 0]
    assert "1 of 2 runs read" in again[0].stderr
    assert "runs read" not in again[1].stderr, "they are read once"


COMMANDS_THAT_OPEN_THE_STORE = [
    "ls",
    "sql 'SELECT 1'",
    "stats --by tool",
    "group --by input --dry-run",
    "export",
    "dataset --format trl-sft -o r",
    f"show {'a' * 32}",
    f"diff {'a' * 32} {'b' * 32}",
    "top --once",
    "prune --older-than 1000000d --dry-run",
    "view --port 0",
    "doctor",
    "rollout --entry nothing:at_all",
    "train --dry-run",
]


@pytest.mark.parametrize("command", COMMANDS_THAT_OPEN_THE_STORE)
def test_runs_that_another_version_stored_are_read_again_and_it_says_how_far_it_is(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store_by_an_earlier_version(DataDir(tmp_path))
    monkeypatch.setattr("arttrace.store.file.reread._AT_ONCE", 1)
    monkeypatch.setattr("arttrace.commands.shared.progress.Progress", partial(Progress, every_s=0.0))
    monkeypatch.setattr("arttrace.commands.inspect.view.Ending.run", lambda *_: None)
    again = [CliRunner().invoke(cli, [*shlex.split(command), "--dir", str(tmp_path)]) for _ in range(2)]
    assert all(isinstance(done.exception, (type(None), SystemExit, ArttraceError)) for done in again)
    assert "1 of 2 runs read" in again[0].stderr
    assert "1 of 2 runs read" not in again[1].stderr, "they are read once"
