"""What agents do to their history: branch, retry, edit, compact. Each test states its outcome and the rule that
forces it."""

from __future__ import annotations

import json

import msgspec
import pytest
from simulated_agent import MARK, JsonMessage, Run, message, prompt_tokens, result, tokens

from arttrace.records.span import SpanRow
from arttrace.records.trajectory import AgentCall, Relation, Trajectory
from arttrace.records.values.tokens import encode_token_ids
from arttrace.trajectories import build_trajectories, sequences


def built(spans: list[SpanRow]) -> Trajectory:
    [trajectory] = build_trajectories(spans)
    return trajectory


def labels(trajectory: Trajectory) -> list[Relation]:
    return [call.relation for call in trajectory.calls]


def conversation(run: Run, turns: int, **extra: object) -> list[JsonMessage]:
    """So many turns that extend each other; returns the history with the last answer."""
    history = [message("system", "You help."), message("user", "the task")]
    for turn in range(turns):
        history.append(run.chat(f"t{turn}", history, message("assistant", f"answer {turn}"), at=10 * turn, **extra))  # type: ignore[arg-type]
        history.append(message("user", f"more {turn}"))
    return history[:-1]


def last(trajectory: Trajectory) -> AgentCall:
    return trajectory.calls[-1]


def trained_once(trajectory: Trajectory) -> None:
    _, report = sequences(trajectory)
    assert report.trained_tokens == report.captured_tokens > 0


def test_regeneration() -> None:
    """A sibling branch, labelled, and both are trained: an identical prompt with a different reply (rule 5)."""
    run = Run()
    start = [message("user", "u")]
    run.chat("a", start, message("assistant", "x"), at=1)
    run.chat("b", start, message("assistant", "y"), at=2)
    trajectory = built(run.end())
    assert labels(trajectory) == [Relation.START, Relation.REGENERATION]
    assert (last(trajectory).related_to, last(trajectory).confidence) == (run.span_id("a"), 1.0)
    assert len(sequences(trajectory)[0]) == 2
    trained_once(trajectory)


def test_a_retry_after_a_failure() -> None:
    """The same prompt after a call that failed is a retry; the failed call stays and is counted."""
    run = Run()
    start = [message("user", "u")]
    run.chat("a", start, at=1, TOKEN_IDS=None)
    run.spans[0] = msgspec.structs.replace(run.spans[0], status_code=2, status_message="503")
    run.chat("b", start, message("assistant", "y"), at=20)
    trajectory = built(run.end())
    assert labels(trajectory) == [Relation.START, Relation.RETRY]
    assert sequences(trajectory)[1].reasons == {"error": 1}


def test_n_choices() -> None:
    """They are siblings under one prompt, all trained, and each can be gone on from."""
    run = Run()
    start = [message("user", "u")]
    run.chat("a", start, message("assistant", "x"), message("assistant", "y"), at=1)
    run.chat("b", [*start, message("assistant", "y"), message("user", "on")], message("assistant", "z"), at=20)
    trajectory = built(run.end())
    assert labels(trajectory) == [Relation.START, Relation.EXTENDS]
    assert len(set(trajectory.calls[0].choice_nodes)) == 2
    assert len(sequences(trajectory)[0]) == 2
    trained_once(trajectory)


def test_identical_prompt_and_answer() -> None:
    """Two calls, one message node, both trained: each was sampled (rule 5)."""
    run = Run()
    for name in ("a", "b"):
        run.chat(name, [message("user", "u")], message("assistant", "x"), at=1)
    trajectory = built(run.end())
    assert len(trajectory.nodes) == 2
    assert len(trajectory.nodes[1].sampled_by) == 2
    assert len(sequences(trajectory)[0]) == 2
    trained_once(trajectory)


def test_parallel_tools_returning_out_of_order() -> None:
    """Results are paired by id and reported in the order of the calls."""
    run = Run()
    history = [message("user", "u")]
    asked = message("assistant", calls=(("1", "a", "{}"), ("2", "b", "{}")))
    history.append(run.chat("m1", history, asked, at=1))
    run.chat("m2", [*history, result("2", "second"), result("1", "first")], message("assistant", "done"), at=10)
    assert [(call.id, call.result) for call in built(run.end()).tool_calls] == [("1", "first"), ("2", "second")]


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (("same", "same", "2"), ("same", "same", "2")),  # ids counted anew by each tool
        (("1", "2", "3"), ("2", None, "3")),  # a result without an id answers the first call that has none
        (("1", "2", "3"), ("1", "renamed", None)),
    ],
)
def test_results_whose_ids_say_little_go_to_their_calls(
    asked: tuple[str, ...], answered: tuple[str | None, ...]
) -> None:
    calls = tuple((id, f"tool{place}", f'{{"n": {place}}}') for place, id in enumerate(asked))
    run = Run()
    history = [message("user", "q")]
    history.append(run.chat("m", history, message("assistant", calls=calls), at=0))
    history += [result(id, f"result {number}") for number, id in enumerate(answered)]
    run.chat("m2", history, message("assistant", "done"), at=10)
    trajectory = built(run.end(at=99))
    expected = ["result 1", "result 0", "result 2"] if answered[0] == "2" else ["result 0", "result 1", "result 2"]
    assert {call.name: call.result for call in trajectory.tool_calls} == {
        f"tool{place}": text for place, text in enumerate(expected)
    }
    assert labels(trajectory)[1] == Relation.EXTENDS


def test_a_missing_and_an_errored_tool_result() -> None:
    """A call never answered is valid data, one that raised keeps its error: neither makes the run incomplete."""
    run = Run()
    history = [message("user", "u")]
    asked = message("assistant", calls=(("1", "a", "{}"), ("2", "b", "{}")))
    history.append(run.chat("m1", history, asked, at=1))
    run.tool("t", "b", at=5, until=8, TOOL_CALL_ID="2")
    run.spans[-1] = msgspec.structs.replace(run.spans[-1], status_code=2, status_message="ValueError: no")
    trajectory = built(run.end())
    assert sorted((c.id, c.result, c.error) for c in trajectory.tool_calls) == [
        ("1", None, None),
        ("2", None, "ValueError: no"),
    ]
    assert trajectory.incomplete == ""


def test_a_duplicate_tool_call_id_across_turns() -> None:
    """Two calls, each with the result that stands behind its own answer."""
    run = Run()
    history = [message("user", "u")]
    for turn in range(2):
        asked = message("assistant", calls=(("same", "a", json.dumps({"turn": turn})),))
        history.append(run.chat(f"m{turn}", history, asked, at=10 * turn))
        history.append(result("same", f"r{turn}"))
    run.chat("end", history, message("assistant", "done"), at=50)
    assert [(call.id, call.result) for call in built(run.end()).tool_calls] == [("same", "r0"), ("same", "r1")]


def test_repeated_compaction() -> None:
    """Each compaction is labelled and forks a sequence; every sampled token is still trained once (rule 5)."""
    run = Run()
    clock = 0
    history = [message("system", "You help."), message("user", "the task")]
    for era in range(3):
        for turn in range(4):
            clock += 10
            answer = message("assistant", f"era {era} turn {turn}")
            history.append(run.chat(f"t{era}{turn}", history, answer, at=clock))
            history.append(message("user", f"more {era} {turn}"))
        clock += 10
        asked = [*history, message("user", "summarise")]
        summary = f"what was done in era {era}, in short"
        run.chat(f"sum{era}", asked, message("assistant", summary), at=clock)
        history = [*history[:2], message("user", f"Summary so far: {summary}")]
    run.chat("last", history, message("assistant", "done"), at=clock + 10)
    trajectory = built(run.end())
    found = [call for call in trajectory.calls if call.relation != Relation.EXTENDS]
    assert [call.relation for call in found] == [Relation.START, *[Relation.COMPACTION] * 3]
    assert sequences(trajectory)[1].forks == 3
    trained_once(trajectory)


def test_thinking_stripped_by_the_client() -> None:
    """The answer comes back without its reasoning: still the same agent and history, labelled, and a new sequence
    because the tokens differ (no silent realignment)."""
    run = Run()
    start = [message("user", "u")]
    thought = {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "hm"},
            *message("assistant", "x", calls=(("1", "f", "{}"),))["parts"],
        ],
    }
    run.chat("a", start, thought, at=1)
    echo = message("assistant", "x", calls=(("1", "f", "{}"),))
    run.chat("b", [*start, echo, result("1", "r")], message("assistant", "y"), at=20, flow="E7", above="E0")
    trajectory = built(run.end())
    assert (len(trajectory.agents), len(sequences(trajectory)[0])) == (1, 2)
    assert last(trajectory).relation == Relation.TEMPLATE_DROPPED_REASONING
    assert [call.result for call in trajectory.tool_calls] == ["r"]
    trained_once(trajectory)


def test_thinking_stripped_by_the_template() -> None:
    """The messages go on, the prompt's tokens do not: any token divergence forks, and the label says where."""
    run = Run()
    start = [message("user", "u")]
    answer = {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "x"}]}
    run.chat("a", start, answer, at=1)
    history = [*start, answer, message("user", "on")]
    rendered = [*start, message("assistant", "x"), message("user", "on")]
    run.chat("b", history, message("assistant", "y"), at=20, PROMPT_TOKEN_IDS=encode_token_ids(prompt_tokens(rendered)))
    trajectory = built(run.end())
    assert last(trajectory).relation == Relation.TEMPLATE_DROPPED_REASONING
    assert "at token" in last(trajectory).evidence
    assert len(sequences(trajectory)[0]) == 2
    trained_once(trajectory)


def test_arguments_re_serialised() -> None:
    """The same history by messages (sorted arguments); by tokens it forks, since other tokens were read."""
    run = Run()
    start = [message("user", "u")]
    run.chat("a", start, message("assistant", calls=(("1", "f", '{"a": 1, "b": 2}'),)), at=1)
    echo = message("assistant", calls=(("1", "f", '{"b":2,"a":1}'),))
    run.chat("b", [*start, echo, result("1", "r")], message("assistant", "y"), at=20)
    trajectory = built(run.end())
    assert len(trajectory.nodes) == 4
    assert (last(trajectory).relation, last(trajectory).confidence) == (Relation.EDIT, 0.5)
    assert len(sequences(trajectory)[0]) == 2
    trained_once(trajectory)


def test_tools_changed_mid_run() -> None:
    """The history goes on under other tools: nodes of their own, labelled with what came and went."""
    run = Run()
    define = [json.dumps([{"type": "function", "function": {"name": name}}]) for name in ("old", "new")]
    start = [message("user", "u")]
    answer = run.chat("a", start, message("assistant", "x"), at=1, TOOL_DEFINITIONS=define[0])
    run.chat("b", [*start, answer, message("user", "on")], message("assistant", "y"), at=20, TOOL_DEFINITIONS=define[1])
    trajectory = built(run.end())
    assert last(trajectory).relation == Relation.TOOLS_CHANGED
    assert last(trajectory).evidence == "goes on with other tools (+new, -old)"
    assert len(trajectory.nodes) == 6


def test_a_timestamp_in_the_system_prompt() -> None:
    """Every call is an edit in place of message 0: same agent, a sequence each, never realigned."""
    run = Run()
    talk: list[JsonMessage] = [message("user", "u")]
    for turn in range(3):
        history = [message("system", f"It is 10:0{turn}."), *talk]
        talk.append(run.chat(f"t{turn}", history, message("assistant", f"answer {turn}"), at=10 * turn))
        talk.append(message("user", f"more {turn}"))
    trajectory = built(run.end())
    assert labels(trajectory) == [Relation.START, Relation.EDIT, Relation.EDIT]
    assert last(trajectory).evidence == "1 changed in place (system)"
    assert (len(trajectory.agents), len(sequences(trajectory)[0])) == (1, 3)
    trained_once(trajectory)


def test_middle_truncated() -> None:
    """Dropped turns are an edit that says how many; a new sequence (rule 5)."""
    run = Run()
    history = conversation(run, 4)
    cut = [*history[:2], *history[-3:], message("user", "now")]
    run.chat("cut", cut, message("assistant", "y"), at=90)
    trajectory = built(run.end())
    assert (last(trajectory).relation, len(sequences(trajectory)[0])) == (Relation.EDIT, 2)
    assert last(trajectory).evidence == "4 of 9 earlier messages are gone"
    trained_once(trajectory)


def test_cleared_tool_results() -> None:
    """Results replaced in place are an edit, not a compaction."""
    run = Run()
    history = [message("user", "u")]
    for turn in range(3):
        asked = message("assistant", calls=((f"c{turn}", "look", "{}"),))
        history.append(run.chat(f"t{turn}", history, asked, at=10 * turn))
        history.append(result(f"c{turn}", f"page {turn}"))
    cleared = [result(item["parts"][0]["id"], "[cleared]") if item["role"] == "tool" else item for item in history[:-1]]
    run.chat("end", [*cleared, history[-1]], message("assistant", "done"), at=90)
    trajectory = built(run.end())
    assert (last(trajectory).relation, last(trajectory).evidence) == (Relation.EDIT, "2 changed in place (tool)")
    assert [call.result for call in trajectory.tool_calls] == ["page 0", "page 1", "page 2"]


def test_a_compaction_that_the_sender_names() -> None:
    """Its word is a fact (confidence 1)."""
    run = Run()
    history = conversation(run, 3)
    part = {"type": "compaction", "content": "short"}
    run.chat("c", [*history[:2], {"role": "user", "parts": [part]}], message("assistant", "y"), at=90)
    assert (last(built(run.end())).relation, last(built(run.end())).confidence) == (Relation.COMPACTION, 1.0)


def test_an_unrelated_history_in_the_same_flow() -> None:
    """It stays with the agent whose flow it is in, labelled unrelated: identity is not guessed from text."""
    run = Run()
    conversation(run, 2)
    run.chat("o", [message("user", "something else")], message("assistant", "y"), at=90)
    trajectory = built(run.end())
    assert (last(trajectory).relation, len(trajectory.agents)) == (Relation.UNRELATED, 1)


def test_a_stream_aborted() -> None:
    """The tokens that came are kept and trained, the call marked; going on from the partial answer extends it."""
    run = Run()
    start = [message("user", "u")]
    run.chat("a", start, message("assistant", "par"), at=1, INTERRUPTED="closed")
    run.chat("b", [*start, message("assistant", "par"), message("user", "go on")], message("assistant", "y"), at=20)
    trajectory = built(run.end())
    assert (trajectory.calls[0].call.interrupted, labels(trajectory)[1]) == ("closed", Relation.EXTENDS)
    assert len(sequences(trajectory)[0]) == 1
    trained_once(trajectory)


def test_fabricated_assistant_messages() -> None:
    """Few-shot answers nobody sampled are context: nodes without a sampler, tokens without a target (rule 5)."""
    run = Run()
    start = [message("user", "q"), message("assistant", "made up"), message("user", "u")]
    run.chat("a", start, message("assistant", "x"), at=1)
    trajectory = built(run.end())
    assert [node.sampled_by != () for node in trajectory.nodes] == [False, False, False, True]
    [sequence], _ = sequences(trajectory)
    assert sequence.trained_tokens == len(tokens(message("assistant", "x")))


def test_multimodal_parts() -> None:
    """Kept as they came, part of a message's identity: two images are two messages."""
    run = Run()
    for name, image in (("a", "one.png"), ("b", "two.png")):
        parts = [{"type": "uri", "uri": image, "modality": "image"}, {"type": "text", "content": "what is it?"}]
        run.chat(name, [{"role": "user", "parts": parts}], message("assistant", "x"), at=1)
    trajectory = built(run.end())
    assert len(trajectory.nodes) == 4
    assert trajectory.calls[0].prompt_node != trajectory.calls[1].prompt_node


@pytest.mark.parametrize("content", [None, ""])
def test_empty_content(content: str | None) -> None:
    """None equals "": one message; and an empty generation is nobody's parent."""
    run = Run()
    start = [message("user", "u")]
    empty = {"role": "assistant", "parts": [{"type": "text", "content": content}] if content is not None else []}
    run.chat("a", start, {"role": "assistant", "parts": []}, at=1)
    run.chat("b", [*start, empty, message("user", "say something")], message("assistant", "x"), at=20)
    trajectory = built(run.end())
    assert trajectory.calls[0].choice_nodes == ()
    assert len(trajectory.calls) == 2


def test_nul_and_odd_characters() -> None:
    """Text is text: NUL, quotes, half an emoji escaped in JSON neither break a message nor its neighbours."""
    run = Run()
    run.chat("a", [message("user", 'a\x00b "\\ \u2028 \U0001f600')], message("assistant", "\x00"), at=1)
    call = built(run.end()).calls[0].call
    assert call.messages[0].text == 'a\x00b "\\ \u2028 \U0001f600'
    assert call.choices[0].message.text == "\x00"


def test_100_mb_content() -> None:
    """Read like any other, once, though two calls hold it."""
    run = Run()
    large = "x" * 100_000_000
    text = '[{"role":"user","parts":[{"type":"text","content":"' + large + '"}]}'
    run.chat("a", [], message("assistant", "x"), at=1, INPUT_MESSAGES=text + "]", PROMPT_TOKEN_IDS=None)
    answer = json.dumps(message("assistant", "x"))
    run.chat("b", [], message("assistant", "y"), at=20, INPUT_MESSAGES=f"{text},{answer}]", PROMPT_TOKEN_IDS=None)
    trajectory = built(run.end())
    assert trajectory.calls[0].call.messages[0] is trajectory.calls[1].call.messages[0]
    assert trajectory.calls[1].relation == Relation.EXTENDS


def test_a_responses_chain() -> None:
    """A call that names the response it goes on from has that one's history; instructions are each call's own."""
    run = Run()

    def respond(
        name: str, previous: str | None, text: str, answer: str, at: int, instructions: str = "Be brief."
    ) -> None:
        run.chat(
            name, [message("user", text)], message("assistant", answer), at=at, RESPONSE_ID=name, PROMPT_TOKEN_IDS=None,
            PREVIOUS_RESPONSE_ID=previous, SYSTEM_INSTRUCTIONS=json.dumps([{"type": "text", "content": instructions}]),
        )  # fmt: skip

    respond("r1", None, "one", "1", 1)
    respond("r2", "r1", "two", "2", 20)
    respond("r3", "r1", "another two", "22", 30)
    respond("r4", "never seen", "four", "4", 40)
    trajectory = built(run.end())
    texts = [[item.text for item in call.call.messages] for call in trajectory.calls]
    assert texts == [
        ["Be brief.", "one"],
        ["Be brief.", "one", "1", "two"],
        ["Be brief.", "one", "1", "another two"],
        ["Be brief.", "four"],
    ]
    assert labels(trajectory) == [Relation.START, Relation.EXTENDS, Relation.EXTENDS, Relation.UNRELATED]
    assert last(trajectory).evidence == "goes on from never seen, not captured"


def test_responses_in_a_cycle_do_no_harm() -> None:
    """Nothing is invented: what cannot be joined is left as it came."""
    run = Run()
    for name, previous in (("r1", "r2"), ("r2", "r1"), ("r3", "r3")):
        run.chat(
            name,
            [message("user", name)],
            message("assistant", "x"),
            at=1,
            RESPONSE_ID=name,
            PREVIOUS_RESPONSE_ID=previous,
        )
    assert len(built(run.end()).calls) == 3


def test_masked_content_is_not_trained_on() -> None:
    """What a mask changed is not what was sampled: set aside with its reason (rule 5)."""
    run = Run()
    run.chat("a", [message("user", "u")], message("assistant", "x"), at=1, MASKED=["gen_ai.output.messages"])
    assert sequences(built(run.end()))[1].reasons == {"redacted or masked": 1}


def test_a_missing_log_probability_stays_missing() -> None:
    """Never 0.0: the call is set aside and counted (rules 5, 8)."""
    run = Run()
    run.chat("a", [message("user", "u")], message("assistant", "x"), at=1, logprob=None)
    trajectory = built(run.end())
    assert set(trajectory.calls[0].call.choices[0].logprobs or ()) == {None}
    assert sequences(trajectory)[1].reasons == {"log-probabilities missing": 1}


def test_a_prompt_that_ends_in_the_mark_only() -> None:
    """The toy tokenizer's own sanity: a prompt ends with the generation mark, so that answers are its extensions."""
    assert prompt_tokens([message("user", "u")])[-1] == MARK
