"""Every family of models that we name: served by a real vLLM, its runs recorded, trained one step, served again; those
that vLLM cannot serve on a CPU are refused by name."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tiny_model import make_base_model

from arttrace.store import open_store
from arttrace.system.errors import ServingError
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import group_trajectories
from trainer.grpo.batch import make_batch
from trainer.learner import LearnerConfig, make_learner
from trainer.serving import start_serving

pytestmark = [pytest.mark.e2e, pytest.mark.full]

RUNS = 6


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3_text"])
def test_it_serves_and_trains_one_step(family: str, tmp_path: Path) -> None:
    base_model = make_base_model(tmp_path / family, family=family)
    data = DataDir(tmp_path / "data")
    with start_serving(data, base_model) as serving:

        def run(number: int) -> None:
            messages = [{"role": "user", "content": "How much is 6 times 7?"}]
            url = f"{serving.url}/r/run-{number}"
            body = {"model": "policy:latest", "messages": messages, "max_tokens": 16}
            httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).raise_for_status()
            httpx.post(f"{url}/end", json={"reward": number % 3, "group": "sums"}, timeout=60).raise_for_status()

        with ThreadPoolExecutor(RUNS) as pool:
            list(pool.map(run, range(RUNS)))
        with open_store(data, create=True) as store:
            batch = make_batch(group_trajectories(store.trajectories()), policy="policy")
        assert (len(batch.samples), batch.left_out, batch.quarantined) == (RUNS, {}, {})
        learner = make_learner(base_model, LearnerConfig(engine="packed", learning_rate=1e-2))
        metrics = learner.step(batch.samples, current_version="policy@0")
        assert metrics.trained_tokens == batch.trained_tokens > 0
        assert metrics.logprob_difference_max < 1e-3
        assert metrics.grad_norm > 0
        (tmp_path / "policy@1").mkdir()
        learner.save(tmp_path / "policy@1")
        assert serving.client().publish(1, tmp_path / "policy@1").max_logprob_change > 0


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_a_mixture_of_experts_is_refused_on_a_cpu_before_it_is_loaded(family: str, tmp_path: Path) -> None:
    base_model = make_base_model(tmp_path / "base", family=family)
    for weights in base_model.glob("*.safetensors"):
        weights.unlink()
    with pytest.raises(ServingError, match=f"cannot serve base .{family}, 4 experts. with adapters on a CPU"):
        start_serving(DataDir(tmp_path / "data"), base_model)


def test_a_model_that_takes_no_adapters_is_named(tmp_path: Path) -> None:
    base_model = make_base_model(tmp_path / "base", family="stablelm")
    architecture = json.loads((base_model / "config.json").read_text())["architectures"][0]
    with pytest.raises(ServingError, match="LoRA") as refused:
        start_serving(DataDir(tmp_path / "data"), base_model)
    assert architecture.lower() in str(refused.value).lower()
