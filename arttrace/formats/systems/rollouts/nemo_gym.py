"""Rollouts of NeMo Gym: a request of the Responses API, a response with all that the agent did, and the reward. Pure.

The response's output holds the items of every answer, with the results of tools between them; each answer is a call,
which was given the request's input and what came before. Token ids stand on an answer's last item. Rollouts of one
task are a group. One that failed, or is masked since its reward or its tokens are not to be relied on, is incomplete.
Source: NeMo Gym 0.5, openai_utils.py, rollout_collection.py and token_id_capture/delivery.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import ImportedRun, counted_as_failed
from arttrace.formats.left_out import Read
from arttrace.formats.systems.exchanges import RESPONSES, attributes_of
from arttrace.records import semconv
from arttrace.records.values.lenient_json import json_object
from arttrace.records.values.times import time_ns

KIND = "nemo gym rollouts"
_REQUEST = "responses_create_params"
_TASKS = ("_ng_task_index", "_task_index", "task_index")
_READ = frozenset({_REQUEST, "response", "reward"})
_FAILURE, _MASK, _CAPTURE = "_ng_failure_class", "mask_sample", "_ng_token_capture"
_RESULTS = "_output"
"""How the types of items end that a tool's result is, and no answer of the model."""


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a rollout that was verified."""
    return isinstance(item.get(_REQUEST), dict) and isinstance(item.get("response"), dict)


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """The rollout. Raises ValueError where its output is no list of items, or holds no answer."""
    request, response = item[_REQUEST], item["response"]
    output = response.get("output")
    if not isinstance(output, list) or not all(isinstance(one, dict) for one in output):
        raise ValueError("the output of its response is no list of items")
    run = ImportedRun(origin.source, origin.id_of([origin.place, item]), start_ns=time_ns(response.get("created_at")))
    given = request.get("input")
    asked = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or [])
    answers = list(_answers(output))
    if not answers:
        raise ValueError("a rollout without an answer")
    for begin, end in answers:
        whole = {name: value for name, value in response.items() if name != "usage" or len(answers) == 1}
        # How it ended is said of the last one; those before asked for tools.
        status = {} if end == answers[-1][1] else {"status": "completed", "incomplete_details": None}
        whole |= {**status, "output": output[begin:end], **_tokens(output[begin:end])}
        attributes, _ = attributes_of({**request, "input": [*asked, *output[:begin]]}, None, whole, RESPONSES)
        yield run.exchange(begin, attributes, start_ns=None, end_ns=None)
    task = next((item[name] for name in _TASKS if item.get(name) is not None), None)
    yield run.end(
        task=task,
        metadata={name: value for name, value in item.items() if name not in _READ},
        attributes={semconv.INTERRUPTED: _unusable(item)},
    )
    yield from run.rewards({"reward": item.get("reward")})


def _unusable(item: dict[str, Any]) -> str | None:
    """Why nothing is to be learned of a rollout, None where it may be. Some agents say it in their own settings."""
    if (failure := item.get(_FAILURE)) is not None:
        return counted_as_failed("NeMo Gym", why=failure)
    if not (item.get(_MASK) or json_object(item.get("instance_config")).get(_MASK)):
        return None
    why = json_object(item.get(_CAPTURE)).get("error")
    return f"masked by NeMo Gym ({why})" if why else "masked by NeMo Gym"


def _answers(output: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """Where each answer begins and ends: at results of tools, at messages of others, and behind an item with tokens."""
    begin: int | None = None
    for at, one in enumerate(output):
        is_answer = (
            not str(one.get("type") or "message").endswith(_RESULTS) and one.get("role", "assistant") == "assistant"
        )
        if begin is not None and not is_answer:
            yield begin, at
        begin = (at if begin is None else begin) if is_answer else None
        if begin is not None and one.get("generation_token_ids"):
            yield begin, at + 1
            begin = None
    if begin is not None:
        yield begin, len(output)


def _tokens(answer: list[dict[str, Any]]) -> dict[str, Any]:
    """The ids of an answer's tokens, as servers write them that are asked for them."""
    found = next((one for one in answer if one.get("generation_token_ids")), None)
    if found is None:
        return {}
    sampled = {"tokens": found["generation_token_ids"], "logprobs": found.get("generation_log_probs")}
    return {"prompt_token_ids": found.get("prompt_token_ids"), "output_messages": [sampled]}
