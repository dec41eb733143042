"""Prompts' token ids: those that extend each other share memory, and each is what it would be alone."""

from __future__ import annotations

import base64
import importlib
import random
from array import array
from collections.abc import Callable

import msgspec
import pytest
from simulated_agent import Run, message

from arttrace.records.message import Message
from arttrace.records.values.tokens import (
    TokenIds,
    TokenText,
    begins_with,
    encode_logprobs,
    encode_token_ids,
    plain,
    token_bytes,
)
from arttrace.trajectories import build_trajectories, sequences
from arttrace.trajectories.decoding.shared_prefixes import SharedTokens


def test_prompts_read_together_are_what_each_is_alone() -> None:
    """Growing, forking, repeated and cut prompts of any length, in any order, change nothing of each other."""
    rng = random.Random(7)
    prompts: list[list[int]] = [[]]
    for _ in range(400):
        base = rng.choice(prompts[-8:])
        kept = base[: rng.choice([len(base), len(base), rng.randrange(len(base) + 1)])]
        prompts.append(kept + [rng.randrange(3) for _ in range(rng.randrange(9))])
    shared = SharedTokens()
    read = [shared.read(encode_token_ids(prompt)) for prompt in prompts]
    for prompt, (digest, ids) in zip(prompts, read, strict=True):
        assert ids is not None
        assert ids == prompt
        assert tuple(prompt) == ids
        assert digest == SharedTokens().read(encode_token_ids(prompt))[0]


def test_prompts_that_name_what_they_go_on_from_are_what_each_is_alone() -> None:
    """However much of the one before is kept, readable or not, in any order."""
    rng = random.Random(11)
    texts = [TokenText(encode_token_ids([]))]
    for _ in range(400):
        before = rng.choice(texts[-8:])
        kept = rng.choice([max(0, len(before) - 4), len(before), rng.randrange(len(before) + 1)])
        whole = encode_token_ids([rng.randrange(3) for _ in range(len(before) // 4 + rng.randrange(9))])
        longer = TokenText(whole[kept:], before, min(kept, len(whole)))
        texts.append(longer if rng.random() < 0.9 else TokenText("i4:?"))
    shared = SharedTokens()
    for text in rng.sample(texts, len(texts)):
        assert len(text) == len(str(text))
        alone = SharedTokens().read(str(text))
        assert (shared.read(text), shared.read(str(text))) == (alone, alone)


def test_the_order_of_ids_is_that_of_lists() -> None:
    rng = random.Random(5)
    lists = [[rng.randrange(-2, 3) for _ in range(rng.randrange(6))] for _ in range(60)]
    longest = TokenIds.of([1, 2, 1, 2, 1])
    ids = [*map(TokenIds.of, lists), *(TokenIds(longest._ids, length) for length in range(6))]
    assert list(map(list, sorted(ids))) == sorted(map(list, ids))
    for one in ids:
        assert one.followed_by((1, 2)) == [*one, 1, 2]
        assert one == list(one)
    assert TokenIds(longest._ids, 2).followed_by((1, 2))._ids is longest._ids


def test_unreadable_text_is_hashed_and_no_ids() -> None:
    shared = SharedTokens()
    whole = encode_token_ids(list(range(40)))
    assert shared.read(whole)[1] == list(range(40))
    for odd in ("", "i4", "i4:", "[1, 2]", whole + "?", whole[:-3], "f4:" + whole[3:]):
        digest, ids = shared.read(odd)
        assert ids == (() if odd == "i4:" else None)
        assert digest == SharedTokens().read(odd)[0]
    assert shared.read(whole)[1] == list(range(40))


def test_they_are_a_sequence() -> None:
    ids = TokenIds(array("i", [5, 6, 7, 8]), 3)
    assert (len(ids), list(ids), ids[0], ids[-1], ids[1:], ids[::-1], ids[:9]) == (
        3, [5, 6, 7], 5, 7, (6, 7), (7, 6, 5), (5, 6, 7),
    )  # fmt: skip
    assert (ids == [5, 6, 7], ids == (5, 6), ids == "567", 7 in ids, 8 in ids) == (True, False, False, True, False)
    assert {ids: 1}[(5, 6, 7)] == 1  # type: ignore[index]
    with pytest.raises(IndexError):
        ids[3]
    with pytest.raises(IndexError):
        ids[-4]
    assert begins_with(ids, TokenIds(array("i", [5, 6]), 2))
    assert begins_with(ids, (5, 6))
    assert not begins_with(ids, TokenIds(array("i", [5, 6, 7, 8]), 4))
    assert token_bytes(ids) == token_bytes([5, 6, 7])
    assert msgspec.json.encode({"ids": ids}, enc_hook=plain) == b'{"ids":[5,6,7]}'
    assert TokenIds.of(ids) is ids


@pytest.mark.parametrize(("given", "read"), [([1, 2], [1, 2]), ([1 << 40], None), (["1"], None), ([], [])])
def test_plain_arrays_are_understood(given: list[object], read: list[int] | None) -> None:
    """What does not fit is no token truth; the call stays, without it."""
    run = Run()
    run.chat("c", [message("user", "u")], message("assistant", "x"), at=1, PROMPT_TOKEN_IDS=given)
    [trajectory] = build_trajectories(run.end())
    assert trajectory.calls[0].call.prompt_token_ids == read
    sequences(trajectory)


def test_a_growing_run_holds_its_longest_prompt_only() -> None:
    """800 turns need not take 800 copies: what a call extends is not copied."""
    run = Run()
    history = [message("user", "u")]
    for turn in range(30):
        history.append(run.chat(f"c{turn}", history, message("assistant", f"said {turn}"), at=10 * turn))
        history.append(message("user", f"on {turn}"))
    [trajectory] = build_trajectories(run.end())
    arrays = {id(placed.call.prompt_token_ids._ids) for placed in trajectory.calls}  # type: ignore[union-attr]
    assert len(arrays) == 1


def test_a_message_that_calls_share_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of a long run was asked anew whether any of its messages holds an image."""
    module = importlib.import_module("arttrace.trajectories.sequences")
    looked_at: list[Message] = []

    def has_media(one: Message) -> bool:
        looked_at.append(one)
        return False

    monkeypatch.setattr(module, "has_media", has_media)
    run = Run()
    history = [message("user", "u")]
    for turn in range(20):
        history.append(run.chat(f"c{turn}", history, message("assistant", f"said {turn}"), at=10 * turn))
        history.append(message("user", f"on {turn}"))
    [trajectory] = build_trajectories(run.end())
    sequences(trajectory)
    assert len(looked_at) == len({id(one) for placed in trajectory.calls for one in placed.call.messages})


TRUTH = {
    "PROMPT_TOKEN_IDS": encode_token_ids([1, 2, 3]),
    "TOKEN_IDS": encode_token_ids([4, 5]),
    "LOGPROBS": encode_logprobs([-0.5, -0.25]),
}


def _trained(**values: object) -> tuple[int, dict[str, int]]:
    """How many calls of a run's one call are trained on, and why not."""
    run = Run()
    run.chat("c", [message("user", "u")], message("assistant", "x"), at=1, **{**TRUTH, **values})
    [trajectory] = build_trajectories(run.end())
    assert len(trajectory.calls) == 1
    made, report = sequences(trajectory)
    return len(made), report.reasons


def test_tokens_that_were_cut_off_are_not_trained_on() -> None:
    """Cut between two numbers the rest has another length; cut inside of one, or inside a letter, it is no numbers."""
    assert _trained() == (1, {})
    for name, whole in TRUTH.items():
        for cut in (_cut(whole, 1), _cut(whole, 4), whole[:-3]):
            if (name, cut) != ("PROMPT_TOKEN_IDS", _cut(whole, 4)):  # whose length only the usage tells
                made, reasons = _trained(**{name: cut})
                assert (made, sum(reasons.values())) == (0, 1), (name, cut)


def _cut(whole: str, less: int) -> str:
    """Packed numbers without their last bytes."""
    return whole[:3] + base64.b64encode(base64.b64decode(whole[3:])[:-less]).decode()


def test_an_attribute_of_another_type_costs_nothing_but_itself() -> None:
    for value in ("many", [7], {"n": 7}):
        assert _trained(USAGE_INPUT_TOKENS=value, USAGE_OUTPUT_TOKENS=value) == (1, {})


@pytest.mark.parametrize("spelled", [int, float, str, lambda number: f"{number}.0"])
def test_counts_of_tokens_are_compared_however_an_exporter_writes_numbers(spelled: Callable[[int], object]) -> None:
    assert _trained(USAGE_INPUT_TOKENS=spelled(3), USAGE_OUTPUT_TOKENS=spelled(2)) == (1, {})
    assert _trained(USAGE_INPUT_TOKENS=spelled(4))[0] == 0
    assert _trained(USAGE_OUTPUT_TOKENS=spelled(3))[0] == 0


@pytest.mark.parametrize(
    ("values", "trained"),
    [
        ({"REQUEST_TEMPERATURE": "1.0"}, 1),
        ({"REQUEST_TEMPERATURE": "0.7"}, 0),
        ({"REQUEST_TEMPERATURE": [0.7]}, 0),
        ({"REQUEST_TEMPERATURE": "hot"}, 0),
        ({"REQUEST_TEMPERATURE": True}, 0),
        ({"REQUEST_TEMPERATURE": float("nan")}, 0),
        ({"REQUEST_TOP_P": "1.0"}, 1),
        ({"REQUEST_TOP_P": "0.9"}, 0),
        ({"REQUEST_TOP_P": [1]}, 0),
        ({"REQUEST_TOP_K": "-1"}, 1),
        ({"SAMPLING_SETTINGS": ["min_p"]}, 0),
        ({"SAMPLING_SETTINGS": '["min_p"]'}, 0),
        ({"SAMPLING_SETTINGS": "min_p"}, 0),
        ({"SAMPLING_SETTINGS": [7]}, 0),
        ({"SAMPLING_SETTINGS": {"min_p": 0.1}}, 0),
        ({"SAMPLING_SETTINGS": "[]"}, 1),
        ({"SAMPLING_SETTINGS": []}, 1),
    ],
)
def test_how_a_call_was_sampled_is_read_in_any_type_or_the_call_is_not_trained_on(
    values: dict[str, object], trained: int
) -> None:
    made, reasons = _trained(**values)
    assert (made, sum(reasons.values())) == (trained, 1 - trained)
