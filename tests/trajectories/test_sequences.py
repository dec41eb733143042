from __future__ import annotations

import msgspec
import pytest
from simulated_agent import MARK, Run, message, prompt_tokens, research_run, result, tokens

from arttrace.records.sequence import TokenReport, TokenSequence
from arttrace.records.span import SpanRow
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids
from arttrace.trajectories import build_trajectories, sequences


def read(spans: list[SpanRow]) -> tuple[tuple[TokenSequence, ...], TokenReport]:
    [trajectory] = build_trajectories(spans)
    return sequences(trajectory)


def targets(sequence: TokenSequence) -> list[int]:
    return [token for token, trained in zip(sequence.token_ids, sequence.trained, strict=True) if trained]


def test_a_conversation_is_one_sequence_and_only_sampled_tokens_are_targets() -> None:
    run = Run()
    history = [message("system", "s"), message("user", "u")]
    first = run.chat("a", history, message("assistant", "one"), at=1, policy="policy@1")
    history += [first, message("user", "more")]
    second = run.chat("b", history, message("assistant", "two"), at=10, policy="policy@2", logprob=-1.5)
    [sequence], report = read(run.end())
    assert list(sequence.token_ids) == [*prompt_tokens(history), *tokens(second)]
    assert targets(sequence) == [*tokens(first), *tokens(second)]
    assert sequence.policy_versions == ("policy@1", "policy@2")
    sampled = [t for t, trained in enumerate(sequence.trained) if trained]
    assert [sequence.versions[t] for t in sampled] == [0] * len(tokens(first)) + [1] * len(tokens(second))
    assert [sequence.logprobs[t] for t in sampled] == [-0.5] * len(tokens(first)) + [-1.5] * len(tokens(second))
    assert all(
        sequence.versions[t] == -1 and sequence.logprobs[t] is None
        for t in range(len(sequence.token_ids))
        if t not in sampled
    )
    assert sequence.call_ids == (run.span_id("a"), run.span_id("b"))
    count = len(tokens(first)) + len(tokens(second))
    assert report == TokenReport(calls=2, captured_tokens=count, trained_tokens=count)


def test_a_fabricated_assistant_message_is_context() -> None:
    run = Run()
    history = [message("user", "u"), message("assistant", "an example by hand"), message("user", "now you")]
    answer = run.chat("a", history, message("assistant", "mine"), at=1)
    [sequence], _ = read(run.end())
    assert targets(sequence) == tokens(answer)


def test_of_a_fork_the_earliest_next_call_trains_the_shared_tokens() -> None:
    run = Run()
    start = [message("user", "u")]
    shared = run.chat("a", start, message("assistant", "shared"), at=1)
    late = run.chat("b", [*start, shared, message("user", "x")], message("assistant", "late"), at=20)
    early = run.chat("c", [*start, shared, message("user", "y")], message("assistant", "early"), at=10)
    (first, second), report = read(run.end())
    assert targets(first) == [*tokens(shared), *tokens(early)]
    assert targets(second) == tokens(late)
    assert report.forks == 1


def test_a_divergence_inside_a_sampled_answer_forks_a_new_sequence() -> None:
    run = Run()
    start = [message("user", "u")]
    answer = run.chat("a", start, message("assistant", "one two three"), at=1)
    edited = message("assistant", "one two")
    again = run.chat("b", [*start, edited, message("user", "x")], message("assistant", "four"), at=10)
    (first, second), _ = read(run.end())
    assert targets(first) == tokens(answer)
    assert targets(second) == tokens(again)


def test_identical_prompt_and_answer_are_two_calls_both_trained() -> None:
    run = Run()
    start = [message("user", "u")]
    for name, at in (("a", 1), ("b", 2)):
        answer = run.chat(name, start, message("assistant", "same"), at=at)
    run.chat("c", [*start, answer, message("user", "x")], message("assistant", "next"), at=10)
    made, report = read(run.end())
    assert len(made) == 2
    assert report.trained_tokens == 2 * len(tokens(answer)) + len(tokens(message("assistant", "next")))
    assert {sequence.call_ids for sequence in made} == {
        (run.span_id("a"), run.span_id("c")),
        (run.span_id("b"),),
    }


def test_choices_are_siblings_all_trained() -> None:
    run = Run()
    start = [message("user", "u")]
    one, two = message("assistant", "one"), message("assistant", "two")
    run.chat("a", start, one, two, at=1)
    run.chat("b", [*start, two, message("user", "x")], message("assistant", "on"), at=10)
    made, report = read(run.end())
    assert sorted(map(targets, made)) == sorted([tokens(one), [*tokens(two), *tokens(message("assistant", "on"))]])
    assert report.forks == 1


def test_an_empty_generation_is_nobodys_parent() -> None:
    run = Run()
    start = [message("user", "u")]
    run.chat("a", start, {"role": "assistant", "parts": []}, at=1, TOKEN_IDS=encode_token_ids([]), LOGPROBS="f4:")
    answer = run.chat("b", start, message("assistant", "now"), at=2)
    [sequence], report = read(run.end())
    assert sequence.call_ids == (run.span_id("b"),)
    assert targets(sequence) == tokens(answer)
    assert report.quarantined_calls == 0


def test_what_cannot_be_trained_on_is_counted_with_its_reason() -> None:
    run = Run()
    start = [message("user", "u")]
    answer = message("assistant", "one two")
    count = len(tokens(answer))
    run.chat("no ids", start, answer, at=1, TOKEN_IDS=None, LOGPROBS=None, USAGE_OUTPUT_TOKENS=9)
    run.chat("no prompt", start, answer, at=2, PROMPT_TOKEN_IDS=None)
    run.chat("hole", start, answer, at=3, LOGPROBS=encode_logprobs([None] + [-1.0] * (count - 1)))
    run.chat("short", start, answer, at=4, LOGPROBS=encode_logprobs([-1.0]))
    run.chat("floor", start, answer, at=4.2, LOGPROBS=encode_logprobs([-9999.0] + [-1.0] * (count - 1)))
    run.chat("no logarithm", start, answer, at=4.4, LOGPROBS=encode_logprobs([0.5] * count))
    run.chat("cut", start, answer, at=5, TRUNCATED=["gen_ai.input.messages"])
    run.chat("garbage", start, answer, at=6, TOKEN_IDS="i4:!!")
    run.chat("usage", start, answer, at=7, USAGE_OUTPUT_TOKENS=count + 1)
    run.chat("failed", start, at=8, OUTPUT_MESSAGES=None)
    run.spans[-1] = SpanRow(
        **{f: getattr(run.spans[-1], f) for f in run.spans[-1].__struct_fields__} | {"status_code": 2}
    )
    made, report = read(run.end())
    assert made == ()
    assert report.reasons == {
        "error": 1,
        "log-probabilities missing": 4,
        "no token ids": 3,
        "token count differs from usage": 1,
        "truncated": 1,
    }
    assert report.quarantined_calls == 10
    assert report.trained_tokens == 0
    assert report.captured_tokens == report.quarantined_tokens == 9 + 7 * count


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"REQUEST_TEMPERATURE": 0.0}, "not sampled at temperature 1"),
        ({"REQUEST_TEMPERATURE": 0.7}, "not sampled at temperature 1"),
        ({"REQUEST_TOP_P": 0.95}, "sampling was narrowed or shifted"),
        ({"REQUEST_TOP_K": 20}, "sampling was narrowed or shifted"),
        ({"REQUEST_PRESENCE_PENALTY": 0.5}, "sampling was narrowed or shifted"),
        ({"REQUEST_FREQUENCY_PENALTY": -0.5}, "sampling was narrowed or shifted"),
        ({"SAMPLING_SETTINGS": ["min_p"]}, "sampling was narrowed or shifted"),
    ],
)
def test_what_was_sampled_from_another_distribution_than_its_log_probabilities_say_is_context(
    setting: dict[str, object], reason: str
) -> None:
    run = Run()
    start = [message("user", "u")]
    other = run.chat("a", start, message("assistant", "elsewhere"), at=1, **setting)
    answer = run.chat("b", [*start, other, message("user", "x")], message("assistant", "here"), at=10)
    [sequence], report = read(run.end())
    assert targets(sequence) == tokens(answer)
    assert report.reasons == {reason: 1}
    assert report.quarantined_tokens == len(tokens(other))


@pytest.mark.parametrize(
    ("setting", "trained"),
    [
        ({"SAMPLING": "processed", "REQUEST_TEMPERATURE": 0.7}, 0.7),
        ({"SAMPLING": "processed", "REQUEST_TEMPERATURE": 1.5, "REQUEST_TOP_P": 1.0}, 1.5),
        ({"SAMPLING": "processed", "REQUEST_TEMPERATURE": 1.0}, 1.0),
        ({"SAMPLING": "policy", "REQUEST_TEMPERATURE": 0.0, "SAMPLING_SETTINGS": ["tool_choice"]}, 1.0),
        ({"SAMPLING": "policy", "REQUEST_TOP_P": 0.5}, 1.0),
        ({"SAMPLING": "processed", "REQUEST_TEMPERATURE": 0.0}, None),
        ({"SAMPLING": "processed", "REQUEST_TEMPERATURE": 0.01}, None),
        ({"SAMPLING": "processed", "REQUEST_TEMPERATURE": 0.7, "REQUEST_TOP_P": 0.9}, None),
        ({"SAMPLING": "processed", "SAMPLING_SETTINGS": ["response_format"]}, None),
        ({"SAMPLING": "something else", "REQUEST_TEMPERATURE": 0.7}, None),
    ],
)
def test_a_temperature_is_trained_on_where_the_log_probabilities_include_it(
    setting: dict[str, object], trained: float | None
) -> None:
    run = Run()
    start = [message("user", "u")]
    first = run.chat("a", start, message("assistant", "one"), at=1, **setting)
    second = run.chat("b", [*start, first, message("user", "x")], message("assistant", "two"), at=10)
    [sequence], report = read(run.end())
    assert targets(sequence) == [*(tokens(first) if trained else ()), *tokens(second)]
    assert report.quarantined_calls == (trained is None)
    if trained in (None, 1.0):
        assert sequence.temperatures == ()
    else:
        begin = len(prompt_tokens(start))
        sampled = range(begin, begin + len(tokens(first)))
        assert sequence.temperatures == tuple(trained if t in sampled else 1.0 for t in range(len(sequence.token_ids)))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "blob", "modality": "video", "content": "AA=="},
        {"type": "tool_call_response", "id": "c1", "response": [{"type": "image", "source": {}}]},
    ],
    ids=lambda part: part["type"],
)
def test_what_answers_to_more_than_text_is_context(part: dict[str, object]) -> None:
    """The learner is given tokens alone: its log-probabilities would not be those of the model that saw the image."""
    run = Run()
    seen = {"role": "user", "parts": [part, {"type": "text", "content": "What is it?"}]}
    shown = run.chat("a", [seen], message("assistant", "A hill."), at=1)
    run.chat("b", [seen, shown, message("user", "Sure?")], message("assistant", "Yes."), at=10)
    alone = run.chat("c", [message("user", "Name one.")], message("assistant", "Ada."), at=20)
    made, report = read(run.end())
    assert [token for sequence in made for token in targets(sequence)] == tokens(alone)
    assert report.reasons == {"images, sound or video in the prompt": 2}


def test_a_document_that_is_text_is_trained_on() -> None:
    run = Run()
    text = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "One."}}
    answer = run.chat("a", [{"role": "user", "parts": [text]}], message("assistant", "Read."), at=1)
    [sequence], report = read(run.end())
    assert (targets(sequence), report.reasons) == (tokens(answer), {})


def test_neutral_sampling_settings_are_trained_on() -> None:
    run = Run()
    neutral = {"REQUEST_TEMPERATURE": 1, "REQUEST_TOP_P": 1.0, "REQUEST_PRESENCE_PENALTY": 0}
    for at, top_k in enumerate((-1, 0)):
        run.chat(f"{at}", [message("user", f"{at}")], message("assistant", "a"), at=at, REQUEST_TOP_K=top_k, **neutral)
    made, report = read(run.end())
    assert (len(made), report.quarantined_calls) == (2, 0)


def test_an_answer_without_a_prompt_is_set_aside_and_blocks_no_step() -> None:
    run = Run()
    run.chat("a", [message("user", "u")], message("assistant", "one"), at=1, PROMPT_TOKEN_IDS=encode_token_ids([]))
    made, report = read(run.end())
    assert made == ()
    assert report.reasons == {"no token ids": 1}


def test_the_tokens_of_a_cut_stream_are_kept() -> None:
    run = Run()
    run.chat("a", [message("user", "u")], message("assistant", "half a"), at=1, INTERRUPTED="closed")
    [sequence], report = read(run.end())
    assert targets(sequence) == tokens(message("assistant", "half a"))
    assert report.quarantined_calls == 0


def test_a_quarantined_call_between_two_others_becomes_context() -> None:
    run = Run()
    history = [message("user", "u")]
    one = run.chat("a", history, message("assistant", "one"), at=1)
    history += [one, message("user", "x")]
    two = run.chat("b", history, message("assistant", "two"), at=10, LOGPROBS=None)
    history += [two, message("user", "y")]
    three = run.chat("c", history, message("assistant", "three"), at=20)
    [sequence], report = read(run.end())
    assert targets(sequence) == [*tokens(one), *tokens(three)]
    assert report.quarantined_tokens == len(tokens(two))


def test_sequences_never_span_two_agents() -> None:
    run = Run()
    start = [message("user", "u")]
    first = run.chat("a", start, message("assistant", "one"), at=1)
    sub = run.agent("sub", at=5, until=50)
    run.chat("b", [*start, first, message("user", "x")], message("assistant", "two"), at=10, parent=sub)
    made, _ = read(run.end())
    assert [(sequence.agent_id, sequence.call_ids) for sequence in made] == [
        (run.root_id, (run.span_id("a"),)),
        (sub, (run.span_id("b"),)),
    ]


def test_parallel_sub_agents_give_a_sequence_each() -> None:
    made, report = read(research_run())
    assert [len(sequence.call_ids) for sequence in made] == [3, 2, 2]
    assert report.forks == 0
    assert report.trained_tokens == report.captured_tokens > 0
    assert all(sequence.token_ids.count(MARK) >= 2 for sequence in made)


def test_long_conversations_cost_little_more_than_their_length() -> None:
    run = Run()
    history = [message("user", "u")]
    for turn in range(150):
        history += [run.chat(f"t{turn}", history, message("assistant", f"a{turn}"), at=10 * turn), result("x", "y")]
    [sequence], _ = read(run.end(at=10_000))
    assert len(sequence.call_ids) == 150


def test_each_prompt_of_one_legacy_call_leads_its_own_choices() -> None:
    run = Run()
    prompts = [message("user", "one"), message("user", "two")]
    run.chat(
        "a", prompts, message("assistant", "x"), message("assistant", "y"), at=1, OPERATION_NAME="text_completion",
        PROMPT_TOKEN_IDS=[1, 2],
    )  # fmt: skip
    run.spans[0].attributes["arttrace.prompt_token_ids.1"] = [3, 4, 5]
    made, report = read(run.end())
    assert [sequence.token_ids[: sequence.trained.index(1)] for sequence in made] == [(1, 2), (3, 4, 5)]
    assert report.trained_tokens == report.captured_tokens


def test_prompt_token_ids_that_a_limit_on_attributes_cut_are_not_trained_on() -> None:
    run = Run()
    messages = [message("user", "a question of several words")]
    run.chat("whole", messages, message("assistant", "x"), at=1, USAGE_INPUT_TOKENS=len(prompt_tokens(messages)))
    run.chat("cut", messages, message("assistant", "y"), at=2, USAGE_INPUT_TOKENS=len(prompt_tokens(messages)) + 3)
    [trajectory] = build_trajectories(run.end())
    made, report = sequences(trajectory)
    assert [one.call_ids for one in made] == [(run.span_id("whole"),)]
    assert report.reasons == {"prompt token count differs from usage": 1}
    assert report.trained_tokens + report.quarantined_tokens == report.captured_tokens


def test_prompts_of_one_call_count_together() -> None:
    """Legacy completions of two prompts with two answers each: usage has the sum over the prompts."""
    run = Run()
    long, short = [message("user", "two words")], [message("user", "u")]
    ids = [prompt_tokens(long), prompt_tokens(short)]
    answers = [message("assistant", word) for word in "abcd"]
    run.chat("c", long, *answers, at=1, USAGE_INPUT_TOKENS=sum(map(len, ids)))
    for index in (2, 3):
        run.spans[0].attributes[f"arttrace.prompt_token_ids.{index}"] = encode_token_ids(ids[1])
    [trajectory] = build_trajectories(run.end())
    made, report = sequences(trajectory)
    assert (len(made), report.reasons) == (4, {})
    run.spans[0].attributes["arttrace.prompt_token_ids.3"] = encode_token_ids(ids[1][:-1])
    assert sequences(build_trajectories(run.spans)[0])[1].reasons == {"prompt token count differs from usage": 1}


@pytest.mark.parametrize("theirs", ["chatcmpl", "msg"])
@pytest.mark.parametrize("nested", [True, False])
def test_a_call_that_two_instrumentations_recorded_is_trained_once(nested: bool, theirs: str) -> None:
    """Or the gateway and a client of Anthropic's, to which it gives the engine's id as one of Anthropic's."""
    run = Run()
    history = [message("user", "u")]
    for turn in range(2):
        said, id = message("assistant", f"x{turn}"), {"chatcmpl": f"chatcmpl-{turn}", "msg": f"msg_{turn}"}[theirs]
        run.chat(f"theirs{turn}", history, said, at=10 * turn, until=10 * turn + 7, logprob=None, RESPONSE_ID=id)
        above, id = run.span_id(f"theirs{turn}") if nested else None, f"chatcmpl-{turn}"
        history.append(run.chat(f"ours{turn}", history, said, at=10 * turn + 1, parent=above, RESPONSE_ID=id))
        history.append(message("user", "on"))
    spans = run.end()
    for order in (spans, spans[::-1]):
        made, report = sequences(build_trajectories(order)[0])
        assert [one.call_ids for one in made] == [(run.span_id("ours0"), run.span_id("ours1"))]
        assert report.reasons == {"recorded twice": 2}
        assert report.captured_tokens == report.trained_tokens == sum(len(tokens(said)) for said in history[1::2])


def test_answers_that_share_a_response_id_but_not_their_tokens_are_several() -> None:
    """A server that gives every response the same id: at one time, or one after the other with the same tokens."""
    run = Run()
    for name in "ab":
        run.chat(name, [message("user", "u")], message("assistant", name), at=1, RESPONSE_ID="constant")
    for at in (20, 30):
        run.chat(f"{at}", [message("user", "v")], message("assistant", "same"), at=at, RESPONSE_ID="constant")
    made, report = sequences(build_trajectories(run.end())[0])
    assert (len(made), report.reasons) == (4, {})


@pytest.mark.parametrize("failed", [True, False])
@pytest.mark.parametrize("interrupted", ["closed", "cancelled", "error", None])
def test_tokens_of_a_call_that_failed_are_kept_when_it_says_that_it_was_cut_off(
    interrupted: str | None, failed: bool
) -> None:
    """What came before the cut was sampled; of an error without a cut nobody knows."""
    run = Run()
    messages = [message("user", "u")]
    run.chat("c", messages, message("assistant", "x"), at=1, INTERRUPTED=interrupted, USAGE_OUTPUT_TOKENS=None)
    if failed:
        run.spans[0] = msgspec.structs.replace(run.spans[0], status_code=2, status_message="broken")
    made, report = sequences(build_trajectories(run.end())[0])
    kept = interrupted is not None or not failed
    assert (len(made), report.reasons) == ((1, {}) if kept else (0, {"error": 1}))
