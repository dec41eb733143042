"""The stand-in judge: a script that follows RULER's protocol, for machines without a real judge model.

It sees what any judge sees, the trajectories in the prompt, and knows no right answers. Its rule: a price counts when
the run's own evidence supports it (a service that was asked about this item called it valid, and the agent that asked
passed it on unchanged), and the final answer counts when it says what those agents, the leaves of the run's tree,
reported.

`python -m trainer.demo.stand_in_judge` serves it, to try `arttrace score` on runs of the examples without a key.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import click

from arttrace.records.values.lenient_json import json_object, read_json
from arttrace.records.values.nesting import UNREADABLE
from arttrace.rewards.judge_prompt import parse_prompt
from arttrace.system.errors import ServingError
from trainer.demo import stand_in

NAME = "stand-in-judge"
_EVIDENCE_WEIGHT = 0.7
_ANSWER_WEIGHT = 0.3
_VALID_PRICE = re.compile(r"price (\d+) valid")

Document = Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]


def reply(body: Mapping[str, Any]) -> dict[str, Any]:
    """The assistant message for a judge request: a score per trajectory. Raises ValueError for another request."""
    documents = parse_prompt(str(body["messages"][-1]["content"]))
    scores = []
    for id, document in documents.items():
        score, explanation = judge(document)
        scores.append({"trajectory_id": id, "explanation": explanation, "score": score})
    return {"role": "assistant", "content": json.dumps({"scores": scores})}


def judge(document: Document) -> tuple[float, str]:
    """Score in 0..1 and explanation of one trajectory's document, as `parse_prompt` gives it."""
    planner = next((agent for agent in document["agents"] if agent["parent"] is None), None)
    if planner is None or not planner["histories"]:
        return 0.0, "Nothing was done."
    items = _first_request(planner["histories"][0]["messages"]).split(" and ")
    parents = {agent["parent"] for agent in document["agents"]}
    checks = [
        history["messages"]
        for agent in document["agents"]
        if agent["id"] not in parents
        for history in agent["histories"]
    ]
    reports = {_first_request(messages): _last_answer(messages) for messages in checks}
    supported = {_first_request(messages) for messages in checks if _is_supported(messages)}
    notes = [f"{item}: {_note_on(item, reports, supported)}." for item in items]
    faithful = document["result"] == " and ".join(reports.get(item, "") for item in items)
    notes.append("The answer says what was reported." if faithful else "The answer is not what was reported.")
    score = _EVIDENCE_WEIGHT * sum(item in supported for item in items) / len(items) + _ANSWER_WEIGHT * faithful
    return round(score, 4), " ".join(notes)


def _note_on(item: str, reports: Mapping[str, str], supported: set[str]) -> str:
    if item in supported:
        return "reported on valid evidence"
    return "reported without valid evidence" if item in reports else "never checked"


def _is_supported(messages: Messages) -> bool:
    """Whether a checker's report is its item with the price that its last tool result calls valid, and that service was
    asked about this item: a policy learned to ask for the price of another one that the service knows."""
    results = [result for message in messages for result in message.get("tool_results", ())]
    found = _VALID_PRICE.fullmatch(str(results[-1]["content"])) if results else None
    item = _first_request(messages)
    if found is None or _last_answer(messages) != f"{item} {found[1]}":
        return False
    asked = {call["id"]: call["arguments"] for message in messages for call in message.get("tool_calls", ())}
    return item in _arguments(str(asked.get(results[-1]["id"]))).values()


def _arguments(text: str) -> dict[str, Any]:
    with contextlib.suppress(*UNREADABLE):
        return json_object(read_json(text))
    return {}


def _first_request(messages: Messages) -> str:
    return next((str(message.get("content", "")) for message in messages if message["role"] == "user"), "")


def _last_answer(messages: Messages) -> str:
    last = messages[-1] if messages else {"role": ""}
    return str(last.get("content", "")) if last["role"] == "assistant" else ""


@click.command()
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port on 127.0.0.1.  [default: any free one]")
def main(port: int) -> None:
    """Serve the stand-in judge until Ctrl-C: a script, no model, that scores runs of the example agents."""
    try:
        with stand_in.serve(reply, NAME, port) as url, contextlib.suppress(KeyboardInterrupt):
            click.echo(
                "This is a stand-in for a judge: a script that can score the example agents, no model. Ctrl-C stops "
                f"it.\n  arttrace score --judge openai/{NAME} --judge-base-url {url}"
            )
            threading.Event().wait()
    except ServingError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
