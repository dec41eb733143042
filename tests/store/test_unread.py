"""What could not be read is counted in a file, and whoever asks for the store hears of it, from elsewhere too."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from simulated_agent import research_run

from arttrace.commands import cli
from arttrace.store import Store
from arttrace.store.access.operations import OPERATIONS
from arttrace.store.access.owner_file import read_owner
from arttrace.store.server import api
from arttrace.store.server.owner import answering
from arttrace.store.unread import UnreadCount, read_unread
from arttrace.system.paths import DataDir


def test_the_file_catches_up_though_no_more_comes(tmp_path: Path) -> None:
    path = tmp_path / "unread.json"
    count = UnreadCount(path)
    for reason in ("first", "second", "third"):
        count.add(reason)
    deadline = time.monotonic() + 30
    while read_unread(path).count < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (read_unread(path).count, read_unread(path).reason) == (3, "third")


def test_two_that_count_in_one_directory_lose_none(tmp_path: Path) -> None:
    """Each wrote what it had found in the file at first, and its own."""
    path = tmp_path / "unread.json"
    one, other = UnreadCount(path), UnreadCount(path)
    one.add("of one", 2)
    other.add("of the other", 3)
    one.add("of one again", 4)
    one.close()
    other.close()
    assert (read_unread(path).count, read_unread(path).reason) == (9, "of one again")
    assert (one.counted, other.counted) == (6, 3)


def test_what_a_full_disk_did_not_take_is_counted_later(tmp_path: Path) -> None:
    count = UnreadCount(tmp_path / "not yet there" / "unread.json")
    count.add("first")
    (tmp_path / "not yet there").mkdir()
    count.add("second")
    count.close()
    assert read_unread(tmp_path / "not yet there" / "unread.json").count == 2


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDir:
    """The directory of an owner that is asked by its address from another one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("ARTTRACE_API_KEY", "secret")
    data = DataDir(tmp_path / "elsewhere")
    with Store.open(data, create=True) as store:
        store.append(research_run("a", "s"))
    return data


def listed(data: DataDir, *options: str) -> str:
    owner = read_owner(data)
    assert owner is not None
    done = CliRunner().invoke(cli, ["ls", "--url", owner.url, *options])
    assert done.exit_code == 0, done.output
    return done.stderr


def test_a_collector_elsewhere_says_what_it_could_not_read(elsewhere: DataDir) -> None:
    with Store.open(elsewhere) as store, answering(store, "secret"):
        assert listed(elsewhere) == ""
        UnreadCount(elsewhere.unread_requests).add("no JSON")
        UnreadCount(elsewhere.unread_spans).add("no trace", 2)
        UnreadCount(elsewhere.unread_entries).add("no record")
        said = listed(elsewhere)
    assert "the collector refused 1 request that it could not read (the last: no JSON)" in said
    assert "the collector refused 2 spans or log records whose trace cannot be read (the last: no trace)" in said
    assert "the store could not read 1 entry of its journal (the last: no record)" in said


def test_of_one_that_does_not_know_the_question_it_is_said(elsewhere: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "OPERATIONS", {name: one for name, one in OPERATIONS.items() if name != "unread"})
    with Store.open(elsewhere) as store, answering(store, "secret"):
        assert "how much it could not read is not known" in listed(elsewhere)
