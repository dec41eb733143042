"""No parameter by which vLLM samples is unknown here, and no kind of part by which it is shown more than text: one that
changes what is sampled, or narrows it, is trained on in silence otherwise."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from arttrace.records.message import Message, OtherPart, ToolResultPart, has_media
from arttrace.wire.sampling_fields import FURTHER

NAMED = {"temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty"}
"""Those that the conventions have an attribute for."""
ENDS = {"stop", "stop_token_ids", "ignore_eos", "max_tokens", "repetition_detection"}
"""They say where an answer ends, and change none of its tokens."""
SHOWN = {
    *("logprobs", "prompt_logprobs", "prompt_logprob_token_ids", "prompt_logprob_start", "logprob_token_ids"),
    *("flat_logprobs", "detokenize", "skip_special_tokens", "spaces_between_special_tokens", "output_kind"),
    *("include_stop_str_in_output", "stream_interval", "skip_clone", "output_text_buffer_length"),
    *("skip_reading_prefix_cache", "routed_experts_prompt_start", "trace_decode_token_ids"),
}
"""They say what is given back, and how."""
UNBIASED = {"n", "seed"}
GIVEN_AS = {"extra_args": "vllm_xargs"}


OF_TEXT = {"text", "thinking", "input_text", "output_text", "refusal", "tool_reference"}


def module(name: str) -> ast.Module:
    """The source of one of vLLM's modules, which it would take long to import."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return ast.parse((Path(spec.submodule_search_locations[0]) / name).read_text())


def kinds_of_parts() -> set[str]:
    """The types of content parts that vLLM reads."""
    assigned = [one for one in module("renderers/chat_utils.py").body if isinstance(one, ast.AnnAssign)]
    [found] = [one.value for one in assigned if ast.unparse(one.target) == "MM_PARSER_MAP"]
    assert isinstance(found, ast.Dict)
    return {ast.literal_eval(key) for key in found.keys if key is not None}


def parameters(name: str) -> set[str]:
    [found] = [one for one in module("sampling_params.py").body if isinstance(one, ast.ClassDef) and one.name == name]
    fields = (
        one.target.id for one in found.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    )
    return {GIVEN_AS.get(field, field) for field in fields if not field.startswith("_")}


def test_each_is_known_to_change_what_is_sampled_or_not_to() -> None:
    found = parameters("SamplingParams")
    assert found >= {"temperature", "min_p", "vllm_xargs"}
    assert found - {*NAMED, *ENDS, *SHOWN, *UNBIASED, *FURTHER} == set()


@pytest.mark.parametrize("kind", sorted(kinds_of_parts()))
def test_a_part_of_each_kind_is_known_to_be_text_or_not(kind: str) -> None:
    """vLLM takes a part without a type by its one field, too, and a tool's result in parts."""
    for part in ({"type": kind, kind: "x"}, {kind: "x"}):
        shown = [Message("user", (OtherPart(part),)), Message("tool", (ToolResultPart([part], "c1"),))]
        assert [has_media(message) for message in shown] == [kind not in OF_TEXT] * 2
