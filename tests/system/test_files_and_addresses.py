"""A file is replaced whole or stays as it was; a loopback name is one that leads to this machine alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from arttrace.store.server.metrics_text import MetricsText
from arttrace.system import files
from arttrace.system.addresses import is_loopback, is_loopback_authority
from arttrace.system.errors import ArttraceError
from arttrace.system.files import directory_bytes, replace_file, whole_file
from arttrace.system.processes import is_alive


def test_an_error_shows_no_control_characters_and_no_more_than_a_person_reads() -> None:
    error = ArttraceError("a \x1b[31mred\x1b[0m\tline\r\nand\rone\x00 \x9b2J" + "x" * 10**6, "b\x1b]8;;http://c\x07")
    assert error.message.startswith("a ·[31mred·[0m\tline\nand·one· ·2Jxxx")
    assert len(error.message) < 11_000
    assert error.message.endswith("... (1000033 characters)")
    assert error.hint == "b·]8;;http://c·"
    assert str(error) == f"{error.message}\n{error.hint}"


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_file(path, b"one")
    replace_file(path, b"another")
    assert path.read_bytes() == b"another"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_disk_that_refuses_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    replace_file(path, b"one")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"another")
    assert path.read_bytes() == b"one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_a_file_that_need_not_last_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.os, "fsync", lambda fd: pytest.fail("the disk was waited for"))
    replace_file(tmp_path / "state.json", b"one", durably=False)
    replace_file(tmp_path / "state.json", b"another", durably=False)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"state.json": b"another"}


def test_a_file_that_is_written_in_a_block_is_there_when_the_block_ends_well(tmp_path: Path) -> None:
    path, link = tmp_path / "rows", tmp_path / "link"
    path.write_bytes(b"old")
    link.symlink_to(path)
    block = whole_file(path)
    block.__enter__().write(b"half of the")
    assert not block.__exit__(KeyError, KeyError(), None)
    assert path.read_bytes() == b"old"
    with whole_file(link) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert link.is_symlink()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "rows"]


def test_of_two_that_write_a_file_at_once_the_last_one_wins_whole(tmp_path: Path) -> None:
    path = tmp_path / f"{'ö' * 120}.jsonl"
    with whole_file(path) as slow:
        slow.write(b"a" * 10)
        slow.flush()
        with whole_file(path) as fast:
            fast.write(b"b" * 4)
        assert path.read_bytes() == b"bbbb"
        slow.write(b"a" * 10)
    assert path.read_bytes() == b"a" * 20
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_file_takes_the_place_of_another_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "backup.jsonl"
    path.write_bytes(b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"), whole_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["backup.jsonl"]


def test_the_size_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a.seg").write_bytes(b"12345")
    (tmp_path / "b.open").write_bytes(b"123")
    assert directory_bytes(tmp_path) == 8
    assert directory_bytes(tmp_path, ".seg") == 5
    assert directory_bytes(tmp_path / "none") == 0


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_loopback_hosts(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "127.example.com", "127.0.0.1.example.com", "localhost.example.com", "10.0.0.1"]
)
def test_other_hosts(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("authority", "ours"),
    [
        (b"localhost", True),
        (b"localhost:8080", True),
        (b"127.0.0.1:8080", True),
        (b"[::1]:8080", True),
        (b"[::1]", True),
        (b"::1", False),
        (b"127.example.com:80", False),
        (b"localhost:evil", False),
        (b"evil\xff", False),
        (b"", False),
    ],
)
def test_the_value_of_a_host_header(authority: bytes, ours: bool) -> None:
    assert is_loopback_authority(authority) is ours


def test_a_process_lives_until_it_was_waited_for() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(process.pid)
    process.communicate(b"\n")
    assert os.name != "posix" or not is_alive(process.pid)


def test_what_is_in_a_label_cannot_end_it() -> None:
    text = MetricsText("a_")
    text.add("gauge", "b", "Help.", 1, policy='x"} 5\n\\')
    text.add("gauge", "b", "Help.", 2, policy="y")
    assert text.encode() == (b'# HELP a_b Help.\n# TYPE a_b gauge\na_b{policy="x\\"} 5\\n\\\\"} 1\na_b{policy="y"} 2\n')
