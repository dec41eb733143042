"""The Responses API and legacy completions: passed through like chat, token truth asked for."""

import json

import pytest
from gateway_site import Site
from stand_in_engine import write_adapter

from arttrace.wire.sampling_fields import NEUTRAL
from trainer.gateway.generation.request import read_request
from trainer.gateway.policies import Policies

LOGPROBS = "message.output_text.logprobs"


def forwarded(**fields: object) -> dict[str, object]:
    request = read_request(json.dumps({"model": "policy", **fields}).encode(), "responses")
    return json.loads(request.for_engine(Policies("policy", "base").base))


def test_log_probabilities_and_token_ids_are_asked_for() -> None:
    assert forwarded(input="x") == {
        "model": "base", "input": "x", "include": [LOGPROBS], "enable_response_messages": True, **NEUTRAL
    }  # fmt: skip
    assert forwarded(include=["file_search_call.results"])["include"] == ["file_search_call.results", LOGPROBS]
    assert forwarded(include=[LOGPROBS])["include"] == [LOGPROBS]
    assert forwarded(include=None)["include"] == [LOGPROBS]
    assert forwarded(include="nonsense")["include"] == "nonsense"
    not_unicode = read_request(b'{"model":"policy","include":["\xff"]}', "responses")
    assert b'"include":["\xff"]' in not_unicode.for_engine(Policies("policy", "base").base)
    assert "enable_response_messages" not in forwarded(background=True)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/completions", "/r/t/v1/responses", "/r/t/sub/v1/completions"])
async def test_they_are_rewritten_and_stamped_like_chat(site: Site, path: str) -> None:
    await site.publish(1, write_adapter(site.directory / "a", b"w1"))
    answer = await site.http.post(path, json={"model": "policy:latest", "input": "x", "prompt": "x"})
    assert (answer.status_code, answer.headers["x-arttrace-policy-version"]) == (200, "policy@1")
    assert site.engine.generations[-1]["model"] == "policy@1"
    site.engine.release.set()
    stream = await site.http.post(path, json={"model": "policy", "input": "x", "prompt": "x", "stream": True})
    assert stream.text == 'data: {"n": 1}\n\ndata: [DONE]\n\n'
    assert stream.headers["x-arttrace-policy-version"] == "policy@1"


async def test_models_are_listed_below_a_trajectory_too(site: Site) -> None:
    models = (await site.http.get("/v1/models")).json()
    assert (await site.http.get("/r/t/v1/models")).json() == models
    assert (await site.http.get("/r/t/agent/v1/models")).json() == models
