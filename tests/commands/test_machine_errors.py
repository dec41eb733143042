"""What the machine refuses a command (another user's files, a full disk) is an error with cause and remedy."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from forked_commands import commands
from simulated_agent import research_run
from small_disk import only_root, small_disk

from arttrace.commands import main
from arttrace.store import Store
from arttrace.system.paths import DataDir


def refused_by(number: int, path: Path | None) -> Any:
    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise OSError(number, os.strerror(number), *([str(path)] if path is not None else []))

    return refuse


def said_by(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 1
) -> str:
    monkeypatch.setattr(sys, "argv", ["arttrace", *arguments])
    monkeypatch.setattr("arttrace.commands.only_for_its_user", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == status
    said = capsys.readouterr()
    return said.err + said.out


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, ["belongs to", "--dir", "copy it"]),
        (errno.EPERM, ["belongs to", "--dir"]),
        (errno.EROFS, ["can be written", "--dir"]),
        (errno.ENOSPC, ["Free disk space", "not lost"]),
    ],
)
def test_what_the_machine_refuses_is_said_with_cause_and_remedy(
    number: int, remedy: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)  # so the files are another user's
    monkeypatch.setattr("arttrace.store.Store.open", refused_by(number, tmp_path / "store.duckdb"))
    said = said_by(monkeypatch, capsys, "ls", "--dir", str(tmp_path))
    assert said.startswith(f"error: {tmp_path / 'store.duckdb'}: {os.strerror(number)}\n")
    assert all(word in said for word in remedy), said
    assert "Traceback" not in said


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc, in which nothing can be made")
@pytest.mark.parametrize(
    ("arguments", "place", "remedy"),
    [
        (["init", "/proc/x"], "/proc/x", "Name another directory"),
        (["import", "--dir", "/proc/x", "FILE"], "/proc/x", "choose another: --dir"),
        (["collect", "--port", "0", "--dir", "/proc/x"], "/proc/x", "choose another: --dir"),
        (["demo", "--dir", "/proc/x"], "/proc/x", "choose another: --dir"),
        (["init", "n" * 300], "n" * 300, "Name another directory"),
        (["ls", "--dir", "n" * 300], "n" * 300, "Choose another: --dir"),
    ],
)
def test_a_directory_that_cannot_be_made_is_an_error_with_its_remedy(
    arguments: list[str],
    place: str,
    remedy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text(
        '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}\n'
    )
    said = said_by(monkeypatch, capsys, *arguments)
    assert said.startswith("error: ")
    assert place in said
    assert remedy in said
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


@only_root
@pytest.mark.parametrize("folder", ["data", "data/not/made/yet"])
def test_a_collector_whose_disk_cannot_be_written_does_not_start(folder: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with small_disk(tmp_path / "data", "ro"):
        command = [sys.executable, "-m", "arttrace", "collect", "--port", "0", "--dir", str(tmp_path / folder)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert "Read-only file system\nChoose a data directory that can be written" in ended.stderr
    assert "collecting on" not in ended.stdout


def test_the_doctor_goes_on_where_the_store_is_another_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    DataDir(tmp_path).store.touch()
    monkeypatch.delenv("ARTTRACE_ENDPOINT", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setattr("arttrace.store.Store.open", refused_by(errno.EACCES, tmp_path / "store.duckdb"))
    said = said_by(monkeypatch, capsys, "doctor", "--dir", str(tmp_path))
    assert f"error store {tmp_path / 'store.duckdb'}: Permission denied" in " ".join(said.split())
    assert "http://127.0.0.1:9/v1" in said  # what comes after it is looked at too


def test_an_error_that_is_ours_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["arttrace", "ls", "--dir", str(tmp_path)])
    monkeypatch.setattr("arttrace.commands.only_for_its_user", lambda: None)
    monkeypatch.setattr("arttrace.store.Store.open", refused_by(errno.EBADF, None))
    with pytest.raises(OSError, match="Bad file descriptor"):
        main()


def test_a_file_that_is_not_there_imports_nothing_and_makes_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.jsonl"
    there.write_text('{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}\n')
    said = said_by(monkeypatch, capsys, "import", "--dir", str(tmp_path / "d"), str(there), str(tmp_path / "missing"))
    assert f"error: {tmp_path / 'missing'} cannot be read: No such file or directory\nCheck its path." in said
    assert not (tmp_path / "d").exists()


def test_a_directory_is_not_imported_and_it_is_said_how_its_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exports = tmp_path / "my exports"
    exports.mkdir()
    said = said_by(monkeypatch, capsys, "import", "--dir", str(tmp_path / "d"), str(exports))
    assert f"error: {exports} is a directory\nName its files: arttrace import '{exports}'/*" in said
    assert not (tmp_path / "d").exists()


def test_a_pipe_is_not_imported_and_makes_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    said = said_by(monkeypatch, capsys, "import", "--dir", str(tmp_path / "d"), str(tmp_path / "pipe"))
    assert f"error: {tmp_path / 'pipe'} is a pipe or a device, and is read twice\nWrite it to a file" in said
    assert not (tmp_path / "d").exists()


_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
"""An interpreter that was asked to know no letters but ASCII's."""


def _arttrace(folder: Path | bytes, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from arttrace.commands import main; main()", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, timeout=200, check=False
    )


def test_an_interpreter_that_knows_ascii_only_works_in_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "köln 日本"
    with Store.open(DataDir(folder / ".arttrace"), create=True) as store:
        store.append(research_run("schön", "größe") + research_run("other", "größe"))
    asked = {
        ("show", "schö"): rb"sch\xf6n",
        ("ls", "--search", "läufer"): b"no trajectory matches",
        ("ls", "--group", "größe"): rb"sch\xf6n",
        ("sql", "SELECT 'ü' AS ü, id FROM trajectories WHERE id = 'schön'"): rb"sch\xf6n",
        ("sql", "--json", "SELECT id FROM trajectories WHERE id = 'schön'"): "schön".encode(),
    }
    working = ("ls", "show other", "export --format parquet -o öl", "prune --max-size 1MB")
    ran = commands(
        sys.executable, folder, {**os.environ, **_ASCII}, [*asked, *map(str.split, working)], "arttrace.store", "rich"
    )
    assert all(b"Traceback" not in one.stderr for one in ran), ran
    for one, answer in zip(ran, asked.values(), strict=False):
        assert answer in one.stdout + one.stderr, one
    said = dict(zip(working, ran[len(asked) :], strict=True))
    assert all(one.returncode == 0 for one in said.values()), ran
    assert rb"sch\xf6n" in said["ls"].stdout
    assert (folder / "öl" / "trajectories.parquet").exists()


def test_a_folder_whose_name_is_no_utf8_is_named(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/k\xf6ln"
    os.mkdir(folder)  # noqa: PTH102  a name of bytes
    file = tmp_path / "runs.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "so"}]}\n')
    ran = _arttrace(folder, "import", str(file))
    assert ran.returncode == 1
    assert ran.stderr.startswith(b"error: DuckDB opens no file whose name is not UTF-8: "), ran.stderr
    assert b"Give another directory with --dir." in ran.stderr


@pytest.mark.parametrize(
    "command",
    [
        "ls --search TEXT",
        "ls --url http://TEXT",
        "sql TEXT",
        "judge-check --judge TEXT",
        "judge-check --judge m --rubric TEXT",
        "policies rollback TEXT",
    ],
)
def test_a_parameter_that_is_no_utf8_is_refused_by_name(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("ARTTRACE_DIR", str(tmp_path))
    said = said_by(monkeypatch, capsys, *command.replace("TEXT", "k\udcf6ln").split(), status=2)
    assert "Invalid value for" in said
    assert r"'k\udcf6ln' is not UTF-8: type it in a terminal that is set to UTF-8" in said.replace("http://", "")


def test_a_torch_whose_libraries_are_not_there_is_reported_in_two_lines(tmp_path: Path) -> None:
    refusal = "libcudnn.so.9: cannot open shared object file: No such file or directory"
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"raise ImportError({refusal!r})\n")
    code = "from arttrace.commands import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, "demo", "--dir", "demo"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 1
    cause, hint = ran.stderr.splitlines()
    assert cause == f"error: torch is installed, and cannot be imported: {refusal}"
    assert "torch's CPU build" in hint


def test_an_import_that_fails_by_its_own_code_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise ImportError("cannot import name 'a' from 'b'")

    monkeypatch.setattr("arttrace.store.Store.open", refuse)
    monkeypatch.setattr("arttrace.commands.only_for_its_user", lambda: None)
    monkeypatch.setattr(sys, "argv", ["arttrace", "ls", "--dir", str(tmp_path)])
    with pytest.raises(ImportError, match="cannot import name"):
        main()


def test_a_store_that_cannot_be_written_is_not_called_damaged(tmp_path: Path) -> None:
    """The remedy was to move it away: `arttrace ls` would make a new one, without its runs."""
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append(research_run("run"))
    data.store.chmod(0o444)
    no_rights = "-dac_override,-dac_read_search"  # of root, who may write to any file
    as_user = ["setpriv", f"--bounding-set={no_rights}", f"--inh-caps={no_rights}"] if os.geteuid() == 0 else []
    ran = subprocess.run(
        [*as_user, sys.executable, "-m", "arttrace", "ls", "--dir", str(data.root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert f'Cannot open file "{data.store}": Permission denied\n' in ran.stderr
    assert f"`chmod u+w {data.store}`" in ran.stderr
    assert "copy its directory and pass the copy with --dir" in ran.stderr
    assert "damaged" not in ran.stderr
    copy = tmp_path / "copy"
    shutil.copytree(data.root, copy)
    (copy / data.store.name).chmod(0o600)
    assert "run" in _arttrace(tmp_path, "ls", "--dir", str(copy)).stdout.decode()
