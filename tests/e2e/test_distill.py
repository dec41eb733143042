"""On-policy distillation with two real vLLMs: one serves the policy, the other is the teacher."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from reserved_port import reserved_port
from tiny_model import make_base_model, make_merged

from arttrace.records.semconv import HELD_OUT_TAG
from arttrace.store import open_store
from arttrace.system.paths import DataDir
from trainer.commands.train.cli import command
from trainer.grpo.distill.loaded import LoadedTeacher
from trainer.grpo.distill.runs import SampledRun, rate, sampled_runs
from trainer.grpo.distill.served import ServedTeacher
from trainer.grpo.selection import Chosen
from trainer.learner import LearnerConfig
from trainer.policies.checkpoints import Checkpoints
from trainer.serving import Serving, start_serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

ROUNDS, RUNS, TOKENS = 6, 64, 24
KEY_OF_TEACHER = "of-the-teacher"
ON_A_CPU = {
    **dict.fromkeys(("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "PYTHONSAFEPATH", "TORCHDYNAMO_DISABLE"), "1"),
    **{"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"},
}

TEACHER = """
import gc
import runpy
from arttrace.system.processes import collect_garbage_seldom
from trainer.gateway.engines.vllm.cpu_fork import fork_engine
collect_garbage_seldom()
fork_engine("no socket in the file system")
gc.freeze()
runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
"""
"""vLLM's own server, whose engine is a fork as that of `arttrace serve` is, and looks for garbage as seldom: a spawned
one imports all of it again."""


@contextmanager
def teaching(model: Path, log: Path) -> Iterator[str]:
    """The URL of a vLLM without adapters, which may still be starting."""
    with reserved_port() as port, log.open("w") as err:
        options = ["--model", str(model), "--served-model-name", "better", "--port", str(port), "--dtype", "float32"]
        options += [
            "--host",
            "127.0.0.1",
            "--max-model-len",
            "256",
            "--enforce-eager",
            "--num-gpu-blocks-override",
            "1024",
        ]
        process = subprocess.Popen(
            [sys.executable, "-c", TEACHER, *options],
            env={**os.environ, **ON_A_CPU, "VLLM_API_KEY": KEY_OF_TEACHER},
            stdout=err,
            stderr=err,
        )
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(120)


def sample(serving: Serving, prefix: str, *, held_out: bool = False) -> list[str]:
    """The ids of runs of one call each."""

    def run(number: int) -> str:
        id = f"{prefix}-{number}"
        url = f"{serving.url}/r/{id}"
        messages = [{"role": "user", "content": f"How much is {number % 8} times {len(prefix)}?"}]
        body = {"model": "policy:latest", "messages": messages, "max_tokens": TOKENS}
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).raise_for_status()
        tags = [HELD_OUT_TAG] if held_out else []
        httpx.post(f"{url}/end", json={"tags": tags}, timeout=60).raise_for_status()
        return id

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(run, range(RUNS)))


def runs_of(data: DataDir, ids: list[str]) -> list[SampledRun]:
    with open_store(data, create=True) as store:
        return sampled_runs(store, [Chosen(id, (id,), (id,), (), 0) for id in ids], "policy")


def away(runs: list[SampledRun]) -> float:
    """The mean over the sampled tokens of how much likelier the policy found them than the teacher, in nats."""
    return -statistics.fmean(
        one
        for run in runs
        for sequence, own in zip(run.sequences, run.of_tokens, strict=True)
        for one, trained in zip(own, sequence.trained, strict=True)
        if trained
    )


def test_a_policy_comes_near_its_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTTRACE_TEACHER_API_KEY", KEY_OF_TEACHER)
    base_model, data = make_base_model(tmp_path / "base"), DataDir(tmp_path / "data")
    better = make_merged(base_model, tmp_path / "better", seed=5)
    with teaching(better, tmp_path / "teacher.log") as url, start_serving(data, base_model) as serving:
        deadline = time.monotonic() + 600
        while True:
            try:
                httpx.get(f"{url.removesuffix('/v1')}/health", timeout=10).raise_for_status()
                break
            except httpx.HTTPError:
                assert time.monotonic() < deadline, (tmp_path / "teacher.log").read_text()
                time.sleep(0.5)

        def held_out(name: str) -> list[SampledRun]:
            runs = runs_of(data, sample(serving, name, held_out=True))
            return rate(runs, ServedTeacher(url), lambda done: None)

        before = held_out("before")
        loaded = LoadedTeacher(better, LearnerConfig(dtype="float32"))
        for by_server, by_file in zip(before, rate(before, loaded, lambda done: None), strict=True):
            for one, other in zip(by_server.of_tokens, by_file.of_tokens, strict=True):
                assert one == pytest.approx(other, abs=1e-3)
        said: list[float] = []
        checkpoints = Checkpoints(data.policies, "policy")
        for number in range(ROUNDS):
            sample(serving, f"round{number}")
            arguments = ["--dir", str(data.root), "--method", "distill", "--teacher", url]
            done = CliRunner().invoke(command, [*arguments, "--learning-rate", "1e-2"])
            assert done.exception is None, done.output
            assert f"left out: {RUNS} trajectories (held out from training)" in done.stderr
            metrics = checkpoints.manifest(number + 1).metrics
            assert metrics["tokens_trained"] > RUNS
            said.append(metrics["teacher_kl"])
            line = f"policy@{number + 1}: {RUNS} trajectories, {metrics['tokens_trained']:.0f} tokens trained, "
            assert done.stdout.startswith(f"{line}{said[-1]:.3f} nats per token from the teacher, loss ")
            assert f"  served: policy@{number + 1} answers from the next call on" in done.stdout
        after = held_out("after")
        assert {version for run in after for version in run.policy_versions} == {f"policy@{ROUNDS}"}
        assert away(after) < 0.7 * away(before)
        assert said[-1] < 0.7 * said[0]
    assert len(checkpoints.consumed_ids("distill")) == ROUNDS * RUNS
    assert not checkpoints.consumed_ids("grpo")
