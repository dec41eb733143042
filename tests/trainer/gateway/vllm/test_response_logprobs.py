"""Log-probabilities beside the tokens of vLLM's own class that holds a response while it is sampled."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from trainer.gateway.engines.vllm.response_logprobs import put_beside_tokens, replace_in


@pytest.fixture(autouse=True, scope="module")
def context():
    """Imported by the one worker that runs these tests: that takes seconds, and each one collects this file."""
    return pytest.importorskip("vllm.entrypoints.openai.responses.context", reason="vLLM is not installed")


def sampled(token: int, text: str, logprob: float | None):
    from vllm.logprobs import Logprob
    from vllm.outputs import CompletionOutput, RequestOutput

    ranked = None if logprob is None else [{99: Logprob(-0.1), token: Logprob(logprob)}]
    output = CompletionOutput(0, text, [token], None, ranked)
    return RequestOutput("r", "hi", [7], None, [output], finished=False)


@pytest.fixture
def response_of(context):
    class Context(context.SimpleContext):
        """A class of this test's, so that vLLM's own stays as it is for others."""

    replace_in(Context)

    def response_of(*deltas):
        one = Context()
        for delta in deltas:
            one.append_output(sampled(*delta))
        return [json.loads(message.model_dump_json()) for message in one.output_messages]

    return response_of


def test_each_token_has_its_own(response_of):
    [message] = response_of((5, "<call>", -0.5), (6, "", float("-inf")), (6, "x", -2.0))
    assert (message["tokens"], message["logprobs"]) == ([5, 6, 6], [-0.5, -9999.0, -2.0])
    assert message["message"] == "<call>x"


def test_where_they_were_not_asked_for_there_are_none(response_of):
    [message] = response_of((5, "a", None))
    assert (message["tokens"], message.get("logprobs")) == ([5], None)
    [message] = response_of((5, "a", -0.5), (6, "b", None))
    assert (message["tokens"], message.get("logprobs")) == ([5, 6], None)
    assert response_of() == []


def test_a_vllm_that_keeps_them_elsewhere_serves_without(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.openai.responses.context", None)
    with caplog.at_level(logging.WARNING, logger="vllm"):
        logging.getLogger("vllm").addHandler(caplog.handler)
        try:
            put_beside_tokens()
        finally:
            logging.getLogger("vllm").removeHandler(caplog.handler)
    assert "Tool calls of the Responses API are not trained on" in caplog.text
