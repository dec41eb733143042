"""What a coding agent's program wrote beside the model, and what its user took back, is no answer and in no prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from system_files import CODEX, SESSION, done, event, line, lines, read, runs_of, spoken, use

from arttrace.formats.imported_files import read_file
from arttrace.formats.systems.sessions import claude_code
from arttrace.records.message import OtherPart
from arttrace.records.trajectory import Trajectory


def said(run: Trajectory) -> list[tuple[list[str], str]]:
    """Of each call the texts that it was given, and what it answered."""
    return [
        ([message.text for message in placed.call.messages], placed.call.choices[0].message.text)
        for placed in run.calls
    ]


def by_program(id: str, parent: str, text: str, at: int, **more: Any) -> dict[str, Any]:
    """A line as Claude Code writes it where the API refused, or where an answer had to stand."""
    found = line(id, parent, "assistant", [{"type": "text", "text": text}], at, answer=id, **more)
    usage = {"input_tokens": 0, "output_tokens": 0}
    found["message"] |= {"model": "<synthetic>", "stop_reason": "stop_sequence", "usage": usage}
    return found


def test_an_error_of_the_api_is_no_answer_and_no_later_prompt_has_it() -> None:
    failed = by_program("x1", "u9", "API Error: 529 Overloaded.", 10, isApiErrorMessage=True, error="overloaded")
    more = [
        line("x2", "x1", "user", "Go on.", 11),
        line("x3", "x2", "assistant", [{"type": "text", "text": "Gone on."}], 12, answer="a9"),
    ]
    found, [run] = read(lines(*SESSION, failed, *more))
    given, answer = said(run)[-1]
    assert (len(run.calls), answer, given[-2:]) == (4, "Gone on.", ["As before.", "Go on."])
    assert found.left_out == {"errors of the API, which no model said": 1}
    _, [run] = read(lines(*SESSION, failed))
    assert (run.result, len(run.calls), run.incomplete) == ("As before.", 3, "")


def test_what_claude_code_put_in_for_an_answer_is_context() -> None:
    put_in = by_program("x1", "u9", "No response requested.", 10)
    more = [
        line("x2", "x1", "user", "Go on.", 11),
        line("x3", "x2", "assistant", [{"type": "text", "text": "Gone on."}], 12, answer="a9"),
    ]
    _, [run] = read(lines(*SESSION, put_in, *more))
    given, answer = said(run)[-1]
    assert (len(run.calls), answer, given[-2:]) == (4, "Gone on.", ["No response requested.", "Go on."])


def test_what_a_command_of_claude_code_put_out_was_given_to_the_model() -> None:
    """Newer versions write it as a line of their own books; what they show the person alone the model is not given."""
    own = {"sessionId": "s-1", "timestamp": "2026-03-01T10:00:10.000Z", "isSidechain": False}
    put_out = {
        **own,
        "type": "system",
        "subtype": "local_command",
        "content": "Set model",
        "uuid": "x1",
        "parentUuid": "u9",
    }
    shown = line("x2", "x1", "user", "For you alone.", 10, isVirtual=True)
    more = [
        {**own, "type": "system", "subtype": "turn_duration", "uuid": "x3", "parentUuid": "x2"},
        line("x4", "x3", "user", "Go on.", 11),
        line("x5", "x4", "assistant", [{"type": "text", "text": "Gone on."}], 12, answer="a9"),
    ]
    _, [run] = read(lines(*SESSION, put_out, shown, *more))
    given, answer = said(run)[-1]
    assert (answer, given[-3:]) == ("Gone on.", ["As before.", "Set model", "Go on."])


def asked(at: int, text: str) -> list[dict[str, Any]]:
    return [spoken(at, "user", text), event(at, "event_msg", type="user_message", message=text)]


def test_turns_that_were_taken_back_are_in_no_later_prompt() -> None:
    """As of Esc Esc in Codex: the file keeps them, the model is not given them."""
    context = spoken(1, "user", "<environment_context>here</environment_context>")
    begun = [
        *CODEX[:2], context,
        *asked(1, "First."), spoken(2, "assistant", "One."),
        spoken(3, "developer", "Be quick."), *asked(3, "Second."), spoken(4, "assistant", "Two."),
    ]  # fmt: skip
    start = ["You code.", "<environment_context>here</environment_context>"]
    for turns, left in ((1, [*start, "First.", "One."]), (2, start), (9, start), (0, None)):
        back = event(5, "event_msg", type="thread_rolled_back", num_turns=turns)
        _, [run] = read(lines(*begun, back, *asked(6, "Third."), spoken(7, "assistant", "Three.")))
        whole = [*start, "First.", "One.", "Be quick.", "Second.", "Two."]
        assert said(run)[-1] == ([*(whole if left is None else left), "Third."], "Three."), turns
        assert [answer for _, answer in said(run)] == ["One.", "Two.", "Three."]


COMMUNICATION = {
    "author": "/root", "recipient": "/root/worker", "other_recipients": [], "content": "Count.", "trigger_turn": True,
}  # fmt: skip


@pytest.mark.parametrize(
    "item",
    [
        spoken(1, "assistant", json.dumps(COMMUNICATION)),
        event(1, "inter_agent_communication", **COMMUNICATION),
        event(
            1, "response_item", type="agent_message", author="/root", recipient="/root/worker",
            content=[{"type": "input_text", "text": "Count."}],
        ),
    ],
    ids=["message", "line", "item"],
)  # fmt: skip
def test_what_another_agent_said_to_this_one_is_no_answer_of_it(item: dict[str, Any]) -> None:
    found, [run] = read(lines(*CODEX[:2], item, spoken(2, "assistant", "One, two.")))
    assert said(run) == [(["You code.", "Count."], "One, two.")]
    assert found.left_out == {}


def test_a_word_of_another_agent_that_is_encrypted_stays_in_its_place() -> None:
    """Of a conversation with it no data set is made."""
    sealed = {"type": "encrypted_content", "encrypted_content": "x"}
    item = event(1, "response_item", type="agent_message", author="/root", recipient="/root/worker", content=[sealed])
    _, [run] = read(lines(*CODEX[:2], item, spoken(3, "assistant", "Gone.")))
    assert [message.parts for message in run.calls[0].call.messages[1:]] == [(OtherPart(sealed),)]


def begun(**more: Any) -> list[dict[str, Any]]:
    """A session's first lines, with what newer versions say in them."""
    meta = {**CODEX[0], "payload": {**CODEX[0]["payload"], **more}}
    return [meta, CODEX[1]]


def test_a_file_that_goes_on_from_another_is_a_run_that_lacks_its_beginning() -> None:
    """As of a thread that was forked, or whose file was full: of both it has the lines from a place on."""
    first = [*begun(), *asked(1, "First."), spoken(2, "assistant", "One.")]
    base = {"thread_id": "c-1", "end_ordinal_exclusive": 5, "end_byte_offset": 900}
    later = [*begun(history_base=base), *asked(3, "Second."), spoken(4, "assistant", "Two.")]
    records = [*read_file(lines(*first), "one").records, *read_file(lines(*later), "two").records]
    found = {said(run)[0][1]: (run.incomplete, len(run.calls)) for run in runs_of(records)}
    assert found == {"One.": ("", 1), "Two.": ("interrupted: 5 lines of the session missing", 1)}


def test_what_a_sub_agent_inherited_is_context() -> None:
    """Its answers are the parent's, whose file has them."""
    inherited = [
        *asked(1, "First."),
        spoken(2, "assistant", "One."),
        *asked(3, "Count."),
        spoken(4, "assistant", "Two."),
    ]
    numbered = [{**one, "ordinal": at} for at, one in enumerate([*begun(subagent_history_start_ordinal=5), *inherited])]
    _, [run] = read(lines(*numbered))
    assert said(run) == [(["You code.", "First.", "One.", "Count."], "Two.")]


def at(second: int, *copied: dict[str, Any]) -> list[dict[str, Any]]:
    """Lines as a fork writes them again: at once."""
    return [{**one, "timestamp": f"2026-03-01T10:00:{second}.{place:03}Z"} for place, one in enumerate(copied)]


def forked(id: str, **more: Any) -> dict[str, Any]:
    return event(0, "session_meta", id=id, base_instructions={"text": "You code."}, **more)


@pytest.mark.parametrize("says_so", [True, False])
def test_what_an_older_fork_repeats_is_context(says_so: bool) -> None:
    """Its lines have the time of the fork, and the lines of those above it stand among them."""
    first = [*begun(), *asked(1, "First."), spoken(2, "assistant", "One.")]
    own = forked("c-2", **({"forked_from_id": "c-1"} if says_so else {}))
    copied = at(30, own, *first, forked("c-0"))
    more = [
        *asked(33, "Otherwise."),
        spoken(39, "assistant", "Two."),
        *asked(39, "Again."),
        spoken(39, "assistant", "3"),
    ]
    records = [*read_file(lines(*first), "one").records, *read_file(lines(*copied, *more), "two").records]
    runs = {run.metadata["session"]: run for run in runs_of(records)}
    assert said(runs["c-1"]) == [(["You code.", "First."], "One.")]
    assert said(runs["c-2"]) == [
        (["You code.", "First.", "One.", "Otherwise."], "Two."),
        (["You code.", "First.", "One.", "Otherwise.", "Two.", "Again."], "3"),
    ]
    assert [run.incomplete for run in runs.values()] == ["", ""]
    found = read_file(lines(*copied, *first), "three")
    assert found.left_out == {"sessions that only repeat another": 1}
    assert [run.metadata["session"] for run in runs_of(found.records)] == ["c-1"]


def test_a_session_in_which_no_line_is_a_second_later_is_no_copy() -> None:
    _, [run] = read(lines(*at(30, *begun(), *asked(1, "First."), spoken(2, "assistant", "One."))))
    assert said(run) == [(["You code.", "First."], "One.")]


def test_what_a_branched_session_copied_is_context() -> None:
    """As of `/branch` in Claude Code: the answers are those of the session that it left."""
    copied = [{**one, "sessionId": "s-2", "forkedFrom": {"sessionId": "s-1", "messageUuid": one["uuid"]}}
              for one in SESSION if "uuid" in one]  # fmt: skip
    more = [
        line("x2", "u9", "user", "Otherwise.", 11, sessionId="s-2"),
        line("x3", "x2", "assistant", [{"type": "text", "text": "So."}], 12, answer="a9", sessionId="s-2"),
    ]
    _, [run] = read(lines(*copied, *more))
    [(given, answer)] = said(run)
    assert (answer, given[-3:], run.incomplete) == ("So.", ["Again.", "As before.", "Otherwise."], "")


def test_what_is_said_in_a_long_session_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prompt repeats the ones before it: read again for each, a day's session took many minutes."""
    often: list[dict[str, Any]] = []
    read_one = claude_code.in_openais_form
    monkeypatch.setattr(claude_code, "in_openais_form", lambda message: often.append(message) or read_one(message))
    turns, session = 50, [line("u0", None, "user", "Start.", 1)]
    for at in range(turns):
        session.append(line(f"a{at}", session[-1]["uuid"], "assistant", [use(f"t{at}")], 2, answer=f"m{at}"))
        session.append(line(f"b{at}", f"a{at}", "user", [done(f"t{at}", f"result {at}")], 3))
    _, [run] = read(lines(*session))
    assert sorted(len(placed.call.messages) for placed in run.calls) == [2 * at + 1 for at in range(turns)]
    assert len(often) <= 4 * turns


@pytest.mark.parametrize("prompt", ["And B.", [{"type": "text", "text": "And B."}]])
def test_what_the_user_said_while_claude_code_worked_was_given_to_the_model(prompt: Any) -> None:
    """It stands in an attachment, the time of which is that at which it was typed."""
    queued = {"type": "queued_command", "prompt": prompt, "commandMode": "prompt"}
    asked = line("x1", "u9", "user", "Read A.", 10)
    more = [
        line("x2", "x1", "assistant", [use("A")], 11, answer="a8"),
        line("x3", "x2", "user", [done("A", "of A")], 13),
        line("x4", "x3", "attachment", "", 12, attachment=queued),
        line("x5", "x4", "attachment", "", 13, attachment={"type": "todo_reminder", "content": []}),
        line("x6", "x5", "assistant", [{"type": "text", "text": "Both."}], 14, answer="a9"),
    ]
    for one in more[2:4]:
        del one["message"]
    found, [run] = read(lines(*SESSION, asked, *more))
    last = run.calls[-1].call
    assert [(one.role, one.text) for one in last.messages[-2:]] == [("tool", ""), ("user", "And B.")]
    assert (last.choices[0].message.text, found.left_out) == ("Both.", {"attachments": 1})


def test_sub_agents_whose_calls_are_in_files_of_their_own_are_counted_where_they_are_not_there() -> None:
    started = line(
        "x1", "u9", "user", [done("A", "found")], 10, toolUseResult={"agentId": "ag1", "status": "completed"}
    )
    found, _ = read(lines(*SESSION, started))
    assert found.left_out == {"sub-agents, unless their own files (agent-*.jsonl) are imported too": 1}
    of_it = line("y1", None, "user", "Find.", 9, isSidechain=True, agentId="ag1")
    assert read(lines(*SESSION, started, of_it))[0].left_out == {}


@pytest.mark.parametrize("kind", ["Explore", None])
def test_a_sub_agent_lasts_as_long_as_its_calls(kind: str | None) -> None:
    of_it = [
        line("y1", None, "user", "Find.", 10, isSidechain=True, agentId="ag1"),
        line("y2", "y1", "assistant", [use("A")], 12, answer="b1", isSidechain=True, agentId="ag1"),
        line("y3", "y2", "user", [done("A", "found")], 14, isSidechain=True, agentId="ag1"),
        line(
            "y4", "y3", "assistant", [{"type": "text", "text": "."}], 19, answer="b2", isSidechain=True, agentId="ag1"
        ),
    ]
    for one in of_it[1::2]:
        one |= {"attributionAgent": kind} if kind else {}
    _, [run] = read(lines(*SESSION, *of_it))
    agent = run.agents[1]
    calls = [placed.call for placed in run.calls if placed.agent_id == agent.id]
    assert (agent.name, agent.end_ns - agent.start_ns) == (kind or "sub-agent", 9_000_000_000)
    assert (agent.start_ns, agent.end_ns) == (calls[0].start_ns, calls[-1].end_ns)


def test_what_went_on_from_a_summary_is_a_compaction() -> None:
    """Both programs say so; neither kept a message of those before."""
    boundary = {**line("x1", None, "system", "", 10), "subtype": "compact_boundary", "logicalParentUuid": "u9"}
    claude = [
        boundary,
        line("x2", "x1", "user", "This session is being continued.", 10, isCompactSummary=True),
        line("x3", "x2", "assistant", [{"type": "text", "text": "On."}], 11, answer="a8"),
        line("x4", "x3", "user", "Go on.", 12),
        line("x5", "x4", "assistant", [{"type": "text", "text": "Gone on."}], 13, answer="a9"),
    ]
    codex = [
        event(10, "compacted", message="A summary."),
        spoken(11, "assistant", "On."),
        *asked(12, "Go on."),
        spoken(13, "assistant", "Gone on."),
    ]
    for session in ([*SESSION, *claude], [*CODEX, *codex]):
        _, [run] = read(lines(*session))
        found = [(placed.relation.value, placed.evidence, placed.confidence) for placed in run.calls[-2:]]
        assert found == [("compaction", "the sender says so", 1.0), ("extends", "", 1.0)]
