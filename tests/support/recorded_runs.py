"""Runs for a tiny model, made without any server: groups of random tokens, said to be sampled by policy@0."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import msgspec
from simulated_agent import Run, message

from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids

FIRST_ID, IDS = 3, 300


def recorded_group(
    key: str, rewards: Sequence[float | None], *, policy: str = "policy@0", at: int = 0, logprob: float = -5.0
) -> list[Record]:
    """One run per reward (None: no reward), of two calls each, all ending at microsecond `at` + 1000."""
    records: list[Record] = []
    for number, value in enumerate(rewards):
        id = f"{key}-{number}"
        rng = random.Random(id)
        run = Run(id, scenario=key)
        history = [message("user", f"task {key}")]
        ids = [rng.randrange(FIRST_ID, IDS) for _ in range(6)]
        for turn in range(2):
            sampled = [rng.randrange(FIRST_ID, IDS) for _ in range(5)]
            answer = run.chat(
                f"m{turn}",
                history,
                message("assistant", f"answer {turn} of {id}"),
                at=at + 10 * (turn + 1),
                policy=policy,
                PROMPT_TOKEN_IDS=encode_token_ids(ids),
                TOKEN_IDS=encode_token_ids(sampled),
                LOGPROBS=encode_logprobs([logprob] * len(sampled)),
            )
            history += [answer, message("user", "go on")]
            ids = [*ids, *sampled, *(rng.randrange(FIRST_ID, IDS) for _ in range(3))]
        records += run.end(at=at + 1000, ENTRY_RESULT=json.dumps(f"result of {id}"))
        if value is not None:
            records.append(Reward(id=f"r-{id}", trajectory_id=id, value=value))
    return records


def cut_to(spans: list[Record], characters: int) -> list[Record]:
    """The same with every prompt cut to a length, as an exporter's limit on the length of attributes does it."""
    name = semconv.INPUT_MESSAGES
    return [
        msgspec.structs.replace(one, attributes={**one.attributes, name: one.attributes[name][:characters]})
        if isinstance(one, SpanRow) and name in one.attributes
        else one
        for one in spans
    ]


def recorded_groups(count: int, size: int = 4) -> list[Record]:
    """Groups g00, g01, ... that end one after the other, with random rewards."""
    rng = random.Random(7)
    return [
        record
        for number in range(count)
        for record in recorded_group(f"g{number:02d}", [rng.random() for _ in range(size)], at=number * 2000)
    ]
