"""Long work has a bar where standard error is a terminal: below what is printed, and as long as the command runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from langfuse_server import langfuse_server
from on_a_terminal import on_a_terminal
from stored_runs import ANSWERS, run_with_a_tool

from arttrace.store import Store
from arttrace.system.paths import DataDir

BAR = "━━━━"
COMMAND = """
import sys
import arttrace.commands
from arttrace.commands.shared import progress
progress._SHORT_S = 0.0
if "parquet" in sys.argv:  # the other views have such bars too
    from arttrace.views.datasets import view_files
    view_files.DESCRIBED = [view for view in view_files.DESCRIBED if view.name in ("calls", "messages")]
arttrace.commands.main()
"""
SLOW = """
import sys, time
import click
import arttrace.commands
from arttrace.commands.shared.progress import Progress

@click.command()
@click.argument("how")
def command(how):
    bar = Progress(1000, "steps")
    for done in range(1, 1001):
        bar(done)
        if done == 2:
            click.secho("said in between", fg="red", err=True)
            print("printed in between")
            print("a warning in between", file=sys.stderr)
        while how == "waits" and done == 500:
            time.sleep(0.05)
        if how == "raises" and done == 500:
            raise arttrace.commands.ArttraceError("it went wrong", "Mend it.")
    click.echo("the result")

sys.modules["slow"] = type(sys)("slow")
sys.modules["slow"].command = command
arttrace.commands._COMMANDS["slow"] = arttrace.commands._Command("slow", "")
arttrace.commands.main()
"""


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        for number in range(3):
            for member, (answer, reward) in enumerate(ANSWERS):
                store.append(run_with_a_tool(f"g{number}-{member}", f"g{number}", answer, reward, at=number))
    return data


@pytest.mark.parametrize(
    ("command", "rows", "result"),
    [
        ("dataset --format trl-sft -o rows.jsonl", ["12 of 12 runs read", "12 of 12 runs"], "rows of 12 runs in rows"),
        ("export -o spans.jsonl", ["36 of 36 spans"], "36 spans and 9 rewards"),
        ("export --since 1970-01-01 -o spans.jsonl", ["12 of 12 runs"], "36 spans and 9 rewards"),
        ("export --format parquet -o views", ["rows of calls", "rows of messages"], "views/calls.parquet"),
        ("group --by input", ["12 of 12 runs read"], "group"),
        ("import talks.jsonl", ["1 of 1 MiB of talks.jsonl"], "talks.jsonl: 3 conversations"),
    ],
)
def test_a_command_shows_a_bar_and_its_result_below(
    command: str, rows: list[str], result: str, data: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    talk = [{"role": "user", "content": "x" * 500_000}, {"role": "assistant", "content": "y"}]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps({"messages": talk, "n": n}) + "\n" for n in range(3)))
    done = on_a_terminal(COMMAND, *command.split(), "--dir", str(data.root))
    assert done.exit_code == 0, done.sent
    bars = [row for row in done.screen if BAR in row]
    for text in rows:
        assert any(text in row for row in bars), done.screen
    assert any(result in row for row in done.screen[done.screen.index(bars[-1]) :]), done.screen
    assert len(bars) == len(set(bars)), "each stays once, however often it was drawn"
    assert done.has_cursor


def test_langfuse_shows_bars_both_ways(data: DataDir, tmp_path: Path) -> None:
    with langfuse_server() as server:
        pushed = on_a_terminal(COMMAND, "langfuse", "push", "--dir", str(data.root), environ=server.environ())
        pulled = on_a_terminal(COMMAND, "langfuse", "pull", "--dir", str(tmp_path / "b"), environ=server.environ())
    for text in ("12 of 12 runs read,", "12 of 12 runs,"):
        assert [row for row in pushed.screen if BAR in row and text in row], pushed.screen
    assert pushed.screen.index(next(row for row in pushed.screen if "sent to" in row)) > 0
    assert [row for row in pulled.screen if BAR in row and "36 of 36 observations" in row], pulled.screen
    assert "taken in" in pulled.screen[-1]


RICH_14 = "import io; from rich.file_proxy import FileProxy; FileProxy.isatty = io.TextIOBase.isatty"
"""Before rich 15 what is printed through a FileProxy goes to no terminal, by its own account."""


@pytest.mark.parametrize("before", ["", RICH_14], ids=["as installed", "rich 14"])
def test_what_is_printed_meanwhile_stands_above_the_bar(before: str) -> None:
    done = on_a_terminal(f"{before}\n{SLOW}", "slow", "ends")
    said, printed, warned, bar, result = done.screen
    assert (said, printed, warned) == ("said in between", "printed in between", "a warning in between")
    assert "\x1b[31msaid in between" in done.sent, "colours stay"
    assert BAR in bar
    assert "1000 of 1000 steps" in bar
    assert result == "the result"


def test_standard_output_in_a_file_gets_its_lines_alone(tmp_path: Path) -> None:
    done = on_a_terminal(SLOW, "slow", "ends", stdout=tmp_path / "out")
    assert (tmp_path / "out").read_text() == "printed in between\nthe result\n"
    assert [row for row in done.screen if "1000 of 1000 steps" in row]
    assert "the result" not in done.sent


def test_ctrl_c_leaves_the_bar_as_far_as_it_was() -> None:
    done = on_a_terminal(SLOW, "slow", "waits", keys=[("500 of 1000 steps", b"\x03")])
    *_, bar, last = [row for row in done.screen if row != "^C"]
    assert "500 of 1000 steps" in bar
    assert last.removeprefix("^C") == "interrupted"
    assert done.exit_code == 130
    assert done.has_cursor


def test_an_error_stands_below_the_bar() -> None:
    done = on_a_terminal(SLOW, "slow", "raises")
    *_, bar, error, hint = done.screen
    assert BAR in bar
    assert " of 1000 steps" in bar
    assert (error, hint) == ("error: it went wrong", "Mend it.")
    assert done.exit_code == 1
    assert done.has_cursor


@pytest.mark.parametrize(("environ", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)])
@pytest.mark.parametrize("command", ["doctor", "show"])
def test_what_is_said_has_no_colour_where_none_is_wanted(
    environ: dict[str, str], is_coloured: bool, command: str, tmp_path: Path
) -> None:
    """A check's state, and an error: both are red."""
    arguments = {"doctor": ["doctor", "--dir", str(tmp_path)], "show": ["show", "nothing", "--dir", str(tmp_path)]}
    drawn = on_a_terminal(COMMAND, *arguments[command], environ=environ)
    assert ("\x1b[3" in drawn.sent) is is_coloured, drawn.sent


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"TERM": "dumb", "FORCE_COLOR": "1"}])
def test_a_terminal_that_only_prints_gets_lines(environ: dict[str, str]) -> None:
    done = on_a_terminal(SLOW, "slow", "ends", environ=environ)
    assert BAR not in done.sent
    assert done.screen[-2].startswith("1000 of 1000 steps")


def test_spans_that_go_to_the_terminal_have_no_bar_among_them(data: DataDir, tmp_path: Path) -> None:
    done = on_a_terminal(COMMAND, "export", "--dir", str(data.root))
    assert done.exit_code == 0, done.sent
    assert BAR not in done.sent
    assert done.sent.count('"resourceSpans"') > 0


def test_a_log_gets_lines_whatever_is_said_of_colours() -> None:
    environ = {**os.environ, "FORCE_COLOR": "1", "TTY_INTERACTIVE": "1", "TERM": "xterm"}
    done = subprocess.run([sys.executable, "-c", SLOW, "slow", "ends"], env=environ, capture_output=True, text=True)
    assert done.stdout == "printed in between\nthe result\n"
    assert BAR not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("1000 of 1000 steps")
