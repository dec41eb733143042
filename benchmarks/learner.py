"""One GRPO step in several layouts: a row per call, padded rows, packed rows, and the packed prefix tree.

Every layout computes the same loss on the same trajectories with a random 4-layer Qwen3 and a LoRA of rank 16, on one
CPU thread and in a process of its own; tokens/s are trained tokens by CPU seconds, and the gradients are compared. Also
shown: the tokens that went through the model, the pairs of a token and one that it attends to, and how many times less
the two together are to compute than in the first row (without the output head, which sees the same tokens everywhere
but in stock TRL): a layout can be about so much faster, and not more. Two cases: a synthetic group of 8 with a shared
beginning, many turns and forks; or groups of the tau-bench airline runs (token ids are made from the words, no
tokenizer being shipped), the shortest first: the longest take ten minutes in the first layout.

    python benchmarks/learner.py
    python benchmarks/learner.py --tau-bench tau-bench-gpt-4o-airline.json.gz [--tasks 3]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.learner_cases import VOCABULARY, Call, samples_of, synthetic, tau_bench  # noqa: E402
from trainer.learner.config import LearnerConfig  # noqa: E402
from trainer.learner.interface import Sample  # noqa: E402

BUDGET = 16384
"""Tokens that go through the model at once, in every layout."""
LAYOUTS = {
    "row per call": "TRL engine, every call a padded row of its own",
    "stock TRL": "TRL's GRPOTrainer as it is: merged sequences, padded, log-probabilities at every position",
    "padded": "TRL engine: the same, log-probabilities at trained positions only",
    "packed": "packed engine, merged sequences end to end, nothing shared",
    "PEFT's LoRA": "the tree, a LoRA's product scaled and added in passes of their own, as PEFT does",
    "plain norms": "the tree, norms and rotary positions operation by operation, as transformers does",
    "tree": "packed engine as it is: the prefix tree",
}
PACKED = ("packed", "PEFT's LoRA", "plain norms", "tree")


def measure(layout: str, runs: list[list[Call]], base: Path, gradients: Path) -> dict[str, float]:
    """One step in this process; the gradients go to a file."""
    import torch

    from trainer.learner import make_learner
    from trainer.learner.packed import engine, forest

    torch.set_num_threads(1)
    if layout == "packed":
        forest.shared_length = lambda left, right: 0
    elif layout == "PEFT's LoRA":
        engine.add_within_products = lambda model: None
    elif layout == "plain norms":
        engine.norm_in_one_kernel = engine.rotate_by_halves = lambda model: None
    elif layout == "stock TRL":
        take_trl_as_it_is()
    config = LearnerConfig(
        engine="packed" if layout in PACKED else "trl",
        micro_batch_tokens=BUDGET,
        max_logprob_difference=1e9,
        max_grad_norm=1e9,
    )
    make_learner(base, config).step(samples_of(synthetic(2, 32, (2, 3)), merged=True))  # loads what is loaded lazily
    learner = make_learner(base, config)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in learner.model.named_parameters():
            if "lora_B" in name:  # zero at first, which hides the gradient of A
                parameter.normal_(0, 0.02)
    samples = samples_of(runs, merged=layout != "row per call")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    metrics = learner.step(samples)
    seconds = time.process_time() - started
    state, beta = learner.optimizer.state, config.adam_betas[0]
    torch.save(
        {n: state[p]["exp_avg"] / (1 - beta) for n, p in learner.model.named_parameters() if p in state}, gradients
    )
    return {
        "trained": metrics.trained_tokens,
        "forwarded": metrics.forwarded_tokens,
        "pairs": attended(layout, samples, config),
        "tokens_per_s": metrics.trained_tokens / seconds,
        "peak_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "loss": metrics.loss,
    }


def attended(layout: str, samples: list[Sample], config: LearnerConfig) -> int:
    """Pairs of a token and one that it attends to, itself included, over the micro-batches of a layout."""
    import torch

    from trainer.learner.packed.forest import plant, split_forests
    from trainer.learner.samples import plan_step, split_rows

    rows = plan_step(samples, config).rows
    if layout in PACKED:
        forests = (
            plant(run, current_version=None, device="cpu", dtype=torch.float32) for run in split_forests(rows, BUDGET)
        )
        return sum(int((planted.layout.positions + 1).sum()) for planted in forests)
    lengths = [(len(batch), len(batch[0].token_ids)) for batch in split_rows(rows, BUDGET)]
    return sum(count * length * (length + 1) // 2 for count, length in lengths)


def work(found: dict[str, float]) -> float:
    """Floating-point operations of a step: a token meets every weight of the layers twice, forward and backward, and a
    pair costs two products forward and five backward; a multiplication and an addition are two."""
    width, inner, heads, key_heads, size, layers = 256, 768, 4, 2, 64, 4
    weights = width * size * (2 * heads + 2 * key_heads) + 3 * width * inner
    return layers * (4 * weights * found["forwarded"] + 14 * heads * size * found["pairs"])


def take_trl_as_it_is() -> None:
    """TRL's own way to log-probabilities in place of our engine's, which computes them at trained positions only."""
    from trainer.learner.trl import trainer as trl_trainer
    from trainer.offline.torch_head import use_on_cpus

    use_on_cpus()
    original = trl_trainer._trl.GRPOTrainer._get_per_token_logps_and_entropies

    def noted(self: Any, *given: Any, **named: Any) -> Any:
        found = original(self, *given, **named)
        self._logps = found[0].detach()  # the engine counts ratios by it
        return found

    trl_trainer.GivenTrajectoriesTrainer._get_per_token_logps_and_entropies = noted


def make_base(directory: Path) -> Path:
    """A random Qwen3 of 4 layers, hidden size 256."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


def worst_difference(left: Path, right: Path) -> float:
    """The largest difference of two sets of gradients, relative to the largest gradient of each weight."""
    import torch

    one, other = torch.load(left), torch.load(right)
    return max(float((one[name] - other[name]).abs().max() / one[name].abs().max().clamp(min=1e-12)) for name in one)


def compare(title: str, arguments: list[str], base: Path, scratch: Path) -> None:
    """Every layout in a process of its own, one after the other, and the table."""
    print(f"\n{title}")
    columns = (
        f"{'trained':>9}{'forwarded':>11}{'pairs M':>9}{'less':>7}{'tokens/s':>10}{'speed-up':>10}{'peak MiB':>10}"
    )
    print(f"{'layout':<14}{columns}  gradients")
    first: dict[str, float] = {}
    for layout in LAYOUTS:
        gradients = scratch / f"{layout}.pt"
        command = [sys.executable, __file__, "--layout", layout, "--base", str(base), "--gradients", str(gradients)]
        done = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        first = first or found
        apart = worst_difference(scratch / "row per call.pt", gradients)
        print(
            f"{layout:<14}{found['trained']:>9.0f}{found['forwarded']:>11.0f}{found['pairs'] / 1e6:>9.0f}"
            f"{work(first) / work(found):>6.1f}x{found['tokens_per_s']:>10.0f}"
            f"{found['tokens_per_s'] / first['tokens_per_s']:>9.1f}x{found['peak_mib']:>10.0f}"
            f"  within {apart:.0e}",
            flush=True,
        )


def main() -> None:
    """Runs all layouts; with --layout, one of them, printing its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tau-bench", type=Path, metavar="FILE", help="tau-bench-gpt-4o-airline.json.gz")
    parser.add_argument("--tasks", type=int, default=3, help="how many groups of it, the shortest first (default 3)")
    parser.add_argument("--group", type=int, default=8, help="runs of the synthetic group (default 8)")
    parser.add_argument("--prefix", type=int, default=2048, help="tokens that they share (default 2048)")
    parser.add_argument("--layout", choices=LAYOUTS, help=argparse.SUPPRESS)
    parser.add_argument("--base", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--gradients", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    case = ["--tasks", str(given.tasks), "--group", str(given.group), "--prefix", str(given.prefix)]
    if given.layout:
        groups = tau_bench(given.tau_bench, given.tasks) if given.tau_bench else [synthetic(given.group, given.prefix)]
        runs = [run for group in groups for run in group]
        print(json.dumps(measure(given.layout, runs, given.base, given.gradients)))
        return
    for layout, meaning in LAYOUTS.items():
        print(f"{layout:<14}{meaning}")
    with tempfile.TemporaryDirectory() as scratch:
        base = make_base(Path(scratch) / "base")
        title = f"synthetic group of {given.group}, {given.prefix} tokens shared"
        if given.tau_bench:
            title = f"tau-bench airline, {given.tasks} group(s) of 4 runs"
            case += ["--tau-bench", str(given.tau_bench)]
        compare(title, case, base, Path(scratch))


if __name__ == "__main__":
    main()
