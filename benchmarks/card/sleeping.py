"""Section c: an engine beside the learner on one card: it sleeps, a step runs, it wakes.

Measured are the memory that comes back, the seconds that sleep and waking take, and whether its log-probabilities are
as before. vLLM does so behind `arttrace serve --sleep-while-training`; without it a plain torch sampler, whose weights
wait in the host's memory, shows the same order of things.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.card.bundle import missing_for_vllm
from benchmarks.card.frame import Config, Table
from benchmarks.card.shapes import QWEN3_06B, QWEN3_4B, TOY, Shape, add_tokenizer, make_model
from benchmarks.card.torch_engine import NAME, TorchEngine, sampled_run

COLUMNS = ("engine", "awake GiB", "asleep GiB", "sleep s", "step s", "wake s", "nats apart")
_PROMPT, _SAMPLED, _RUNS = 16, 48, 8


def run(config: Config) -> Table:
    """One row per engine; GiB are what it holds of the card, learner aside."""
    shape = TOY if config.toy else QWEN3_06B if config.quick else QWEN3_4B
    table = Table(f"An engine that sleeps for a step, {shape.name}; {config.machine()}", COLUMNS, config.out / "c.txt")
    base = make_model(shape, config.models / shape.name, config.device)
    learner = _learner(config, base)
    captured: list[list[float]] = []
    with table.attempt(NAME):
        captured = _torch_row(config, table, shape, base, learner)
    missing = missing_for_vllm()
    for name in missing:
        table.note(f"vLLM: {name}")
    if config.toy and not missing:
        table.note("vLLM: not on a CPU, where `arttrace serve --sleep-while-training` is refused")
    elif not missing:
        with table.attempt("vLLM"):
            _vllm_row(config, table, shape, base, learner, captured)
    return table


def _learner(config: Config, base: Path) -> Any:
    from trainer.learner import LearnerConfig, make_learner

    return make_learner(base, LearnerConfig(device="cuda" if config.device == "cuda" else "cpu", lora_rank=16))


def _torch_row(config: Config, table: Table, shape: Shape, base: Path, learner: Any) -> list[list[float]]:
    """The log-probabilities that its engine gives the rows."""
    free = _held(config)
    engine = TorchEngine(base, learner)
    rows = _rows(shape)

    def score() -> list[list[float]]:
        return engine.score(rows, _PROMPT)

    captured = score()
    _measure(config, table, NAME, free, score, engine.sleep, engine.wake, learner, rows, captured)
    engine.sleep()
    return captured


def _measure(
    config: Config,
    table: Table,
    name: str,
    before: float,
    score: Callable[[], list[list[float]]],
    sleep: Callable[[], Any],
    wake: Callable[[], Any],
    learner: Any,
    rows: list[list[int]],
    captured: list[list[float]],
) -> None:
    """`score` gives log-probabilities to compare, `captured` are those of the rows' own tokens for the learner's step;
    where there are none the learner does not compare them."""
    known = score()
    awake = _held(config) - before
    slept = _seconds(sleep)
    asleep = _held(config) - before
    weights = {key: tensor.detach().clone() for key, tensor in learner.model.named_parameters() if tensor.requires_grad}
    samples = [
        sampled_run(f"t{number}", row[:_PROMPT], row[_PROMPT:], logps, "policy@0", (-1.0) ** number)
        for number, (row, logps) in enumerate(zip(rows, captured or [[-9.0] * _SAMPLED] * len(rows), strict=True))
    ]
    step = _seconds(lambda: learner.step(samples, current_version="policy@0" if captured else None))
    _restore(learner, weights)
    woke = _seconds(wake)
    apart = max(
        abs(one - other) for old, new in zip(known, score(), strict=True) for one, other in zip(old, new, strict=True)
    )
    memory = ["-", "-"] if config.toy else [f"{awake:.2f}", f"{asleep:.2f}"]
    table.add(name, *memory, f"{slept:.2f}", f"{step:.2f}", f"{woke:.2f}", f"{apart:.1e}")


def _restore(learner: Any, weights: dict[str, Any]) -> None:
    """Undo the step: the next engine starts from the same version."""
    import torch

    with torch.no_grad():
        for key, tensor in learner.model.named_parameters():
            if key in weights:
                tensor.copy_(weights[key])


def _vllm_row(
    config: Config, table: Table, shape: Shape, base: Path, learner: Any, captured: list[list[float]]
) -> None:
    import httpx

    from arttrace.system.paths import DataDir
    from trainer.serving import start_serving

    add_tokenizer(base, config.scratch, shape.vocabulary)
    free, rows = _held(config), _rows(shape)
    options = ["--max-model-len=2048", "--sleep-while-training", "--engine-memory-share=0.25"]
    options.append("--vllm-arg=--enforce-eager")  # its speed is not what is asked here
    began = time.perf_counter()
    data = DataDir(config.scratch / "data")
    with start_serving(data, base, options=options, timeout_s=config.left_s) as serving:
        table.note(f"vLLM started in {time.perf_counter() - began:.0f} s")
        client = serving.client()
        woken: list[Callable[[], None]] = []

        def score() -> list[list[float]]:
            """Of the likeliest token at each place: the gateway passes no `prompt_logprobs` on."""
            found = []
            for row in rows:
                prompts = [row[:at] for at in range(_PROMPT, len(row))]
                body = {"model": "policy:latest", "prompt": prompts, "max_tokens": 1, "temperature": 0, "logprobs": 0}
                answer = httpx.post(f"{serving.url}/v1/completions", json=body, timeout=120).raise_for_status().json()
                choices = sorted(answer["choices"], key=lambda choice: choice["index"])
                found.append([choice["logprobs"]["token_logprobs"][0] for choice in choices])
            return found

        def sleep() -> None:
            woken.append(client.fall_asleep())

        _measure(config, table, "vLLM", free, score, sleep, lambda: woken.pop()(), learner, rows, captured)


def _rows(shape: Shape) -> list[list[int]]:
    drawn = random.Random(2)
    return [[drawn.randrange(shape.vocabulary) for _ in range(_PROMPT + _SAMPLED)] for _ in range(_RUNS)]


def _held(config: Config) -> float:
    """GiB of the card that this process and those it started have taken."""
    if config.device != "cuda":
        return 0.0
    import psutil
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(int(mib) for pid, mib in (line.split(",") for line in lines) if int(pid) in ours) / 1024


def _seconds(do: Callable[[], Any]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began
