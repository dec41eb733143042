"""The command line as a whole: what is listed, where options may stand, what is said where a package is missing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from forked_commands import commands
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from simulated_agent import research_run

from arttrace.commands import cli
from arttrace.commands.shared.options import (
    options_from_the_front,
    options_of_a_command_from_the_front,
    options_to_the_front,
)
from arttrace.store import Store
from arttrace.store.access.owner_file import read_owner
from arttrace.store.server.owner import answering
from arttrace.store.unread import UnreadCount
from arttrace.system.paths import DataDir


def _bare() -> set[str]:
    """The distributions that arttrace declares to need without any extra, and what those need, by normalised names."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    waiting = [Requirement(text) for text in project["dependencies"]]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += [Requirement(text) for text in importlib.metadata.requires(name) or ()]
    return found


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which the bare package is installed, and what it declares to need."""
    folder = tmp_path_factory.mktemp("light")
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    for package in ("arttrace", "trainer"):
        (site / package).symlink_to(Path(__file__).parents[2] / package, target_is_directory=True)
    installed = importlib.metadata.distributions(name="arttrace")  # and what a build left in the repository
    own = [file for one in installed for file in one.files or () if ".dist-info" in str(file)]
    for file in [*own, *(file for name in _bare() for file in importlib.metadata.files(name) or ())]:
        if ".." not in file.parts and file.suffix != ".pyc":
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).symlink_to(file.locate())
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _run(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command of that environment."""
    command = [str(python), "-c", "from arttrace.commands import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=_own(), timeout=100, check=False)


def _own() -> dict[str, str]:
    """The variables for an interpreter that finds its own packages alone."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def test_every_command_is_listed_with_a_word_on_what_it_does() -> None:
    shown = CliRunner().invoke(cli, ["--help"]).output
    context = cli.make_context("arttrace", ["ls"])
    listed = cli.list_commands(context)
    assert {"ls", "train", "init", "group"} <= set(listed)
    for name in listed:
        [line] = [line for line in shown.splitlines() if line.startswith(f"  {name} ")]
        assert len(line.split()) > 2
        assert cli.get_command(context, name) is not None


def test_the_light_install_captures_lists_all_commands_and_names_the_extra(light: Path, tmp_path: Path) -> None:
    shown = _run(light, "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    lines = {line.split()[0]: line for line in shown.stdout.splitlines() if line.startswith("  ")}
    assert [lines[name].split()[-1] for name in ("ls", "score", "train")] == ["[store]", "[judge]", "[trainer]"]
    assert "[" not in lines["run"]
    assert "pip install 'arttrace[WORD]'" in shown.stdout
    looked = _run(light, "doctor", cwd=tmp_path)
    assert looked.returncode == 0, looked.stdout + looked.stderr
    (tmp_path / "agent.py").write_text(
        "import arttrace\n@arttrace.trajectory\ndef answer(q): return q\nprint(answer('why?'))\n"
    )
    ran = _run(light, "run", "--", str(light), "agent.py", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "why?\n"), ran.stderr
    with Store.open(DataDir(tmp_path / ".arttrace")) as store:
        assert [one.entry for one in store.summaries()] == ["agent:answer"]


def test_python_m_runs_the_command_line(light: Path, tmp_path: Path) -> None:
    command = [str(light), "-m", "arttrace", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=_own(), timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("Usage: arttrace [OPTIONS] COMMAND")


_ARGUMENTS = {"serve": ["--base-model", "."]}
"""What a command is given where it asks for something before it imports anything."""


def test_each_command_without_its_extra_says_so_in_one_line(light: Path, tmp_path: Path) -> None:
    shown = _run(light, "--help", cwd=tmp_path)
    words = re.sub(r"\n {6,}", " ", shown.stdout)
    needs = dict(re.findall(r"^  (\S+) .*\[(\w+)\]$", words, re.MULTILINE))
    assert len(needs) > 20
    shape = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    ran = commands(light, tmp_path, _own(), [[name, *_ARGUMENTS.get(name, ())] for name in needs])
    for (name, extra), one in zip(needs.items(), ran, strict=True):
        assert one.returncode == 1, (name, one.stdout, one.stderr)
        package = {"store": "duckdb", "judge": "litellm", "mcp": "mcp", "trainer": "torch"}[extra]
        said = f"Error: `arttrace {name}` needs the package {package}: pip install 'arttrace[{extra}]'\n"
        assert one.stderr.decode() == said


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--dir", "d", "ls"], ["ls", "--dir", "d"]),
        (["--json", "--dir=d", "ls", "--limit", "2"], ["ls", "--json", "--dir=d", "--limit", "2"]),
        (["ls", "--dir", "d"], ["ls", "--dir", "d"]),
        (["--help"], ["--help"]),
        (["--dir"], ["--dir"]),
        ([], []),
    ],
)
def test_shared_options_may_stand_before_a_command(given: list[str], meant: list[str]) -> None:
    assert options_from_the_front(given) == meant


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--limit 2 ls", "ls --limit 2"),
        ("--limit=2 --errors ls --wide", "ls --limit=2 --errors --wide"),
        ("--dir d --limit 2 ls", "ls --dir d --limit 2"),
        ("--tag ls ls", "ls --tag ls"),
        ("-ofile export id", "export -ofile id"),
        ("-o file --format otlp-json export", "export -o file --format otlp-json"),
        ("--dry-run policies prune p", "policies --dry-run prune p"),
        ("--version ls", "--version ls"),
        ("--no-such ls", "--no-such ls"),
        ("--limit", "--limit"),
        ("--limit 2", "--limit 2"),
        ("run x --limit 2 ls", "run x --limit 2 ls"),
    ],
)
def test_options_of_a_command_may_stand_before_it(given: str, meant: str) -> None:
    context = click.Context(cli)
    find = partial(cli.get_command, context)
    moved = options_of_a_command_from_the_front(given.split(), find, cli.list_commands(context), cli)
    assert moved == meant.split()


def test_options_before_a_command_do_what_they_do_behind_it(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("a", "s") + research_run("b", "s"))
    (tmp_path / "policies").mkdir()
    there = ["--dir", str(tmp_path)]
    for before, behind in (
        (["--limit", "1", *there, "ls", "--json"], ["ls", "--json", "--limit", "1", *there]),
        (["policies", "--dry-run", *there, "prune"], ["policies", "prune", "--dry-run", *there]),
    ):
        outputs = [CliRunner().invoke(cli, arguments) for arguments in (before, behind)]
        assert outputs[0].output == outputs[1].output
        assert outputs[0].exit_code == outputs[1].exit_code
        assert "No such option" not in outputs[0].output
    refused = CliRunner().invoke(cli, ["--no-such", "ls"])
    assert refused.exit_code == 2
    assert "No such option '--no-such'. Options of a command stand behind its name" in refused.output


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["compare", "a", "b", "--dir", "d"], ["--dir", "d", "compare", "a", "b"]),
        (["--json", "compare", "a", "--dir=d", "--", "--json"], ["--json", "--dir=d", "compare", "a", "--", "--json"]),
        (["prune"], ["prune"]),
    ],
)
def test_shared_options_may_stand_behind_a_command_of_a_command(given: list[str], meant: list[str]) -> None:
    assert options_to_the_front(given) == meant


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ls", "--limit", "x"], "'--limit': 'x' is given, a whole number of at least 1 is wanted."),
        (["ls", "--limit", "0"], "'--limit': '0' is given, a whole number of at least 1 is wanted."),
        (["ls", "--limit=-1.5"], "'--limit': '-1.5' is given, a whole number of at least 1 is wanted."),
        (["view", "--port", "65536"], "'--port': '65536' is given, a whole number from 0 to 65535 is wanted."),
        (["train", "--min-reward", "good"], "'--min-reward': 'good' is given, a number is wanted."),
        (["train", "--min-reward", "nan"], "'--min-reward': 'nan' is given, a number is wanted."),
        (["train", "--learning-rate", "inf"], "'--learning-rate': 'inf' is given, a number is wanted."),
        (["train", "--kl-weight", "inf"], "'--kl-weight': 'inf' is given, a number is wanted."),
        (["train", "--std-floor", "inf"], "'--std-floor': 'inf' is given, a number above 0 is wanted."),
        (
            ["serve", "--engine-memory-share", "1.5"],
            "'--engine-memory-share': '1.5' is given, a number above 0 and of at most 1 is wanted.",
        ),
    ],
)
def test_a_number_that_is_none_is_reported_with_what_is_wanted(arguments: list[str], said: str) -> None:
    refused = CliRunner().invoke(cli, arguments)
    assert refused.exit_code == 2
    assert refused.output.splitlines()[-1] == f"Error: Invalid value for {said}"


def test_no_number_of_any_command_is_refused_in_other_words() -> None:
    def numbers(command: click.Command, path: list[str]) -> Iterator[tuple[list[str], click.Option]]:
        for option in command.params:
            if isinstance(option, click.Option) and option.type.name.startswith(("integer", "float")):
                yield path, option
        for name, inner in getattr(command, "commands", {}).items():
            yield from numbers(inner, [*path, name])

    context = click.Context(cli)
    groups = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    asked = [one for name, command in groups.items() if command for one in numbers(command, [name])]
    assert len(asked) > 50
    for path, option in asked:
        refused = CliRunner().invoke(cli, [*path, option.opts[-1], "five"])
        assert "'five' is given, a" in refused.output, (path, option.opts, refused.output)
        assert "number" in refused.output


def test_a_click_whose_types_have_no_parameters_will_do() -> None:
    """As before click 8.4, which pyproject.toml allows: `click.ParamType[int]` in a class's bases is an error there."""
    older = "import click; click.ParamType.__class_getitem__ = None"
    program = f"{older}; from arttrace.commands import cli; cli(['ls', '--help'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "Usage:" in done.stdout, done.stderr


def test_options_on_either_side_do_the_same(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("a", "s"))
    outputs = {
        CliRunner().invoke(cli, arguments).output
        for arguments in (["--dir", str(tmp_path), "--json", "ls"], ["ls", "--json", "--dir", str(tmp_path)])
    }
    assert len(outputs) == 1
    assert '"id":"a"' in outputs.pop()
    refused = CliRunner().invoke(cli, ["--json", "collect"])
    assert refused.exit_code == 2
    assert "No such option" in refused.output


def test_a_trainer_of_the_users_is_named_not_run(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text("raise SystemExit('the wrong trainer')")
    code = "from arttrace.commands import main; main()"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code, "status"]
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 1
    assert f"Python finds {tmp_path / 'trainer.py'} as the module `trainer`" in ran.stderr


def test_a_pinned_directory_is_found_from_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARTTRACE_DIR", raising=False)
    below = tmp_path / "app" / "jobs"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert DataDir.resolve().root == below / ".arttrace"
    monkeypatch.chdir(tmp_path)
    assert "now the data directory" in CliRunner().invoke(cli, ["init"]).output
    assert "is the data directory" in CliRunner().invoke(cli, ["init"]).output
    monkeypatch.chdir(below)
    assert DataDir.resolve().root == tmp_path / ".arttrace"
    assert DataDir.resolve("other").root == below / "other"
    assert (tmp_path / ".arttrace").stat().st_mode & 0o077 == 0


def test_folders_above_a_data_directory_are_made_as_any(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        assert CliRunner().invoke(cli, ["init", str(tmp_path / "team" / "project")]).exit_code == 0
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "team", tmp_path / "team" / "project")]
    assert modes == [0o755, 0o755]
    assert (tmp_path / "team" / "project" / ".arttrace").stat().st_mode & 0o777 == 0o700


def test_a_second_data_directory_below_another_is_announced(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "ARTTRACE_DIR"}
    (tmp_path / "agent.py").write_text("import arttrace\n@arttrace.trajectory\ndef answer(): ...\nanswer()\n")
    below = tmp_path / "below"
    below.mkdir()

    def run(folder: Path, *command: str) -> str:
        ran = subprocess.run(
            [sys.executable, *command], env=env, cwd=folder, capture_output=True, text=True, timeout=100, check=True
        )
        return ran.stderr

    assert run(tmp_path, str(tmp_path / "agent.py")) == ""
    said = run(below, str(tmp_path / "agent.py"))
    assert f"{below / '.arttrace'}, which does not exist yet; {tmp_path / '.arttrace'} does" in said
    assert "arttrace init" in said
    assert run(below, str(tmp_path / "agent.py")) == ""


@pytest.mark.parametrize("named_by", ["--url", "ARTTRACE_ENDPOINT"])
def test_what_was_not_read_here_is_not_said_of_a_collector_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARTTRACE_API_KEY", "secret")
    here, data = DataDir.resolve(), DataDir(tmp_path / "elsewhere")
    with Store.open(here, create=True) as store:
        store.append(research_run("b", "s"))
    UnreadCount(here.unread_entries).add("of this machine's own directory")
    assert "could not read 1 entry" in CliRunner().invoke(cli, ["ls"]).stderr
    with Store.open(data, create=True) as store, answering(store, "secret"):
        store.append(research_run("a", "s"))
        owner = read_owner(data)
        assert owner is not None
        if named_by == "ARTTRACE_ENDPOINT":
            monkeypatch.setenv(named_by, owner.url)
        asked = CliRunner().invoke(cli, ["ls", *(["--url", owner.url] if named_by == "--url" else [])])
    assert (asked.exit_code, asked.stderr) == (0, "")


def test_a_collector_elsewhere_is_asked_by_its_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARTTRACE_API_KEY", "secret")
    data = DataDir(tmp_path / "elsewhere")
    with Store.open(data, create=True) as store, answering(store, "secret"):
        store.append(research_run("a", "s"))
        owner = read_owner(data)
        assert owner is not None
        listed = json.loads(CliRunner().invoke(cli, ["ls", "--url", owner.url, "--json"]).stdout)
        assert [one["id"] for one in listed] == ["a"]
        before = CliRunner().invoke(cli, ["--url", owner.url, "sql", "SELECT id FROM trajectories", "--json"])
        assert json.loads(before.stdout) == [{"id": "a"}]
        both = CliRunner().invoke(cli, ["ls", "--url", owner.url, "--dir", "."])
        assert (both.exit_code, "give one of them" in both.output) == (2, True)
        monkeypatch.setenv("ARTTRACE_API_KEY", "wrong")
        refused = CliRunner().invoke(cli, ["ls", "--url", owner.url])
        assert "ARTTRACE_API_KEY" in f"{refused.exception}{getattr(refused.exception, 'hint', '')}"
    gone = CliRunner().invoke(cli, ["ls", "--url", owner.url])
    assert f"the collector at {owner.url} (--url) does not answer" in str(gone.exception)
    assert "not an address" in CliRunner().invoke(cli, ["ls", "--url", "gpu-box"]).output
    assert not (tmp_path / ".arttrace").exists()


@pytest.mark.parametrize("server", [["-m", "arttrace.server"], ["-c", "from arttrace.server import main; main()"]])
def test_the_servers_own_command_names_one_that_there_is(server: list[str]) -> None:
    done = subprocess.run([sys.executable, *server, "--no-such-option"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Usage: arttrace serve [OPTIONS]\nTry 'arttrace serve --help' for help." in done.stderr


@pytest.mark.parametrize(
    ("options", "model", "heard"), [([], "", True), (["--port=x"], "", True), (["--x"], "m", False)]
)
def test_the_server_of_a_container_says_how_its_model_is_named(options: list[str], model: str, heard: bool) -> None:
    environment = {**os.environ, "MODEL": model}
    done = subprocess.run(
        [sys.executable, "-m", "arttrace.server", *options], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 2
    assert ("Name the model with --model, or by MODEL in the environment: docker run -e MODEL=" in done.stderr) == heard
    given = subprocess.run(
        [sys.executable, "-m", "arttrace.server", "--base-model=m", "--x"], capture_output=True, text=True
    )
    assert "MODEL" not in given.stderr
