"""Episodes of rLLM, as its evaluations store them and its training logs them: attempts at a task by some agents. Pure.

Each trajectory is a run of one agent, each step with messages a call: its last answer, given what stands before it.
Trajectories of one task and name are a group, whichever files they are in. A step without messages is what the
program says of itself. Source: rLLM 0.3, types.py, eval/episode_store.py and utils/episode_logger.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import ImportedRun, hashed
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.openai_messages import text_of
from arttrace.records import semconv
from arttrace.records.values.lenient_json import json_object
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids
from arttrace.trajectories.decoding.attribute_values import finite, whole_number

KIND = "rllm episodes"
_UNNAMED = "default_traj_name"
_IDS = ("id", "episode_id")
_READ = frozenset({"uid", "name", "steps", "reward", "input", "output", "num_steps"})
_ENDED_BY_LENGTH = "max_response_length_exceeded"
NO_MESSAGES = "steps without messages"
PER_TOKEN = "advantages, returns and routing of steps"


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is an episode."""
    are_there = isinstance(item.get("trajectories"), list) and "is_correct" in item and "termination_reason" in item
    return are_there and any(isinstance(item.get(name), str) for name in _IDS)


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """One run for each trajectory. Raises ValueError where one is none, or its steps are no list of objects."""
    id = next(item[name] for name in _IDS if isinstance(item.get(name), str))
    for at, one in enumerate(item["trajectories"]):
        steps = one.get("steps") if isinstance(one, dict) else None
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise ValueError(f"trajectory {at + 1} of an episode has no list of steps")
        own = one.get("uid")
        key = own or origin.id_of([origin.place, id, at, one])
        trace_id = origin.id_of_own(KIND, own) if own and isinstance(own, str) else None
        run = ImportedRun(origin.source, key, trace_id=trace_id, name=_name(one))
        yield from _run(run, one, steps, item, id)


def _name(trajectory: Mapping[str, Any]) -> str:
    name = str(trajectory.get("name") or "")
    return "" if name == _UNNAMED else name


def _run(
    run: ImportedRun, trajectory: dict[str, Any], steps: list[dict[str, Any]], episode: dict[str, Any], id: str
) -> Iterator[Read]:
    last, versions = None, []
    reason = episode["termination_reason"]
    for at, step in enumerate(steps):
        said = [one for one in _listed(step.get("chat_completions")) if isinstance(one, dict)]
        answer = next((n for n in reversed(range(len(said))) if said[n].get("role") == "assistant"), None)
        if answer is None:
            yield LeftOutItem(NO_MESSAGES)
            continue
        output = json_object(step.get("model_output"))
        ended = output.get("finish_reason")
        cut = reason == _ENDED_BY_LENGTH and at == len(steps) - 1
        versions.append(step.get("weight_version"))
        yield run.call(
            at,
            said[:answer],
            [{**said[answer], "finish_reason": ended or ("length" if cut else None)}],
            attributes={**_usage(output), **_tokens(step)},
        )
        last = said[answer].get("content")
        if any(step.get(name) for name in ("advantage", "mc_return", "routing_matrices")):
            yield LeftOutItem(PER_TOKEN)
    rewards = [finite(step.get("reward")) for step in steps]
    reward = trajectory.get("reward")
    if reward is None and rewards:  # as rLLM takes it, whose steps have 0.0 where nothing else is said
        reward = rewards[-1]
    error = json_object(episode.get("metadata")).get("error")
    known = sorted({number for one in versions if (number := whole_number(one)) is not None})
    about = {
        **{name: value for name, value in trajectory.items() if name not in _READ and value},
        **({"step_rewards": rewards} if any(rewards) else {}),
        **({"weight_versions": known} if known else {}),
        "episode": {name: value for name, value in episode.items() if name != "trajectories" and value is not None},
    }
    returned, arguments = trajectory.get("output"), trajectory.get("input")
    yield run.end(
        metadata=about,
        result=last if returned is None else returned,
        error=(str(error) if error else reason) if reason == "error" else None,
        attributes={
            semconv.GROUP: _group(episode, id, _name(trajectory)),
            semconv.ENTRY_ARGUMENTS: text_of(arguments) if isinstance(arguments, dict) else None,
        },
    )
    yield from run.rewards({"reward": reward})


def _group(episode: Mapping[str, Any], id: str, name: str) -> str | None:
    """What attempts of one agent at one task have in common. An id is the task's and a number, or says nothing."""
    task, colon, _ = id.partition(":")
    content = episode.get("task")
    named = [task if colon else "", name, "" if content is None else hashed(8, content)]
    return "/".join(filter(None, named)) if colon or content is not None else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _usage(output: Mapping[str, Any]) -> dict[str, Any]:
    counts = {
        semconv.USAGE_INPUT_TOKENS: whole_number(output.get("prompt_length")),
        semconv.USAGE_OUTPUT_TOKENS: whole_number(output.get("completion_length")),
    }
    return {name: count for name, count in counts.items() if count}


def _tokens(step: Mapping[str, Any]) -> dict[str, Any]:
    """What the model read and sampled, where it is known as token ids: a prompt may be of other pieces too."""
    prompt, sampled, logprobs = (_listed(step.get(name)) for name in ("prompt_ids", "response_ids", "logprobs"))
    if not sampled or not all(type(one) is int for one in (*prompt, *sampled)):
        return {}
    return {
        semconv.PROMPT_TOKEN_IDS: encode_token_ids(prompt) if prompt else None,
        semconv.TOKEN_IDS: encode_token_ids(sampled),
        semconv.LOGPROBS: encode_logprobs(logprobs) if len(logprobs) == len(sampled) else None,
    }
