"""What ART's present loop passes and reads: by its names, and refused by name where there is nothing like it here."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from backend_commands import rewarded

import arttrace
import arttrace.loop as art
from arttrace.loop.processes.art_names import _NOT_HERE, own_settings, settings_of_imitation
from arttrace.loop.processes.trainer_process import TrainerProcess
from arttrace.system.errors import ArttraceError, TrainingError
from arttrace.system.evaluations import read_evaluations
from arttrace.system.paths import DataDir
from trainer.commands.train.settings import _READ_BY, METHODS, parse_settings, require_for_batches

ALL_AS_ART_HAS_THEM: dict[str, Any] = {
    "learning_rate": 5e-6,
    "loss_fn": "cispo",
    "loss_fn_config": None,
    "normalize_advantages": True,
    "adam_params": None,
    "kl_penalty_coef": 0.0,
    "kl_penalty_reference_step": None,
    "kl_ref_adapter_path": None,
    "epsilon": None,
    "epsilon_high": None,
    "advantage_balance": 0.0,
    "scale_rewards": True,
    "importance_sampling_level": "token",
    "max_negative_advantage_importance_sampling_weight": None,
    "mask_prob_ratio": False,
    "kimi_k2_tau": None,
    "precalculate_logprobs": False,
    "allow_training_without_logprobs": False,
    "plot_tensors": False,
    "truncated_importance_sampling": None,
    "scale_learning_rate_by_reward_std_dev": False,
    "logprob_calculation_chunk_size": 1024,
    "packed_sequence_length": None,
    "num_trajectories_learning_rate_multiplier_power": 0.0,
    "save_checkpoint": True,
    "verbose": False,
}
"""The signature of `LocalBackend.train` of openpipe-art 0.5.18."""


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ({"learning_rate": 1e-5, "loss": "gspo"}, {"learning_rate": 1e-5, "loss": "gspo"}),
        ({"kl_penalty_coef": 0.1, "kl_ref_adapter_path": "/a"}, {"kl_weight": 0.1, "kl_reference": "/a"}),
        ({"normalize_advantages": False}, {"advantages": "none"}),
        ({"normalize_advantages": True, "scale_rewards": False}, {"advantages": "none"}),
        ({"scale_rewards": True}, {"advantages": "std"}),
        ({"loss_fn": "ppo"}, {"loss": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.2}),
        ({"loss_fn": "ppo", "epsilon": 0.1}, {"loss": "dapo", "epsilon_low": 0.1, "epsilon_high": 0.1}),
        (
            {"loss_fn": "ppo", "epsilon_high": 0.3, "max_negative_advantage_importance_sampling_weight": 2.0},
            {"loss": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.3, "delta": 2.0},
        ),
        ({"loss_fn": "cispo", "epsilon_high": 3.0}, {"loss": "cispo", "cispo_max_ratio": 4.0}),
        ({"epsilon": 1.0, "epsilon_high": 3.0}, {"cispo_max_ratio": 4.0}),
        ({"loss": "grpo", "epsilon_high": 0.3}, {"loss": "grpo", "epsilon_high": 0.3}),
        (
            {"truncated_importance_sampling": 2.0, "verbose": True},
            {"importance": "token_truncate", "importance_clip_max": 2.0},
        ),
        (
            ALL_AS_ART_HAS_THEM,
            {
                "learning_rate": 5e-6,
                "loss": "cispo",
                "advantages": "std",
                "kl_weight": 0.0,
                "importance_sampling_level": "token",
            },
        ),
    ],
)
def test_a_setting_of_art_is_the_option_of_its_meaning(given: dict[str, Any], own: dict[str, Any]) -> None:
    assert own_settings(given) == own
    parse_settings(own)  # each is one that the trainer takes


@pytest.mark.parametrize(
    ("given", "said", "remedy"),
    [
        ({"advantage_balance": 0.5}, "no advantage_balance here, which ART's advantage_balance=0.5", "advantages="),
        ({"kimi_k2_tau": 0.1}, "no kimi_k2_tau here", "kl_weight="),
        ({"kl_penalty_reference_step": 3}, "no kl_penalty_reference_step here", "kl_reference="),
        ({"packed_sequence_length": 4096}, "no packed_sequence_length here", "micro_batch_tokens="),
        ({"save_checkpoint": False}, "no save_checkpoint here", "delete_checkpoints"),
        ({"adam_params": {"beta1": 0.9}}, "no adam_params here", "adam_betas="),
        ({"normalize_by_length": False}, "no normalize_by_length here", "loss='dr_grpo'"),
        ({"ppo": True}, "no ppo here", "loss_fn='ppo'"),
        ({"optimizer_save_interval": 1, "method": "sft"}, "no optimizer_save_interval here", "keep_states="),
        ({"_config": {"advantage_balance": 0.5}}, "no _config here", "advantages='std'"),
        ({"_config": {"max_length": 9}, "method": "sft"}, "no _config here", "train --method sft`: max_length=4096."),
        ({"_config": {"max_length": 9}, "method": "dpo"}, "no _config here", "train --method dpo`: max_length=4096."),
        ({"packed_sequence_length": 9, "method": "sft"}, "no packed_sequence_length here", "max_length=4096."),
        ({"save_checkpoint": False, "method": "sft"}, "no save_checkpoint here", "delete_checkpoints"),
        ({"epsilon": 0.2}, "no lower bound of cispo's ratio here", "loss_fn='ppo'"),
        ({"loss_fn": "importance_sampling"}, "no loss_fn 'importance_sampling'", "loss="),
        ({"loss_fn": "ppo", "loss": "gspo"}, "loss is passed twice", "one of them"),
        ({"kl_penalty_coef": 0.1, "kl_weight": 0.1}, "kl_weight is passed twice", "one of them"),
        (
            {"config": art.TrainConfig(learning_rate=1e-4, beta=0.1)},
            "backend.train takes no config",
            "backend.train(model, groups, learning_rate=0.0001, kl_weight=0.1)",
        ),
        ({"config": art.TrainConfig()}, "this one sets nothing", "Leave it out"),
        ({"config": {"a": 1}}, "backend.train takes no config", "learning_rate=1e-5"),
    ],
)
def test_what_has_nothing_like_it_is_refused_by_name(given: dict[str, Any], said: str, remedy: str) -> None:
    with pytest.raises(TrainingError) as refused:
        own_settings(given)
    assert said in str(refused.value)
    assert remedy in str(refused.value.hint)


@pytest.mark.parametrize("name", sorted(_NOT_HERE))
@pytest.mark.parametrize("method", METHODS)
def test_the_remedy_names_options_that_the_method_has(name: str, method: str) -> None:
    with pytest.raises(TrainingError) as refused:
        own_settings({name: object(), "method": method})
    named = set(re.findall(r"(\w+)=", str(refused.value.hint))) - {"method"}
    others = {option for option, methods in _READ_BY.items() if method not in methods}
    assert not named & others


def test_a_config_has_both_names_of_the_weight() -> None:
    assert art.TrainConfig(learning_rate=1e-5, kl_penalty_coef=0.1).settings() == {
        "learning_rate": 1e-5,
        "kl_weight": 0.1,
    }
    with pytest.raises(TrainingError, match="no grad_accumulation_sequences here"):
        art.TrainConfig(grad_accumulation_sequences=2)
    with pytest.raises(TrainingError, match="kl_weight is passed twice"):
        art.TrainConfig(beta=0.1, kl_penalty_coef=0.1)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"learning_rate": 1e-4}, "config=TrainSFTConfig(learning_rate=...)"),
        ({"batch_size": 4}, "config=TrainSFTConfig(batch_size=...)"),
        ({"assistant_turns": "last"}, "config=TrainSFTConfig(assistant_turns=...)"),
        ({"warmup_steps": 3}, "create_lr_schedule"),
        ({"peak_lr": 1e-4}, "create_lr_schedule"),
        ({"epochs": 2}, "train_sft_from_file(epochs=2)"),
        ({"min_reward": 0.5}, "that are to be imitated"),
        ({"loss_fn": "cispo"}, "imitation has one loss"),
        ({"adam_params": {"beta1": 0.9}}, "adam_betas="),
    ],
)
def test_what_train_sft_is_told_elsewhere_is_refused_with_where(given: dict[str, Any], remedy: str) -> None:
    """It said that batches say it, and no loop has batches."""
    with pytest.raises(TrainingError, match=next(iter(given))) as refused:
        settings_of_imitation(given)
    assert remedy in str(refused.value.hint)


def test_settings_of_imitation_that_ask_for_nothing_or_are_its_own_are_taken() -> None:
    given = {
        "epochs": 1,
        "again": False,
        "warmup_steps": 0,
        "learning_rate": None,
        "verbose": True,
        "adam_params": None,
    }
    own = settings_of_imitation({**given, "lora_rank": 8, "adam_betas": (0.9, 0.95)})
    assert own == {"method": "sft", "lora_rank": 8, "adam_betas": (0.9, 0.95)}
    require_for_batches(parse_settings(own))


@pytest.mark.parametrize(
    ("called", "given", "remedy"),
    [
        (art.TrainConfig, {"adam_params": None}, "model.train(groups, loss_fn='ppo')"),
        (art.TrainConfig, {"kl_penalty_source": "sample"}, "those of `arttrace train`"),
        (art.TrainSFTConfig, {"custom_lr_schedule": [1e-4]}, "learning_rate=create_lr_schedule(steps, peak_lr)"),
        (art.TrainSFTConfig, {"adam_params": {}}, "adam_betas=(0.9, 0.95)"),
        (art.Model, {"entity": "team"}, "WANDB_ENTITY"),
        (art.TrainableModel, {"_internal_config": {}}, "pass options to `arttrace serve`"),
        (art.TrainableModel, {"base_path": ".art"}, "LocalBackend(path=...)"),
        (art.TrainableModel.register, {"_openai_client_config": {}}, "`arttrace serve`"),
        (art.TrainableModel.train, {"trajectory_groups": []}, "model.train(groups)"),
        (art.LocalBackend, {"in_process": True}, "processes of their own"),
        (art.gather_trajectories, {"pbar_total_completion_tokens": True}, "arttrace stats"),
        (art.gather_trajectory_groups, {"max_metrics": 3}, "arttrace stats"),
        (art.TrajectoryGroup, {"trajectories": []}, "by place"),
        (art.Trajectory, {"start_time": None}, "when the trajectory is made"),
    ],
)
def test_an_argument_that_arts_has_alone_is_refused_with_what_to_do(
    called: Any, given: dict[str, Any], remedy: str
) -> None:
    [name] = given
    with pytest.raises(TypeError, match=f"{called.__qualname__}.* has no argument '{name}'") as refused:
        called(**given)
    assert remedy in str(refused.value)


async def test_what_is_trained_is_a_list_of_steps_and_what_art_reads_of_it(
    backend: art.LocalBackend, model: art.TrainableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    train = TrainerProcess.train

    async def noted(self: TrainerProcess, groups: Any, settings: Any) -> Any:
        asked.append(dict(settings))
        return await train(self, groups, settings)

    monkeypatch.setattr(TrainerProcess, "train", noted)
    async with backend:
        await model.register(backend)
        group = await art.gather_trajectories([rewarded(), rewarded()])
        result = await backend.train(model, trajectory_groups=[group], learning_rate=1e-5, kl_penalty_coef=0.1)
        [step] = result
        assert (result.step, result.metrics, result.checkpoint_path) == (1, step.metrics, step.adapter)
        assert asked == [{"steps": 1, "learning_rate": 1e-5, "kl_weight": 0.1}]
        several = await backend.train(model, steps=2)
        assert [one.version for one in several] == ["policy@1", "policy@2"]
        assert several.step == 2
        with pytest.raises(TypeError, match="groups and trajectory_groups are the same: pass one"):
            await backend.train(model, [group], trajectory_groups=[group])
        (backend.data.root / "go-on").touch()
        nothing = await backend.train(model, loss="slow")
        assert (nothing, nothing.metrics, nothing.checkpoint_path) == ([], {}, None)
        assert nothing.step == 3  # the one that is served
        logged = await model.log([group], metrics=nothing.metrics, step=nothing.step, split="train")
        assert logged["train/runs"] == 2


async def test_what_a_group_is_told_is_kept_where_there_is_a_place(
    backend: art.LocalBackend, model: art.TrainableModel
) -> None:
    @arttrace.trajectory(metadata={"own": 1})
    async def told(number: int) -> None:
        arttrace.reward(float(number))

    @arttrace.trajectory
    async def says_more() -> art.Trajectory:
        return art.Trajectory(metadata={"scenario_id": "its own"})

    groups = [
        art.TrajectoryGroup(
            (told(number) for number in range(2)),
            metadata={"scenario_id": "a"},
            metrics={"difficulty": 2},
            logs=["made"],
            exceptions=[LookupError("before")],
        ),
        art.TrajectoryGroup((told(number) for number in range(2)), metrics={"difficulty": 4}),
    ]
    first, second = await art.gather_trajectory_groups(groups)
    first.log("gathered")
    assert [run.metadata for run in first.captured] == [{"own": 1, "scenario_id": "a"}] * 2
    assert [run.metadata for run in second.captured] == [{"own": 1}] * 2
    assert (first.metadata, first.logs, len(first.exceptions)) == ({"scenario_id": "a"}, ["made", "gathered"], 1)
    assert copy.deepcopy(first).metadata == first.metadata
    third = await art.trajectory_group([says_more()], metadata={"scenario_id": "a", "k": 1})
    assert [run.metadata for run in third.captured] == [{"scenario_id": "its own", "k": 1}]
    model.backend = backend
    means = await model.log(groups, step=0)
    assert means == {"val/runs": 4.0, "val/reward": 0.5, "val/group_difficulty": 3.0}
    again = art.TrajectoryGroup([], metrics={"difficulty": float("nan")})
    with pytest.raises(ArttraceError, match="the metric 'difficulty' of a group is nan, not a finite number"):
        await model.log([again], step=0)
    ready = await art.trajectory_group([art.Trajectory(reward=1.0)], metadata={"k": 1}, metrics={"m": 1}, logs=["x"])
    assert (ready.metadata, ready.metrics, ready.logs) == ({"k": 1}, {"m": 1}, ["x"])


async def test_numbers_of_the_program_are_logged_with_runs_and_alone(
    backend: art.LocalBackend, model: art.TrainableModel
) -> None:
    model.backend = backend
    run = art.Trajectory(reward=0.5)
    alone = await model.log(metrics={"loss": 0.25, "time/step_s": 2}, step=1, split="train")
    assert alone == {"train/loss": 0.25, "time/step_s": 2.0}
    both = await model.log(trajectories=[run], metrics={"reward": 0.75}, step=1)
    assert both == {"val/runs": 1.0, "val/reward": 0.75}
    lines = (backend.data.root / "logs" / "policy.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 1]
    # A version has itself what it was trained on: it is no evaluation.
    assert read_evaluations(backend.data, "policy") == {1: {"val/reward": 0.75, "time/step_s": 2.0}}
    with pytest.raises(ArttraceError, match="the metric 'val/loss' is nan, not a finite number"):
        await model.log(metrics={"loss": float("nan")}, step=1)
    with pytest.raises(ArttraceError, match="a NoneType is no list of runs to log"):
        await model.log(step=1)
    with pytest.raises(TypeError, match="groups and trajectories are the same: pass one"):
        await model.log([run], trajectories=[run], step=1)
    prompted = art.Model("o3")
    await prompted.register(art.LocalBackend(backend.data.root))
    assert await prompted.log([run], metrics={"cost": 2}) == {"val/runs": 1.0, "val/reward": 0.5, "val/cost": 2.0}
    assert read_evaluations(DataDir(backend.data.root), "o3") == {0: {"val/reward": 0.5, "val/cost": 2.0}}


def test_a_prompted_model_learns_nothing() -> None:
    with pytest.raises(AttributeError, match="ART's train_sft is here an attribute of a TrainableModel"):
        art.Model("o3").train_sft  # type: ignore[attr-defined]  # noqa: B018


async def test_a_version_is_named_by_its_step(tmp_path: Path) -> None:
    model = art.TrainableModel("agent-001", tmp_path)
    assert [model.get_inference_name(), model.get_inference_name(3)] == ["agent-001:latest", "agent-001@3"]
    model.inference_base_url, model.inference_api_key = "http://127.0.0.1:1/v1", "key"
    assert model.litellm_completion_params(step=3) == {
        "model": "hosted_vllm/agent-001@3",
        "base_url": "http://127.0.0.1:1/v1",
        "api_key": "key",
        "temperature": 1,
    }
    prompted = art.Model("o3")
    assert prompted.litellm_completion_params()["model"] == "o3"
    assert [prompted.get_step(), await prompted.get_step()] == [0, 0]


async def test_versions_are_ranked_by_the_reward_alone(backend: art.LocalBackend, model: art.TrainableModel) -> None:
    model.backend = backend
    await model.delete_checkpoints(best_checkpoint_metric="train/reward")
    with pytest.raises(TrainingError, match="versions are not ranked by val/accuracy: keep_best goes by train/reward"):
        await model.delete_checkpoints(best_checkpoint_metric="val/accuracy")


@pytest.mark.parametrize("name", ["write_state", "read_state", "update_wandb_config", "model_dump"])
def test_an_attribute_that_arts_models_have_is_answered_with_ours(name: str, tmp_path: Path) -> None:
    for model in (art.Model("o3"), art.TrainableModel("agent-001", tmp_path)):
        with pytest.raises(AttributeError, match=f"{type(model).__name__}' object has no attribute '{name}'; ART's"):
            getattr(model, name)
        with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
            model.nothing  # type: ignore[attr-defined]  # noqa: B018
        assert copy.deepcopy(model).name == model.name


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        (arttrace, "observe", "Langfuse's observe is here @arttrace.trajectory"),
        (arttrace, "emit_reward", "Agent Lightning's emit_reward is here arttrace.reward"),
        (art, "GRPOTrainer", "TRL's GRPOTrainer is here gather_trajectory_groups"),
        (art, "Rubric", "verifiers's Rubric is here the rollout's reward"),
        (art, "nonsense", "has no attribute 'nonsense'$"),
    ],
)
def test_names_of_other_libraries_are_answered_with_ours(module: ModuleType, name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=said):
        getattr(module, name)
