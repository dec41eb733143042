"""No parameter by which vLLM samples is unknown here: one that changes what is sampled, or narrows it, is trained on in
silence otherwise."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

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


def parameters(file: Path, name: str) -> set[str]:
    [found] = [one for one in ast.parse(file.read_text()).body if isinstance(one, ast.ClassDef) and one.name == name]
    fields = (
        one.target.id for one in found.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    )
    return {GIVEN_AS.get(field, field) for field in fields if not field.startswith("_")}


def test_each_is_known_to_change_what_is_sampled_or_not_to() -> None:
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    found = parameters(Path(spec.submodule_search_locations[0]) / "sampling_params.py", "SamplingParams")
    assert found >= {"temperature", "min_p", "vllm_xargs"}
    assert found - {*NAMED, *ENDS, *SHOWN, *UNBIASED, *FURTHER} == set()
