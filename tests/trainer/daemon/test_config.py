"""The daemon's configuration: flags before environment before file, and what is wrong is named."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from arttrace.commands import cli
from arttrace.system.errors import TrainingError
from arttrace.system.paths import DataDir
from trainer.commands.train.cli import command
from trainer.commands.train.settings import parse_settings
from trainer.daemon.config import DaemonConfig, load_config, print_config
from trainer.gateway.status import ServingFile
from trainer.learner import LearnerConfig
from trainer.learner.machine.card import placed


def test_flags_come_before_environment_before_file(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text(
        "min_groups = 2\ngroup_size = 3\npoll = 9\n[learner]\nloss = 'gspo'\nepochs = 2\n[keep]\nbest = 1\n"
    )
    environment = {
        "ARTTRACE_TRAIN_GROUP_SIZE": "5",
        "ARTTRACE_TRAIN_LEARNER__LEARNING_RATE": "0.5",
        "ARTTRACE_TRAIN_LEARNER__EPOCHS": "3",
        "ARTTRACE_TRAIN_REPORT_TO": "wandb, tensorboard",
        "ARTTRACE_TRAIN_KEEP__LATEST": "7",
        "OTHER": "x",
    }
    config = load_config(file, {"poll": 1.5, "epochs": 4, "keep__best": 2, "policy": None}, environment)
    assert (config.min_groups, config.group_size, config.poll) == (2, 5, 1.5)
    assert (config.learner.loss, config.learner.learning_rate, config.learner.epochs) == ("gspo", 0.5, 4)
    assert (config.keep.best, config.keep.latest) == (2, 7)
    assert config.report_to == ("wandb", "tensorboard")


def test_lists_of_the_learner_come_from_the_environment_as_comma_lists() -> None:
    given = {"DECAY": "10,100", "ADAM_BETAS": "0.9, 0.95", "LORA_TARGETS": "q_proj,k_proj"}
    config = load_config(None, {}, {f"ARTTRACE_TRAIN_LEARNER__{name}": value for name, value in given.items()})
    learner = config.learner
    assert (learner.decay, learner.adam_betas, learner.lora_targets) == ((10, 100), (0.9, 0.95), ("q_proj", "k_proj"))
    one = load_config(None, {}, {"ARTTRACE_TRAIN_LEARNER__LORA_TARGETS": "all-linear"})
    assert one.learner.lora_targets == "all-linear"


def test_what_is_printed_means_the_same(tmp_path: Path) -> None:
    config = load_config(None, {"judge": 'openai/"o3"', "lora_targets": ["a", "b"], "decay": [1, 5]}, {})
    file = tmp_path / "printed.toml"
    file.write_text(print_config(config))
    assert load_config(file, {}, {}) == config
    assert load_config(None, {}, {}) == DaemonConfig()


@pytest.mark.parametrize(
    ("flags", "environment", "where"),
    [
        ({"group_size": 1}, {}, "group_size"),
        ({}, {"ARTTRACE_TRAIN_MIN_GROUPS": "many"}, "min_groups"),
        ({}, {"ARTTRACE_TRAIN_LEARNER__LOSS": "mse"}, "learner"),
        ({}, {"ARTTRACE_TRAIN_LEARNER__LOS": "dapo"}, "learner"),
        ({}, {"ARTTRACE_TRAIN_LEARNER__MAX_KL": "0.5"}, "max_kl 0.5 has no effect while kl_weight is 0"),
        ({"max_kl": 0.5}, {}, "max_kl 0.5 has no effect while kl_weight is 0"),
        ({}, {"ARTTRACE_TRAIN_GRUPS": "2"}, "grups: there is no such setting"),
        ({}, {"ARTTRACE_TRAIN_POLL__X": "2"}, "poll"),
        ({"poll": float("inf")}, {}, "poll"),
        ({"max_wait": float("inf")}, {}, "max_wait"),
        ({}, {"ARTTRACE_TRAIN_SOLVED_PAUSE": "inf"}, "solved_pause"),
        ({"solved_pause": 1e300}, {}, "solved_pause: Input should be less than or equal to 1000000000"),
        ({"std_floor": float("inf")}, {}, "std_floor"),
    ],
)
def test_what_is_wrong_is_named(flags: dict[str, float], environment: dict[str, str], where: str) -> None:
    with pytest.raises(TrainingError, match=where):
        load_config(None, flags, environment)


def test_all_that_is_wrong_in_a_file_is_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "daemon.toml"
    file.write_text('base_model = 5\nmin_groups = "x"\ngrups = 1\n')
    with pytest.raises(TrainingError) as refused:
        load_config(file, {}, {})
    assert refused.value.message == (
        "The configuration of the daemon is wrong at base_model: a path as text is expected; at min_groups: "
        "Input should be a valid integer, unable to parse string as an integer; at grups: there is no such setting."
    )
    assert refused.value.hint.endswith(f"and at {file}.")


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"base_model: models/tiny\n", "line 1"), (b"name = '\xff'", "utf-8"), (b"a = " + b"[" * 100_000, "recursion")],
)
def test_a_file_that_is_no_toml_is_refused_with_how_to_get_one(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "daemon.toml"
    file.write_bytes(content)
    with pytest.raises(TrainingError, match=f"is no TOML: .*{why}") as refused:
        load_config(file, {}, {})
    assert "`arttrace train --daemon --print-config` prints all of them" in refused.value.hint


def test_the_command_prints_it_and_refuses_the_daemons_options_without_the_daemon(tmp_path: Path) -> None:
    printed = CliRunner().invoke(
        command, ["--print-config", "--loss", "grpo", "--min-groups", "3", "--max-staleness", "2"]
    )
    assert printed.exception is None
    assert "min_groups = 3\n" in printed.stdout
    assert "max_staleness = 2\n" in printed.stdout
    assert 'loss = "grpo"\n' in printed.stdout
    assert '# device = "cpu": torch finds no CUDA card\n' in printed.stdout
    assert '# dtype = "float32": a CPU: full precision\n' in printed.stdout
    assert "# keep.states = 3: " in printed.stdout
    assert "# engine_memory_share = its default: a CPU" in printed.stdout
    file = tmp_path / "printed.toml"
    file.write_text(printed.stdout)
    assert load_config(file, {}, {}).min_groups == 3, "what is printed can be given again"
    refused = CliRunner().invoke(command, ["--dir", str(tmp_path), "--min-groups", "3"])
    assert refused.exit_code == 2
    assert "add --daemon" in refused.output


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["train", "--keep-states", "-1"], "'--keep-states': '-1' is given, a whole number of at least 0 is wanted"),
        (
            ["train", "--daemon", "--keep-best", "-1"],
            "'--keep-best': '-1' is given, a whole number of at least 0 is wanted",
        ),
        (["train", "--daemon", "--votes", "16"], "'--votes': '16' is given, a whole number from 1 to 15 is wanted"),
        (["train", "--daemon", "--poll", "0"], "'--poll': '0' is given, a number above 0"),
        (["demo", "--seed", "-1"], "'--seed': '-1' is given, a whole number from 0 to 4294967295 is wanted"),
    ],
)
def test_a_count_out_of_its_bounds_is_refused_by_its_option(options: list[str], wanted: str) -> None:
    refused = CliRunner().invoke(cli, options)
    assert refused.exit_code == 2
    assert wanted in refused.output


def test_a_learner_trains_on_the_card_that_is_there_unless_it_is_told_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card is a stand-in. On a CPU beside an engine on a card, a step took hours, and was refused: the engine
    serves in 16 bits."""
    monkeypatch.setattr("trainer.learner.machine.card.has_card", lambda: True)

    def chosen(*options: str) -> dict[str, Any]:
        printed = CliRunner().invoke(command, ["--print-config", "--json", "--dir", str(tmp_path), *options])
        assert printed.exception is None, printed.output
        found: dict[str, Any] = json.loads(printed.stdout)["chosen"]
        return {name: one["value"] for name, one in found.items()}

    left_open = chosen()
    assert (left_open["device"], left_open["dtype"], left_open["max_logprob_difference"]) == ("cuda", "bfloat16", 1.0)
    told = chosen("--device", "cpu")
    assert "device" not in told
    assert told["dtype"] == "float32"
    assert placed(LearnerConfig(use_liger_kernel=True)).device == "cuda"
    assert placed(parse_settings({"load_in_4bit": True}).learner).device == "cuda", "of a loop or a server's client"


@pytest.mark.parametrize(
    ("engine", "options", "learner"),
    [
        ("bfloat16", [], "bfloat16"),
        ("bfloat16", ["--dtype", "float32"], "float32"),
        ("float16", [], None),
        ("", [], None),
    ],
)
def test_a_learner_computes_in_the_precision_that_the_running_engine_was_told(
    engine: str, options: list[str], learner: str | None, tmp_path: Path
) -> None:
    record = ServingFile("http://127.0.0.1:9", str(tmp_path), "policy", os.getpid(), "", dtype=engine)
    DataDir(tmp_path).serving.write_bytes(msgspec.json.encode(record))
    printed = CliRunner().invoke(command, ["--print-config", "--json", "--dir", str(tmp_path), *options])
    assert printed.exception is None, printed.output
    assert json.loads(printed.stdout)["config"]["learner"]["dtype"] == learner


@pytest.mark.parametrize(
    ("options", "bound", "importance"),
    [
        ([], 1.0, "clip"),
        (["--max-logprob-difference", "0.2"], 0.2, "clip"),
        (["--loss", "gspo"], 1.0, "token_truncate"),
        (["--loss", "gspo", "--importance", "clip"], 1.0, "clip"),
        (["--dtype", "float32"], None, None),
    ],
)
def test_beside_an_engine_in_float16_a_learner_allows_for_what_it_rounds(
    options: list[str], bound: float | None, importance: str | None, tmp_path: Path
) -> None:
    record = ServingFile("http://127.0.0.1:9", str(tmp_path), "policy", os.getpid(), "", dtype="float16")
    DataDir(tmp_path).serving.write_bytes(msgspec.json.encode(record))
    printed = CliRunner().invoke(command, ["--print-config", "--json", "--dir", str(tmp_path), *options])
    assert printed.exception is None, printed.output
    learner = json.loads(printed.stdout)["config"]["learner"]
    assert (learner["max_logprob_difference"], learner["importance"]) == (bound, importance)


def test_what_is_chosen_for_the_machine_is_printed_as_json_too(tmp_path: Path) -> None:
    shape = {"vocab_size": 100, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    base_model = tmp_path / "base"
    base_model.mkdir()
    (base_model / "config.json").write_text(json.dumps(shape | {"num_experts": 8}))
    arguments = ["--print-config", "--json", "--base-model", str(base_model), "--dir", str(tmp_path)]
    printed = CliRunner().invoke(command, arguments)
    assert printed.exception is None, printed.output
    document = json.loads(printed.stdout)
    assert document["config"]["min_groups"] == 4
    assert document["base_model"] == str(base_model)
    assert document["chosen"]["lora_targets"]["value"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert "8 experts" in document["chosen"]["lora_targets"]["reason"]
    assert document["chosen"]["routed_experts"]["value"] == "not replayed"
    assert {"dtype", "gradient_checkpointing", "micro_batch_tokens", "keep.states", "engine_memory_share"} <= set(
        document["chosen"]
    )


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        ({"base_model": "models/tin\udcff"}, {}),
        ({}, {"ARTTRACE_TRAIN_BASE_MODEL": "models/tin\udcff"}),
        ({}, {"ARTTRACE_TRAIN_LEARNER__LORA_TARGETS": "q\udcff"}),
        ({}, {"ARTTRACE_TRAIN_POL\udcff": "1"}),
    ],
)
def test_what_is_no_utf8_is_refused(flags: dict[str, str], environment: dict[str, str]) -> None:
    """`--print-config` ended with a traceback: neither TOML nor JSON has such a letter."""
    with pytest.raises(TrainingError, match=r"is wrong at .*\\udcff'.*not UTF-8"):
        load_config(None, flags, environment)


@pytest.mark.parametrize("address", ["http://me:S3CR3T@judge.example/v1", "http://me:S3CR/3T@judge.example/v1"])
def test_the_login_of_the_judge_is_not_printed(address: str, tmp_path: Path) -> None:
    options = ["--print-config", "--judge", "openai/m", "--judge-base-url", address, "--dir", str(tmp_path)]
    printed = CliRunner().invoke(command, options)
    assert printed.exit_code == 0, printed.output
    assert "3T" not in printed.output
    shown = tomllib.loads(printed.output)["judge_base_url"]
    assert shown.endswith("judge.example/v1")
    assert "ARTTRACE_TRAIN_JUDGE_BASE_URL" in printed.output
    document = CliRunner().invoke(command, [*options, "--json"]).output
    assert "3T" not in document
    assert json.loads(document)["config"]["judge_base_url"] == shown
    plain = CliRunner().invoke(command, ["--print-config", "--judge-base-url", "http://judge.example/v1"]).output
    assert 'judge_base_url = "http://judge.example/v1"\n' in plain
