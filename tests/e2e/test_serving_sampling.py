"""`arttrace serve --sampling policy` before a real vLLM: what a framework forces is left out, and all is trained on."""

from __future__ import annotations

import contextlib
from pathlib import Path

import httpx
import openai
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from tiny_model import make_base_model, reference_logprobs

from arttrace.store import open_store
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences
from trainer.serving import start_serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]


@tool
def look(place: str) -> str:
    """Look at a place."""
    return place


@pytest.mark.full
@pytest.mark.parametrize("options", [(), ("--sampling", "policy")], ids=["as asked", "policy"])
def test_what_a_framework_forces(options: tuple[str, ...], tmp_path: Path) -> None:
    base_model, data = make_base_model(tmp_path / "base"), DataDir(tmp_path / "data")
    with start_serving(data, base_model, options=options) as serving:
        url = f"{serving.url}/r/forced"
        model = ChatOpenAI(
            model="policy:latest", base_url=f"{url}/v1", api_key="arttrace", temperature=0, top_p=0.5, max_tokens=12
        )
        forced = {"type": "function", "function": {"name": "look"}}
        model.bind_tools([look], tool_choice=forced).invoke("How much is 6 times 7?")
        with contextlib.suppress(openai.LengthFinishReasonError):  # of a JSON answer that is cut
            model.bind(response_format={"type": "json_object"}).invoke("How much is 6 times 7?")
        model.invoke("How much is 6 times 7?")
        httpx.post(f"{url}/end", json={"reward": 1.0}).raise_for_status()
    with open_store(data, create=True) as store:
        [run] = store.trajectories(ids=["forced"])
    made, report = sequences(run)
    if not options:
        assert not made
        assert sum(report.reasons.values()) == 3
        return
    assert report.reasons == {}
    trained = 0
    for sequence in made:
        begin = sequence.trained.index(1)
        assert set(sequence.temperatures[begin:]) <= {1.0}, "none where all are 1"
        prompt, sampled = list(sequence.token_ids[:begin]), list(sequence.token_ids[begin:])
        assert list(sequence.logprobs[begin:]) == pytest.approx(
            reference_logprobs(base_model, None, prompt, sampled), abs=1e-3
        )
        trained += len(sampled)
    assert trained == sum(len(placed.call.choices[0].token_ids) for placed in run.calls) > 0


@pytest.mark.full
def test_an_engine_samples_by_no_settings_of_its_models_directory(tmp_path: Path) -> None:
    """As one that is not ours would, which reads generation_config.json there: here it is given such settings."""
    base_model, data = make_base_model(tmp_path / "base"), DataDir(tmp_path / "data")
    settings = (
        '--vllm-arg=--override-generation-config={"top_k": 1, "repetition_penalty": 5.0, "presence_penalty": 2.0}'
    )
    asked = [{"role": "user", "content": "How much is 6 times 7?"}]
    with start_serving(data, base_model, options=(settings,)) as serving:
        client = openai.OpenAI(base_url=f"{serving.url}/r/run/v1", api_key="arttrace")
        client.chat.completions.create(model="policy:latest", messages=asked, max_tokens=24)
        client.completions.create(model="policy:latest", prompt="6 times 7 is", max_tokens=24)
        client.responses.create(model="policy:latest", input="How much is 6 times 7?", max_output_tokens=24)
        httpx.post(f"{serving.url}/r/run/end", json={"reward": 1.0}).raise_for_status()
    with open_store(data, create=True) as store:
        [run] = store.trajectories(ids=["run"])
    made, report = sequences(run)
    assert report.reasons == {}
    assert len(made) == 3
    for sequence in made:
        begin = sequence.trained.index(1)
        prompt, sampled = list(sequence.token_ids[:begin]), list(sequence.token_ids[begin:])
        assert list(sequence.logprobs[begin:]) == pytest.approx(
            reference_logprobs(base_model, None, prompt, sampled), abs=1e-3
        )
