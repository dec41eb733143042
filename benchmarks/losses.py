"""How fast each loss of the learner learns: a random tiny Qwen3 with a LoRA, one simple reward, several seeds.

The reward is the share of even tokens among the 3 to 9 sampled ones; each step takes 4 prompts with 8 samples, and goes
over them twice in two minibatches, so that the losses differ (on fresh samples of one length they are all the same).
Printed per loss: the steps until the mean reward of three steps is above 0.9 (median and worst seed), and the mean
reward of the last three steps.

    python benchmarks/losses.py [--seeds 4] [--steps 25]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any, get_args

from arttrace.records.sequence import TokenSequence
from trainer.advantages import group_advantages
from trainer.learner import LearnerConfig, make_learner
from trainer.learner.config import Loss
from trainer.learner.interface import Sample

VOCABULARY, SHORTEST, LONGEST = 48, 3, 9
PROMPTS = ([1, 2], [3, 4, 5], [7, 9], [40, 11, 30, 8])


def make_base(directory: Path, seed: int) -> Path:
    """A random Qwen3 of two layers, hidden size 32."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
        initializer_range=0.2,
        max_position_embeddings=128,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


def sample(learner: Any, prompt: list[int], generator: Any) -> list[TokenSequence]:
    """Eight continuations of one prompt from the learner's policy at temperature 1."""
    import torch

    ids = torch.tensor([prompt] * 8)
    captured = []
    with torch.no_grad():
        for _ in range(LONGEST):
            logps = torch.log_softmax(learner.model(ids).logits[:, -1], dim=-1)
            token = torch.multinomial(logps.exp(), 1, generator=generator)
            captured.append(logps.gather(1, token))
            ids = torch.cat([ids, token], dim=1)
    head = len(prompt)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (len(ids),), generator=generator).tolist()
    rows = zip(ids.tolist(), torch.cat(captured, dim=1).tolist(), lengths, strict=True)
    return [
        TokenSequence(
            trajectory_id=str(number),
            revision="r",
            agent_id="root",
            token_ids=tuple(row[: head + length]),
            trained=(0,) * head + (1,) * length,
            logprobs=(None,) * head + tuple(logps[:length]),
            versions=(-1,) * head + (0,) * length,
            policy_versions=(f"policy@{learner.steps}",),
            call_ids=("c",),
        )
        for number, (row, logps, length) in enumerate(rows)
    ]


def train(base: Path, loss: str, seed: int, steps: int) -> list[float]:
    """The mean reward of every step."""
    import torch

    config = LearnerConfig(
        loss=loss, learning_rate=5e-3, lora_rank=8, dr_grpo_length=LONGEST, epochs=2, minibatches=2, seed=seed
    )
    learner = make_learner(base, config)
    generator = torch.Generator().manual_seed(seed)
    means = []
    for _ in range(steps):
        samples, rewards = [], []
        for prompt in PROMPTS:
            sequences = sample(learner, prompt, generator)
            group = [sum(id % 2 == 0 for id in q.token_ids[len(prompt) :]) / q.trained_tokens for q in sequences]
            samples += [Sample((q,), a) for q, a in zip(sequences, group_advantages(group), strict=True)]
            rewards += group
        learner.step(samples)
        means.append(statistics.fmean(rewards))
    return means


def main() -> None:
    """Prints one row per loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=25)
    given = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    print(f"{'loss':<10}{'steps to 0.9':>14}{'worst seed':>12}{'last reward':>13}{'worst seed':>12}")
    with tempfile.TemporaryDirectory() as scratch:
        bases = [make_base(Path(scratch) / str(seed), seed) for seed in range(given.seeds)]
        for loss in get_args(Loss):
            runs = [train(base, loss, seed, given.steps) for seed, base in enumerate(bases)]
            smooth = [[statistics.fmean(run[at : at + 3]) for at in range(len(run) - 2)] for run in runs]
            needed = [next((at + 3 for at, mean in enumerate(run) if mean > 0.9), given.steps + 1) for run in smooth]
            last = [run[-1] for run in smooth]
            print(
                f"{loss:<10}{statistics.median(needed):>14.0f}{max(needed):>12}{statistics.fmean(last):>13.3f}"
                f"{min(last):>12.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
