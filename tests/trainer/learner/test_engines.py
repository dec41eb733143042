"""Both engines as a whole: each goes on exactly, refuses what is unsound, leaves no litter, and learns."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_starts
import msgspec
import pytest
import torch
from several_cards import two_cards as two_cards

from arttrace.records.policy import PolicyStep
from arttrace.records.sequence import TokenSequence
from arttrace.system.errors import TrainingError
from trainer.grpo.advantages import group_advantages
from trainer.learner import make_learner
from trainer.learner.base import BaseLearner
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.policy_model import trainable
from trainer.learner.trl.engine import TrlLearner
from trainer.policies.checkpoints import STATE, Checkpoints


@pytest.fixture(params=["packed", "trl"])
def engine(request: pytest.FixtureRequest) -> type[BaseLearner]:
    return {"packed": PackedLearner, "trl": TrlLearner}[request.param]


LOOSE = LearnerConfig(learning_rate=1e-2, lora_rank=8, max_logprob_difference=1e9)


def weights(learner: BaseLearner) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in learner.model.named_parameters() if p.requires_grad}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def changed(sequence: TokenSequence, position: int, **fields: Any) -> TokenSequence:
    return msgspec.structs.replace(
        sequence,
        **{
            name: tuple(value if t == position else old for t, old in enumerate(getattr(sequence, name)))
            for name, value in fields.items()
        },
    )


def test_two_steps_saved_and_loaded_and_two_more_are_four(
    engine: type[BaseLearner], base_model: Path, tmp_path: Path, make_samples: Callable[[int], list[Sample]]
) -> None:
    config = dataclasses.replace(LOOSE, epochs=2, minibatches=2, warmup_steps=3, decay=(1, 4), weight_decay=0.1)
    straight = engine(base_model, config)
    for seed in range(4):
        straight.step(make_samples(seed))

    first = engine(base_model, config)
    for seed in range(2):
        first.step(make_samples(seed))
    first.save(tmp_path)
    del first
    second = engine(base_model, dataclasses.replace(config, seed=99))
    second.load(tmp_path)
    for seed in range(2, 4):
        second.step(make_samples(seed))

    assert second.steps == straight.steps == 4
    assert same(weights(second), weights(straight))


def test_a_version_without_its_optimizer_state_gives_its_weights(
    engine: type[BaseLearner], base_model: Path, tmp_path: Path, make_samples: Callable[[int], list[Sample]]
) -> None:
    first = engine(base_model, LOOSE)
    first.step(make_samples(0))
    checkpoints = Checkpoints(tmp_path, "p")
    for step in (7, 8):
        checkpoints.write(step, first.save, PolicyStep("p", step, ""))
    assert checkpoints.drop_states([7, 8]) == [7], "the newest keeps it"
    second = engine(base_model, dataclasses.replace(LOOSE, seed=99))
    second.load(checkpoints.path(7))
    assert same(weights(second), weights(first))
    assert (second.steps, second.optimizer.state_dict()["state"]) == (7, {})
    second.step(make_samples(1))
    second.load(checkpoints.path(7))
    assert second.optimizer.state_dict()["state"] == {}, "nor does a step leave it one that could not be kept"
    (checkpoints.path(8) / STATE).unlink()  # lost otherwise
    with pytest.raises(TrainingError, match="cannot be read"):
        second.load(checkpoints.path(8))


@pytest.mark.parametrize(
    ("said", "made_by", "are_of"),
    [("sft", "fork", "sft"), ("dpo", "dpo", "dpo"), ("", "sft", "sft"), ("", "grpo", ""), ("", "fork", "")],
)
def test_moments_of_another_loss_are_not_taken(
    base_model: Path, tmp_path: Path, make_samples: Callable[[int], list[Sample]], said: str, made_by: str, are_of: str
) -> None:
    """Nor those of a state from before it said whose they are, where the version's manifest does."""
    first = PackedLearner(base_model, LOOSE)
    first.step(make_samples(0))
    checkpoints = Checkpoints(tmp_path, "p")
    checkpoints.write(1, first.save, PolicyStep("p", 1, "", method=made_by))
    state = torch.load(checkpoints.path(1) / STATE, weights_only=True)
    assert state.pop("loss") == "policy gradient"
    torch.save(state | ({"loss": said} if said else {}), checkpoints.path(1) / STATE)
    second = PackedLearner(base_model, dataclasses.replace(LOOSE, seed=99, learning_rate=1e-3))
    second.step(make_samples(1))
    note = second.load(checkpoints.path(1))
    assert note == (f"AdamW's moments begin anew: those of p@1 are of {are_of}" if are_of else "")
    assert (second.steps, same(weights(second), weights(first))) == (1, True)
    taken = second.optimizer.state_dict()["state"]
    assert bool(taken) is not bool(are_of)
    assert not taken or same(taken[0], first.optimizer.state_dict()["state"][0]), "whatever the learning rate"


def test_saved_adapter_is_what_peft_and_vllm_load(
    engine: type[BaseLearner], base_model: Path, tmp_path: Path, make_samples: Callable[[int], list[Sample]]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    learner = engine(base_model, LOOSE)
    learner.step(make_samples(0))
    learner.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "learned_tokens.bin",
        "trainer_state.pt",
    ]
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["bias"], config["modules_to_save"]) == ("LORA", 8, "none", None)
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base_model), tmp_path)
    weights = trainable(learner.model)
    assert all(torch.equal(weight, weights[name]) for name, weight in loaded.named_parameters() if "lora_" in name)
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad(), learner.model.disable_adapter():
        plain = learner.model(ids).logits
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, learner.model(ids).logits, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(loaded(ids).logits, plain, atol=1e-4)


def test_a_state_of_another_shape_is_refused(engine: type[BaseLearner], base_model: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="cannot be read"):
        engine(base_model, LOOSE).load(tmp_path)
    engine(base_model, LOOSE).save(tmp_path)
    with pytest.raises(TrainingError, match=rf"lora_rank {LOOSE.lora_rank}, not 16") as raised:
        engine(base_model, dataclasses.replace(LOOSE, lora_rank=16)).load(tmp_path)
    assert f"--lora-rank {LOOSE.lora_rank}" in str(raised.value.hint)
    dense = "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    one = engine(base_model, dataclasses.replace(LOOSE, lora_targets=("q_proj",)))
    with pytest.raises(TrainingError, match=f"has the LoRA on {dense}, and not on q_proj"):
        one.load(tmp_path)
    one.save(tmp_path)
    with pytest.raises(TrainingError, match=f"has the LoRA on q_proj, and not on {dense}") as raised:
        engine(base_model, LOOSE).load(tmp_path)
    assert raised.value.hint == 'Train on with lora_targets = ["q_proj"], or begin a new policy.'


def test_another_scale_of_the_adapter_is_refused(engine: type[BaseLearner], base_model: Path, tmp_path: Path) -> None:
    engine(base_model, LOOSE).save(tmp_path)
    with pytest.raises(TrainingError, match=f"lora_alpha {LOOSE.alpha}, not 64") as raised:
        engine(base_model, dataclasses.replace(LOOSE, lora_alpha=64)).load(tmp_path)
    assert f"--lora-alpha {LOOSE.alpha}" in str(raised.value.hint)


@pytest.mark.parametrize("setting", [{"use_rslora": True}, {"use_dora": True}, {"alpha_pattern": {"q_proj": 64}}])
def test_an_adapter_whose_settings_compute_otherwise_is_refused(
    engine: type[BaseLearner], setting: dict[str, Any], base_model: Path, tmp_path: Path
) -> None:
    learner = engine(base_model, LOOSE)
    learner.save(tmp_path)
    settings = tmp_path / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | setting))
    with pytest.raises(TrainingError, match=f"sets {next(iter(setting))}: what is served .* is another policy"):
        learner.load(tmp_path)


def test_equal_rewards_everywhere_skip_the_step(
    engine: type[BaseLearner], base_model: Path, make_samples: Callable[[int], list[Sample]]
) -> None:
    learner = engine(base_model, LOOSE)
    learner.step(make_samples(0))
    before = weights(learner)
    metrics = learner.step([Sample(s.sequences, 0.0) for s in make_samples(1)])
    assert metrics.skipped
    assert metrics.trained_tokens > 0
    assert metrics.forwarded_tokens == 0
    assert same(before, weights(learner))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: Sample((), s.advantage), "nothing to train on"),
        (lambda s: Sample((changed(s.sequences[0], 0, trained=1, logprobs=-1.0),), 1.0), "first token"),
        (lambda s: Sample((changed(s.sequences[0], 5, trained=1, logprobs=None),), 1.0), "no usable log-prob"),
        (lambda s: Sample((changed(s.sequences[0], 5, trained=1, logprobs=math.nan),), 1.0), "no usable log-prob"),
        (lambda s: Sample((changed(s.sequences[0], 1, token_ids=48),), 1.0), "vocabulary of 48"),
        (lambda s: Sample(s.sequences, math.inf), "advantage is not a finite"),
    ],
)
def test_unsound_input_is_an_error_with_its_cause(
    engine: type[BaseLearner],
    base_model: Path,
    make_samples: Callable[[int], list[Sample]],
    damage: Callable[[Sample], Sample],
    message: str,
) -> None:
    learner = engine(base_model, LOOSE)
    before = weights(learner)
    with pytest.raises(TrainingError, match=message):
        learner.step([damage(make_samples(0)[0])])
    assert same(before, weights(learner))


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_loss_that_is_no_number_changes_nothing(
    engine: type[BaseLearner], base_model: Path, make_samples: Callable[[int], list[Sample]], epochs: int
) -> None:
    learner = engine(base_model, dataclasses.replace(LOOSE, loss="dapo", epochs=epochs))
    learner.step(make_samples(0))
    before, optimizer = weights(learner), copy.deepcopy(learner.optimizer.state_dict())
    sample = make_samples(1)[1]
    position = sample.sequences[0].trained.index(1)
    # A ratio of exp(15) or so times such an advantage overflows; as it is negative nothing clips it.
    broken = Sample(
        (changed(sample.sequences[0], position, logprobs=sample.sequences[0].logprobs[position] - 15),), -1e308
    )
    with pytest.raises(TrainingError, match="not a finite number"):
        learner.step([*make_samples(1), broken])
    assert same(before, weights(learner))
    for key, state in learner.optimizer.state_dict()["state"].items():
        assert all(
            torch.equal(torch.as_tensor(v), torch.as_tensor(optimizer["state"][key][k])) for k, v in state.items()
        )
    assert not learner.step(make_samples(2)).skipped


def sampled(learner: BaseLearner, prompt: list[int], count: int, length: int, generator: Any) -> list[TokenSequence]:
    """`count` continuations of one prompt, sampled from the learner's own policy at temperature 1."""
    ids = torch.tensor([prompt] * count)
    logps = []
    with torch.no_grad():
        for _ in range(length):
            step = torch.log_softmax(learner.model(ids).logits[:, -1], dim=-1)
            token = torch.multinomial(step.exp(), 1, generator=generator)
            logps.append(step.gather(1, token))
            ids = torch.cat([ids, token], dim=1)
    captured = torch.cat(logps, dim=1).tolist()
    head = len(prompt)
    return [
        TokenSequence(
            trajectory_id=str(i),
            revision="r",
            agent_id="root",
            token_ids=tuple(row),
            trained=(0,) * head + (1,) * length,
            logprobs=(None,) * head + tuple(captured[i]),
            versions=(-1,) * head + (0,) * length,
            policy_versions=(f"p@{learner.steps}",),
            call_ids=("c",),
        )
        for i, row in enumerate(ids.tolist())
    ]


def test_stale_log_probabilities_are_refused_only_for_the_current_version(
    engine: type[BaseLearner], base_model: Path
) -> None:
    learner = engine(base_model, dataclasses.replace(LOOSE, max_logprob_difference=None))
    sequences = sampled(learner, [1, 2, 3], 4, 6, torch.Generator().manual_seed(0))
    samples = [Sample((q,), (-1.0) ** i) for i, q in enumerate(sequences)]
    metrics = learner.step(samples, current_version="p@0")
    assert metrics.logprob_difference_max < 1e-5
    assert metrics.ratio_mean == pytest.approx(1.0, abs=1e-5)
    before = weights(learner)
    # The same samples again: one step of 1e-2 moved the policy away from what they were sampled with.
    with pytest.raises(TrainingError, match=r"bound is 0\.01"):
        learner.step(samples, current_version="p@0")
    assert same(before, weights(learner))
    assert learner.step(samples, current_version="p@1").logprob_difference_max > 0.01


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_policy_too_far_from_its_reference_is_left_as_it_was(
    engine: type[BaseLearner], base_model: Path, make_samples: Callable[[int], list[Sample]], epochs: int
) -> None:
    learner = engine(base_model, dataclasses.replace(LOOSE, kl_weight=0.01, epochs=epochs, max_kl=1e3))
    learner.step(make_samples(0))
    before, optimizer = weights(learner), copy.deepcopy(learner.optimizer.state_dict())
    learner.config = dataclasses.replace(learner.config, max_kl=1e-6)
    with pytest.raises(TrainingError, match="nats per token away from its reference") as raised:
        learner.step(make_samples(1))
    assert "--max-kl" in raised.value.hint
    assert same(before, weights(learner))
    for key, state in learner.optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, optimizer["state"][key][name]) for name, value in state.items())
    assert learner.steps == 1


def learns(base_model: Path, engine: str, loss: str, seed: int) -> list[float]:
    """The mean reward of 25 steps, the reward being the share of even tokens among six."""
    config = dataclasses.replace(LOOSE, engine=engine, loss=loss, dr_grpo_length=6, max_logprob_difference=1e-3)
    learner = make_learner(base_model, config)
    generator = torch.Generator().manual_seed(seed)
    means = []
    for step in range(25):
        samples, rewards = [], []
        for prompt in ([1, 2], [3, 4, 5], [7, 9], [40, 11, 30, 8]):
            sequences = sampled(learner, prompt, 8, 6, generator)
            group = [sum(t % 2 == 0 for t in q.token_ids[len(prompt) :]) / 6 for q in sequences]
            samples += [Sample((q,), a) for q, a in zip(sequences, group_advantages(group), strict=True)]
            rewards += group
        learner.step(samples, current_version=f"p@{step}")
        means.append(sum(rewards) / len(rewards))
    return means


@pytest.mark.parametrize(
    ("engine_name", "loss"),
    [
        ("trl", "dapo"),
        ("packed", "dapo"),
        *[pytest.param("packed", loss, marks=pytest.mark.full) for loss in ("grpo", "dr_grpo", "cispo", "gspo")],
    ],
)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)])
def test_a_random_model_learns_a_simple_reward(base_model: Path, engine_name: str, loss: str, seed: int) -> None:
    means = learns(base_model, engine_name, loss, seed)
    assert means[0] < 0.65
    assert sum(means[-3:]) / 3 > 0.9, means


def test_the_learning_rate_falls_to_a_tenth_where_the_config_says_so(
    engine: type[BaseLearner], base_model: Path, make_samples: Callable[[int], list[Sample]]
) -> None:
    moves = []
    for decay in (None, (0, 1)):
        learner = engine(base_model, LearnerConfig(learning_rate=1e-3, decay=decay))
        learner.step(make_samples(0))
        before = weights(learner)
        learner.step(make_samples(1))
        after = weights(learner)
        moves.append(torch.cat([(after[name] - before[name]).flatten() for name in sorted(before)]).double())
    constant, fallen = moves
    assert torch.allclose(fallen, constant / 10, rtol=1e-3, atol=1e-8)
    assert [LearnerConfig(learning_rate=1.0, decay=(2, 4)).learning_rate_at(n) for n in (0, 2, 3, 4, 9)] == (
        pytest.approx([1.0, 1.0, 0.55, 0.1, 0.1])
    )
    assert [LearnerConfig(learning_rate=1.0, warmup_steps=3).learning_rate_at(n) for n in range(5)] == (
        pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    )


def test_config_is_checked(engine: type[BaseLearner], base_model: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="rank 7"):
        engine(base_model, LearnerConfig(lora_rank=7))
    with pytest.raises(TrainingError, match="decay"):
        engine(base_model, LearnerConfig(decay=(4, 4)))
    with pytest.raises(TrainingError, match="has no model"):
        engine(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TrainingError, match="cannot be loaded"):
        engine(tmp_path)


def test_what_a_program_has_set_aside_for_good_stays_so(
    engine: type[BaseLearner], base_model: Path, make_samples: Callable[[int], list[Sample]]
) -> None:
    learner = engine(base_model, LOOSE)
    gc.freeze()
    frozen = gc.get_freeze_count()
    learner.step(make_samples(0))
    assert gc.get_freeze_count() > frozen / 2, "but for what is gone by itself"


SELDOM = "from arttrace.system.processes import collect_garbage_seldom; collect_garbage_seldom()"
"""As a command begins that loads torch."""

UNSLOTH = (
    SELDOM
    + """
import dataclasses, json, os, signal, sys

class NoAvx512:
    # A stand-in for a CPU without AVX-512, on which loading this part of vLLM's CPU build is death.
    def find_spec(self, name, path=None, target=None):
        if name == "vllm._C":
            os.kill(os.getpid(), signal.SIGILL)

sys.meta_path.insert(0, NoAvx512())
from pathlib import Path
import msgspec
from trainer.learner import LearnerConfig, make_learner
from trainer.learner.interface import Sample
from arttrace.records.sequence import TokenSequence

base, samples, config = Path(sys.argv[1]), *(sys.stdin.read().split("|"))
config = msgspec.json.decode(config, type=LearnerConfig)
samples = [Sample(tuple(q), a) for q, a in msgspec.json.decode(samples, type=list[tuple[list[TokenSequence], float]])]
found = []
for engine in ("packed", "trl"):
    learner = make_learner(base, dataclasses.replace(config, engine=engine, loader="unsloth"))
    learner.step(samples)
    found.append(learner.step(samples).grad_norm)
print(json.dumps(found))
"""
)


def test_a_model_loaded_by_unsloth_is_trained_alike(
    base_model: Path, tmp_path: Path, make_samples: Callable[[int], list[Sample]]
) -> None:
    samples = make_samples(0)
    document = msgspec.json.encode([(s.sequences, s.advantage) for s in samples]) + b"|" + msgspec.json.encode(LOOSE)
    done = subprocess.run(
        [sys.executable, "-c", UNSLOTH, str(base_model)], input=document, cwd=tmp_path, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    learner = PackedLearner(base_model, LOOSE)
    learner.step(samples)
    wanted = learner.step(samples).grad_norm
    assert json.loads(done.stdout) == pytest.approx([wanted, wanted], rel=1e-5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["packed", "trl"])
def test_the_kl_term_may_refer_to_an_adapter(
    base_model: Path, tmp_path: Path, make_samples: Callable[[int], list[Sample]], name: str
) -> None:
    config = dataclasses.replace(LOOSE, engine=name)
    first = make_learner(base_model, config)
    for seed in range(3):
        first.step(make_samples(seed))
    first.save(tmp_path)
    found = {}
    for reference in (None, str(tmp_path)):
        learner = make_learner(base_model, dataclasses.replace(config, kl_weight=0.5, kl_reference=reference))
        learner.load(tmp_path)
        found[reference] = learner.step(make_samples(9))
    assert found[None].kl > 1e-3, "the policy has moved away from the base model"
    assert found[str(tmp_path)].kl == pytest.approx(0.0, abs=1e-9), "and is the adapter itself"
    with pytest.raises(TrainingError, match="reference adapter"):
        make_learner(base_model, dataclasses.replace(config, kl_weight=0.5, kl_reference=str(tmp_path / "none")))


def test_of_several_cards_the_trl_engine_takes_one(
    base_model: Path, make_samples: Callable[[int], list[Sample]], two_cards: None
) -> None:
    alone = make_learner(base_model, dataclasses.replace(LOOSE, engine="packed")).step(make_samples(0))
    step = make_learner(base_model, dataclasses.replace(LOOSE, engine="trl")).step(make_samples(0))
    assert step.grad_norm == pytest.approx(alone.grad_norm, rel=1e-4)


@pytest.mark.parametrize("name", ["packed", "trl"])
def test_a_reference_that_was_trained_with_dropout_drops_nothing(
    base_model: Path, tmp_path: Path, make_samples: Callable[[int], list[Sample]], name: str
) -> None:
    """Of a kind that PEFT computes itself, in a model that is in training for the sake of its checkpoints."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    terms = LoraConfig(target_modules="all-linear", lora_dropout=0.5, use_dora=True, init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base_model), terms).save_pretrained(tmp_path)
    config = dataclasses.replace(LOOSE, engine=name, kl_weight=0.5, kl_reference=str(tmp_path))
    found = [
        make_learner(base_model, dataclasses.replace(config, gradient_checkpointing=on)).step(make_samples(9)).kl
        for on in (False, True)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-4)


TWO_PROCESSES = (
    SELDOM
    + """
import contextlib, dataclasses, os, sys, time
from pathlib import Path
from trainer.learner import LearnerConfig, make_learner
from trainer.learner.interface import Sample
from arttrace.records.sequence import TokenSequence

import trainer.learner.packed.engine
import trainer.learner.trl.engine

base, work, out, support = map(Path, sys.argv[1:])


def ranks():
    for said in (1, 2):
        os.dup2(os.open(work / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND), said)
    import msgspec, torch
    import torch._dynamo  # loaded once there is a group, it holds that for good, and with it its threads
    from torch import distributed

    other = os.fork()
    rank = int(other > 0)
    distributed.init_process_group("gloo", init_method=f"file://{work / 'meeting'}", rank=rank, world_size=2)
    samples, configs = (work / "job").read_text().split("|")
    samples = msgspec.json.decode(samples, type=list[tuple[list[TokenSequence], float]])
    samples = [Sample(tuple(q), a) for q, a in samples]
    for number, config in enumerate(msgspec.json.decode(configs, type=list[LearnerConfig])):
        learner = make_learner(base, config)
        learner._budget += 17 * rank  # as where its card has more free memory
        metrics = learner.step(samples)
        metrics = learner.step(samples)
        weights = {n: p.detach() for n, p in learner.model.named_parameters() if p.requires_grad}
        torch.save((dataclasses.asdict(metrics), weights), work / f"{number}-{rank}.pt")
    distributed.destroy_process_group()
    for attempt in range(600):  # a thread that was joined is listed a moment longer
        threads = []
        for one in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):
                threads.append(open(f"/proc/self/task/{one}/comm").read())
        if not any("gloo" in name for name in threads):
            break
        time.sleep(0.05)
    else:
        raise RuntimeError(f"the group's threads are still there: {threads}")
    if other:
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))


sys.path.append(str(support))
from forked_starts import ended_in_a_fork

(work / "ended").write_text(str(ended_in_a_fork(ranks)))
q = TokenSequence("t", "r", "a", (1, 2, 3), (0, 1, 1), (None, -1.0, -1.0), (-1, 0, 0), ("p@0",), ("c",))
for engine in ("packed", "trl"):
    learner = make_learner(base, LearnerConfig(lora_rank=8, engine=engine))
    learner.step([Sample((q,), 1.0)])
    (out / engine).mkdir()
    learner.save(out / engine)
assert not {"vllm", "weave", "wandb", "trackio", "mlflow", "comet_ml"} & sys.modules.keys()
"""
)
"""Both engines in one process, and before that two ranks, forks of it, one of the other: the imports are done once."""

DOUBLE = {"dtype": "float64", "micro_batch_tokens": 20}
OF_TWO_RANKS = [
    dataclasses.replace(LOOSE, **DOUBLE, loss="dapo", kl_weight=0.1),
    dataclasses.replace(LOOSE, **DOUBLE, loss="gspo", epsilon_low=0.5, epsilon_high=0.5),
    # All rows are one forest, so that the second rank has none.
    dataclasses.replace(LOOSE, dtype="float64", micro_batch_tokens=10_000, loss="gspo", epsilon_high=0.5),
]


@dataclasses.dataclass(frozen=True)
class Ended:
    """What came of TWO_PROCESSES: of the process, whose working directory was `cwd`, and in `work` of its ranks."""

    done: subprocess.CompletedProcess[str]
    cwd: Path
    work: Path


@pytest.fixture(scope="module")
def ended(
    base_model: Path, tmp_path_factory: pytest.TempPathFactory, make_samples: Callable[[int], list[Sample]]
) -> Ended:
    cwd, work, out = (tmp_path_factory.mktemp(name) for name in ("cwd", "work", "out"))
    samples = msgspec.json.encode([(s.sequences, s.advantage) for s in make_samples(0)])
    (work / "job").write_bytes(samples + b"|" + msgspec.json.encode(OF_TWO_RANKS))
    support = Path(forked_starts.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", TWO_PROCESSES, *map(str, (base_model, work, out, support))],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return Ended(done, cwd, work)


def test_nothing_is_printed_or_left_in_the_working_directory(ended: Ended) -> None:
    assert (ended.done.returncode, ended.done.stdout, ended.done.stderr) == (0, "", "")
    assert list(ended.cwd.iterdir()) == []


def test_two_ranks_take_the_step_of_one(
    base_model: Path, ended: Ended, make_samples: Callable[[int], list[Sample]]
) -> None:
    assert (ended.work / "ended").read_text() == "0", (ended.work / "said").read_text()
    samples = make_samples(0)
    for number, config in enumerate(OF_TWO_RANKS):
        alone = PackedLearner(base_model, config)
        alone.step(samples)
        wanted = dataclasses.asdict(alone.step(samples))
        for rank in (0, 1):
            found, moved = torch.load(ended.work / f"{number}-{rank}.pt")
            assert found.pop("step_s") > 0
            assert found == pytest.approx({name: value for name, value in wanted.items() if name != "step_s"})
            for name, weight in weights(alone).items():
                torch.testing.assert_close(moved[name], weight, rtol=1e-7, atol=1e-10)
