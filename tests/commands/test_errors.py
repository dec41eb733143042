"""What every command says when something is missing or in the way: the cause, the hint, and no traceback.

A judge that is not reached: tests/commands/test_score.py.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec.structs import replace
from reserved_port import reserved_port
from simulated_agent import research_run

from arttrace.commands import cli, main
from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    def says(self, *words: str, code: int = 1) -> None:
        """The error, on stderr alone, holds all of these words, which are a person's, not a programmer's."""
        assert self.code == code, self.err
        assert self.out == ""
        for word in words:
            assert word in self.err
        assert "Traceback" not in self.err
        assert code == 2 or self.err.startswith("error: ")
        assert len(self.err.strip().splitlines()) <= 6


Command = Callable[..., Outcome]


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


@pytest.fixture
def arttrace(data: DataDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command on `data` as the shell would."""
    monkeypatch.setenv("ARTTRACE_DIR", str(data.root))
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE", "ARTTRACE_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["arttrace", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def taken_port() -> Any:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory that says it holds a model: enough for what is checked before one is loaded."""
    folder = tmp_path / "model"
    folder.mkdir()
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 8, "vocab_size": 16}
    (folder / "config.json").write_text(json.dumps(sizes))
    return folder


def fill(data: DataDir, runs: Mapping[str, str], rewards: Mapping[str, float] | None = None) -> None:
    """Stores a run per id of `runs`, which maps it to its scenario, and its reward where there is one."""
    with Store.open(data, create=True) as store:
        for id, scenario in runs.items():
            store.append(research_run(id, scenario=scenario, policy="policy@0"))
        store.append(Reward(id=f"{id}-reward", trajectory_id=id, value=value) for id, value in (rewards or {}).items())


@pytest.mark.parametrize("command", [["ls"], ["show", "1"], ["sql", "SELECT 1"], ["score", "--judge", "m"], ["train"]])
def test_no_store(arttrace: Command, data: DataDir, command: list[str]) -> None:
    arttrace(*command).says(f"no store in {data.root}", "arttrace run -- python agent.py", "--dir")
    assert not data.root.exists(), "asking leaves nothing behind"


def test_a_trajectory_that_is_not_there(arttrace: Command, data: DataDir) -> None:
    fill(data, {"run-1": "s", "run-2": "s"})
    arttrace("show", "nothing").says("no trajectory 'nothing'", "`arttrace ls`")
    arttrace("show", "run-").says("2 trajectories begin with 'run-'", "Give more of the id")


@pytest.mark.parametrize("command", [["ls"], ["score", "--judge", "m"], ["train"]])
def test_a_store_that_another_process_holds(
    arttrace: Command, data: DataDir, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arttrace.store.access.open_store.PATIENCE_S", 0.1)
    monkeypatch.setattr("arttrace.store.file.connect._LOCK_PATIENCE_S", 0.1)
    fill(data, {"run": "s"})
    program = (
        f"import duckdb, sys; held = duckdb.connect({str(data.store)!r}); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        arttrace(*command).says(str(data.store), f"process {holder.pid}", f"kill {holder.pid}")
        holder.communicate()


def test_a_store_that_is_none(arttrace: Command, data: DataDir) -> None:
    data.root.mkdir()
    data.store.write_bytes(b"not a database" * 1000)
    arttrace("ls").says(f"the store {data.store} cannot be opened", "move it away")


@pytest.mark.parametrize("offset", [4096, 12288, None], ids=["first header", "first block", "all blocks"])
def test_a_damaged_store_is_not_taken_for_one_in_use(arttrace: Command, data: DataDir, offset: int | None) -> None:
    """DuckDB speaks of a `block` that is damaged, where another process holds the `lock`."""
    fill(data, {"run": "s"})
    whole = data.store.read_bytes()
    start = 3 * 4096 if offset is None else offset
    noise = random.Random(0).randbytes((len(whole) if offset is None else start + 4096) - start)
    data.store.write_bytes(whole[:start] + noise + whole[start + len(noise) :])
    arttrace("ls").says(f"the store {data.store} cannot be", "orrupt", "move it away")


def test_queries_that_cannot_be_run(arttrace: Command, data: DataDir) -> None:
    fill(data, {"run": "s"})
    arttrace("sql", "SELECT nothing FROM nowhere").says("the query failed", "nowhere", "`arttrace sql --help`")
    arttrace("sql", "DROP TABLE spans").says("only a single read-only query", "`arttrace prune` removes runs")


def test_nothing_to_score(arttrace: Command, data: DataDir) -> None:
    fill(data, {"x": "s", "y": "t"})
    arttrace("score", "--judge", "m").says("nothing to compare", "same `scenario`")
    arttrace("score", "--judge", "m", "--group", "none").says("group 'none' has no trajectory")
    arttrace("score").says("give either --judge MODEL or --reward MODULE:FUNCTION", code=2)


def test_training_without_rewards(arttrace: Command, data: DataDir) -> None:
    fill(data, {"x": "s", "y": "s"})
    arttrace("train").says(
        "nothing to train on", "2 no reward", "`arttrace score`", "arttrace.reward(value)", "is no reward"
    )


def test_training_on_runs_that_are_alone(arttrace: Command, data: DataDir) -> None:
    fill(data, {"x": "s", "y": "t"}, {"x": 1.0})
    arttrace("train").says("2 alone in its group", "several times")


@pytest.mark.parametrize(
    ("changed", "why", "remedy"),
    [
        ({semconv.REQUEST_TOP_P: 0.9}, "sampling was narrowed or shifted", "arttrace serve --sampling policy"),
        ({semconv.REQUEST_TEMPERATURE: 0.0}, "not sampled at temperature 1", "arttrace serve --sampling policy"),
        ({semconv.POLICY_VERSION: "other@0"}, "sampled by another policy", "serve this one"),
        ({semconv.MASKED: ["gen_ai.input.messages"]}, "redacted or masked", "ARTTRACE_CAPTURE_CONTENT=full"),
    ],
)
def test_training_on_tokens_that_are_none_of_the_policys_own(
    changed: dict[str, Any], why: str, remedy: str, arttrace: Command, data: DataDir
) -> None:
    """They did come from `arttrace serve`: to send the agent there is no remedy."""
    with Store.open(data, create=True) as store:
        for id, value in (("x", 0.0), ("y", 1.0)):
            spans = research_run(id, scenario="s", policy="policy@0")
            store.append([replace(span, attributes=span.attributes | changed) for span in spans])
            store.append([Reward(id=id, trajectory_id=id, value=value)])
    outcome = arttrace("train")
    outcome.says("no trainable token", why, remedy)
    assert "let the agent call the gateway" not in outcome.err


@pytest.mark.parametrize(
    ("tag", "why", "remedy"),
    [
        ("held-out", "2 held out from training", "without the tag `held-out`"),
        ("not-trainable", "2 of an agent that is not to be trained", "without the tag `not-trainable`"),
    ],
)
def test_training_on_runs_that_are_never_trained_on(
    tag: str, why: str, remedy: str, arttrace: Command, data: DataDir
) -> None:
    with Store.open(data, create=True) as store:
        for id, value in (("x", 0.0), ("y", 1.0)):
            spans = research_run(id, scenario="s", policy="policy@0")
            store.append([replace(span, attributes=span.attributes | {semconv.TAGS: [tag]}) for span in spans])
            store.append([Reward(id=id, trajectory_id=id, value=value)])
    arttrace("train").says("There is nothing to train on. Trajectories left out:", why, remedy)


def test_training_on_runs_without_tokens(arttrace: Command, data: DataDir) -> None:
    def bare(span: SpanRow) -> SpanRow:
        dropped = (semconv.PROMPT_TOKEN_IDS, semconv.TOKEN_IDS, semconv.LOGPROBS)
        return SpanRow(
            **{
                **{name: getattr(span, name) for name in span.__struct_fields__},
                "attributes": {k: v for k, v in span.attributes.items() if not k.startswith(dropped)},
            }
        )

    with Store.open(data, create=True) as store:
        for id, value in (("x", 0.0), ("y", 1.0)):
            store.append([bare(span) for span in research_run(id, scenario="s", policy="policy@0")])
            store.append([Reward(id=id, trajectory_id=id, value=value)])
    arttrace("train").says("no trainable token", "let the agent call the gateway of `arttrace serve`")


@pytest.mark.parametrize("command", ["collect", "view"])
def test_a_port_that_another_program_has(arttrace: Command, data: DataDir, command: str) -> None:
    """Whoever has it need not be a collector."""
    fill(data, {"x": "s"}, {})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = arttrace(command, "--port", taken.getsockname()[1])
    outcome.says("is taken by another program", "Choose another with --port, or --port 0 for any free one.")
    assert "collector" not in outcome.err


@pytest.mark.parametrize("command", ["collect", "view"])
def test_an_address_of_another_machine(arttrace: Command, data: DataDir, command: str) -> None:
    fill(data, {"x": "s"}, {})
    (data.root / "key").write_text("k" * 32)
    outcome = arttrace(command, "--host", "192.0.2.1", "--port", 0, "--api-key-file", data.root / "key")
    outcome.says("cannot listen on 192.0.2.1:0: ", "--host takes an address of this machine")


def test_training_without_a_model(arttrace: Command, data: DataDir, tmp_path: Path) -> None:
    fill(data, {"x": "s", "y": "s"}, {"x": 0.0, "y": 1.0})
    arttrace("train").says("Which model to train is not known", "arttrace serve --base-model DIR")
    arttrace("train", "--base-model", tmp_path / "none").says("there is no model directory", "config.json, weights")
    arttrace("train", "--base-model", tmp_path).says("holds no config.json", "save_pretrained")


def test_a_daemon_without_a_model_says_so_once(arttrace: Command, data: DataDir) -> None:
    refused = arttrace("train", "--daemon")
    refused.says("Which model to train is not known", "--base-model DIR")
    assert refused.err.count("Which model to train is not known") == 1
    [kept] = (data.root / "logs" / "daemon.log").read_text().splitlines()
    assert "WARNING stopped: Which model to train is not known" in kept
    assert "--base-model DIR" in kept


def test_training_while_the_gateway_does_not_answer(arttrace: Command, data: DataDir, model: Path) -> None:
    fill(data, {"x": "s", "y": "s"}, {"x": 0.0, "y": 1.0})
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        serving = {"url": url, "base_model": str(model), "policy": "policy", "pid": os.getpid(), "log": ""}
        data.serving.write_text(json.dumps(serving))
        arttrace("train").says(f"the gateway at {url} does not answer", "arttrace serve --base-model DIR")


def test_equal_rewards_are_skipped_with_a_notice(arttrace: Command, data: DataDir, model: Path) -> None:
    fill(data, {"x": "s", "y": "s"}, {"x": 0.5, "y": 0.5})
    shown = arttrace("train", "--base-model", model)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("skipped: all rewards within each group are equal")
    assert "harder ones" in shown.out
    assert json.loads(arttrace("train", "--base-model", model, "--json").out).keys() == {"skipped"}
    assert not list(data.policies.glob("*/*@*"))


def test_serving_no_model(arttrace: Command, tmp_path: Path) -> None:
    arttrace("serve", "--base-model", tmp_path / "none").says("no model directory", "save_pretrained")
    arttrace("serve", "--base-model", tmp_path).says("holds no config.json")
    (tmp_path / "config.json").write_text("{}")
    arttrace("serve", "--base-model", tmp_path).says("does not describe a causal language model")
    arttrace("serve").says("Missing option '--base-model'", code=2)


def test_serving_on_a_taken_port(arttrace: Command, data: DataDir, model: Path, taken_port: int) -> None:
    outcome = arttrace("serve", "--base-model", model, "--port", str(taken_port))
    assert outcome.code == 1
    assert f"error: port {taken_port} on 127.0.0.1 is taken" in outcome.err
    assert "--port 0" in outcome.err
    assert not data.serving.exists()


def test_serving_to_others_asks_for_a_token(arttrace: Command, model: Path) -> None:
    outcome = arttrace("serve", "--base-model", model, "--host", "0.0.0.0")
    assert outcome.code == 1
    assert "--api-key" in outcome.err


def test_collecting_on_a_taken_port(arttrace: Command, taken_port: int) -> None:
    arttrace("collect", "--port", str(taken_port)).says(str(taken_port), "--port")


def test_a_demo_directory_of_another_seed(arttrace: Command, data: DataDir, tmp_path: Path) -> None:
    data.root.mkdir()
    (data.root / "demo.json").write_text(json.dumps({"seed": 1, "base_model": "built", "judge": "stand-in"}))
    arttrace("demo", "--seed", "2", "--dir", data.root).says("holds a demo with seed 1, not 2", "another --dir")
    assert not data.store.exists()
    arttrace("demo", "--base-model", tmp_path).says("holds no config.json")
    arttrace("demo", "--steps", "0").says("--steps", code=2)


def test_a_demo_whose_judge_has_no_key_begins_nothing(arttrace: Command, data: DataDir) -> None:
    arttrace("demo", "--judge", "openai/o3").says("openai/o3 needs a key: OPENAI_API_KEY is not set")
    assert not data.root.exists()


def test_a_program_that_is_not_there(arttrace: Command) -> None:
    arttrace("run", "--", "no-such-program").says("there is no program 'no-such-program'", "arttrace run -- python")
    arttrace("run").says("Missing argument", code=2)


def test_a_command_that_is_not_there(arttrace: Command) -> None:
    arttrace("trian").says("No such command 'trian'. Did you mean 'train'?", code=2)
    arttrace("lst").says("No such command 'lst'. Did you mean 'ls'?", code=2)
    arttrace("zzz").says("No such command 'zzz'. `arttrace --help` lists them.", code=2)


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from arttrace.commands import cli\n"
        "for name in cli.list_commands(None): cli.get_command(None, name)\n"
        "print([name for name in ('torch', 'transformers', 'trl', 'litellm', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n", done.stderr


def loaded_by(names: set[str], folder: Path, *command: str) -> tuple[int, set[str]]:
    """The exit code of a command in a folder, and which of these modules it had loaded at its end."""
    program = (
        "import atexit, sys; from arttrace.commands import main\n"
        f"atexit.register(lambda: print(*sorted({names} & set(sys.modules)), file=sys.stderr))\n"
        "main()"
    )
    words = [sys.executable, "-c", program, *command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, timeout=300)
    return done.returncode, set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "command",
    [
        ["ls"],
        ["show", "run-x"],
        ["sql", "SELECT 1"],
        ["stats", "--by", "model"],
        ["dataset", "--format", "trl-sft", "-o", "rows.jsonl"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_that_reads_what_is_stored_loads_no_server_no_client_and_nothing_that_stores(
    data: DataDir, command: list[str]
) -> None:
    fill(data, {"run-x": "s"})
    with Store.open(data) as store:
        store.summaries()  # which are stored as well
    unused = {"httpx", "uvicorn", "starlette", "asyncio", "pyarrow", "numpy", "google.protobuf", "opentelemetry"}
    assert loaded_by(unused, data.root.parent, *command, "--dir", str(data.root)) == (0, set())


def test_run_loads_no_client_and_asks_no_installed_package(data: DataDir) -> None:
    unused = {"httpx", "rich", "importlib.metadata"}
    assert loaded_by(unused, data.root.parent, "run", "--dir", str(data.root), "--", "no-such-program") == (1, set())


def test_a_judge_that_would_be_asked_at_the_agents_address_is_reported(
    arttrace: Command, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data, {"x": "s"})
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    assert "asked at $OPENAI_BASE_URL, http://127.0.0.1:8000/v1" in arttrace("score", "--judge", "openai/o3").err
    assert "note" not in arttrace("score", "--judge", "openai/o3", "--judge-base-url", "HTTP://127.0.0.1:1").err


@pytest.mark.parametrize("command", ["score", "judge-check", "doctor"])
def test_a_judges_address_that_is_none_is_reported_before_anybody_is_asked(
    arttrace: Command, data: DataDir, command: str
) -> None:
    fill(data, {"x": "s"})
    refused = arttrace(command, "--judge", "openai/o3", "--judge-base-url", "127.0.0.1:8100/v1")
    refused.says("'--judge-base-url': '127.0.0.1:8100/v1' is not an address such as http://", code=2)


def test_no_command_takes_a_key_as_a_word() -> None:
    """Whoever can list processes reads it there."""
    context = click.Context(cli)
    waiting = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    assert {"serve", "collect", "score", "policies"} <= set(waiting)
    while waiting:
        name, command = waiting.popitem()
        waiting |= command.commands if isinstance(command, click.Group) else {}
        for option in command.params:
            secret = any(re.search(r"(key|secret|password|token)(?!s)", word) for word in option.opts)
            assert not secret or isinstance(option.type, click.Path), (name, option.opts)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("key", ["k1\n", "schlüssel", "   ", "k1\tb", "\udcff"])
def test_a_key_that_no_client_can_send_is_refused(arttrace: Command, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """The server started with it, and every client was refused, or refused to ask."""
    monkeypatch.setenv("ARTTRACE_API_KEY", key)
    done = arttrace("collect", "--port", "0")
    done.says("error: ARTTRACE_API_KEY is no key that a client can send")
    assert "k1" not in done.err
