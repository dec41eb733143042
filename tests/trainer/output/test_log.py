"""The log of `serve` and the daemon: time, level and line, as text or JSON, on standard error and in a rotated file."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from trainer.commands.serve import command as serve
from trainer.commands.train import command as train
from trainer.output import log
from trainer.output.log import JsonLines, Problem, logging_to, make_room, same_level, without_time

_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def test_lines_have_time_and_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to("serve", tmp_path / "logs", "text") as say:
        say("serving again")
        say(same_level(Problem("x"), "vLLM died, 100% sure"))
    shown = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"{_TIME} INFO    serving again", shown[0])
    assert re.fullmatch(rf"{_TIME} WARNING vLLM died, 100% sure", shown[1])
    assert [without_time(line) for line in shown] == ["serving again", "vLLM died, 100% sure"]
    assert without_time("2026-11-25: no line of a log") == "2026-11-25: no line of a log"
    file = tmp_path / "logs" / "serve.log"
    assert file.read_text().splitlines() == shown
    assert file.stat().st_mode & 0o077 == 0


def test_a_line_with_a_name_that_is_no_utf_8_is_in_the_file(tmp_path: Path) -> None:
    with logging_to("serve", tmp_path, "text") as say:
        say("starting vLLM with " + os.fsdecode(b"/models/caf\xe9"))
    assert "starting vLLM with /models/caf\\udce9\n" in (tmp_path / "serve.log").read_text()


def test_as_json_each_line_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to("daemon", tmp_path, "json") as say:
        say('skipped: "ä"\nand more')
    [line] = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert re.fullmatch(_TIME, said.pop("time"))
    assert said == {"level": "info", "logger": "arttrace.daemon", "message": 'skipped: "ä"\nand more'}


def test_files_are_rotated_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_BYTES", 200)
    with logging_to("serve", tmp_path, "text") as say:
        for number in range(100):
            say(f"line {number}")
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        f"serve.log{n}" for n in ("", ".1", ".2", ".3", ".4", ".5")
    ]
    assert (tmp_path / "serve.log").read_text().endswith("line 99\n")


def test_a_file_of_another_program_is_rotated_before_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_BYTES", 10)
    file = tmp_path / "vllm.log"
    make_room(file)
    for text in ("first start", "short", "third start", "fourth start"):
        make_room(file)
        file.write_text(text)
    assert (file.read_text(), (tmp_path / "vllm.log.1").read_text()) == ("fourth start", "third start")
    assert (tmp_path / "vllm.log.2").read_text() == "first start"


def test_where_no_file_can_be_written_the_work_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    with logging_to("serve", tmp_path / "logs", "text") as say:
        say("serving again")
    shown = capsys.readouterr().err
    assert "WARNING no log file" in shown
    assert "serving again" in shown


def test_what_anybody_prints_beside_the_log_is_json_too() -> None:
    written = io.BytesIO()
    ascii_only = io.TextIOWrapper(written, "ascii", errors="backslashreplace")
    lines = JsonLines(ascii_only)
    lines.write("load")
    lines.write("ing 10%\rloading 100%\n\n")
    print("error: größe", file=lines)
    print("    a traceback", file=lines)
    lines.write("unfinished")
    said = [json.loads(line) for line in written.getvalue().decode("ascii").splitlines()]
    assert [(one["level"], one["message"]) for one in said] == [
        ("info", "loading 10%"),
        ("info", "loading 100%"),
        ("error", "error: größe"),
        ("info", "    a traceback"),
    ]


FAILS = """
import sys, trainer.commands.train.cli as cli
def broken(*given, **options):
    print("half a line", end="", file=sys.stderr)
    raise RuntimeError("gr" + chr(246))
cli.find_serving = broken
"""


@pytest.mark.parametrize(
    ("arguments", "before", "last"),
    [
        (("train", "--daemon"), "", "pass --base-model DIR"),
        (("serve", "--base-model", ".", "--host", "0.0.0.0"), "", "config.json"),
        (("train",), FAILS, "RuntimeError: grö"),
    ],
)
def test_to_its_end_a_command_writes_nothing_else(
    arguments: tuple[str, ...], before: str, last: str, tmp_path: Path
) -> None:
    """Also the error that ends it, and a traceback."""
    command = [sys.executable, "-c", f"{before}\nfrom arttrace.commands import main; main()", *arguments]
    ran = subprocess.run(
        [*command, "--log-format", "json", "--dir", "größe"],
        cwd=tmp_path,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 1
    said = [json.loads(line) for line in (ran.stdout + ran.stderr).splitlines()]
    assert said
    assert all(re.fullmatch(_TIME, one["time"]) for one in said)
    assert any(last in one["message"] for one in said), said


GIVES_ITS_STREAM_BACK = """
import click, io, sys
from trainer.output.log import log_format_option
@click.command()
@log_format_option
def command(log_format):
    click.echo("said", err=True)
whole = sys.stderr
sys.stderr = its = io.TextIOWrapper(io.BytesIO(), "utf-8")
command.main(["--log-format", "json"], standalone_mode=False)
print(its.buffer.getvalue().decode(), end="")
sys.stderr = whole
its.close()
"""


def test_a_program_that_ran_it_on_a_stream_of_its_own_ends_in_silence() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", GIVES_ITS_STREAM_BACK], capture_output=True, text=True, timeout=200, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["message"] == "said"


@pytest.mark.parametrize("before", [True, False])
def test_what_is_wrong_with_an_option_is_an_error_as_json_wherever_it_stands(before: bool, tmp_path: Path) -> None:
    command = (sys.executable, "-c", "from arttrace.commands import main; main()", "train", "--daemon")
    wrong, as_json = ("--config", "nowhere.toml"), ("--log-format", "json")
    options = (*wrong, *as_json) if before else (*as_json, *wrong)
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 2
    assert [(line["level"], "nowhere.toml" in line["message"]) for line in lines][-1] == ("error", True)


@pytest.mark.parametrize("as_json", [("--log-format", "json"), ("--log-format=json",), ()])
@pytest.mark.parametrize("command", [train, serve])
def test_an_option_that_there_is_not_is_an_error_in_the_format_that_was_asked_for(
    command: click.Command, as_json: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", said := io.TextIOWrapper(io.BytesIO(), "utf-8"))
    with pytest.raises(click.NoSuchOption) as raised:
        command.main(["--nowhere", *as_json], standalone_mode=False)
    raised.value.show()
    sys.stderr.flush()
    [*_, last] = said.buffer.getvalue().decode().splitlines()  # type: ignore[attr-defined]
    message = json.loads(last)["message"] if as_json else last
    assert message.startswith("Error: No such option '--nowhere'")
