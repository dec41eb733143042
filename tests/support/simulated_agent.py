"""A simulated agent with a toy tokenizer: spans as capture writes them, made without any server.

Every message is rendered as its own run of token ids, an assistant's after the generation mark 1, so that a call
which goes on from another's answer has a prompt that begins with that call's prompt and sampled ids.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids

T0 = 1_790_000_000_000_000_000
MARK = 1

JsonMessage = dict[str, Any]


def hexid(text: str, digits: int = 16) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def message(role: str, text: str | None = None, *, calls: tuple[tuple[str, str, str], ...] = ()) -> JsonMessage:
    """`calls` are (id, name, arguments)."""
    parts: list[dict[str, Any]] = [{"type": "text", "content": text}] if text is not None else []
    parts += [{"type": "tool_call", "id": id, "name": name, "arguments": arguments} for id, name, arguments in calls]
    return {"role": role, "parts": parts}


def result(id: str | None, response: Any) -> JsonMessage:
    return {"role": "tool", "parts": [{"type": "tool_call_response", "id": id, "response": response}]}


def tokens(item: JsonMessage) -> list[int]:
    """The ids of one message without the generation mark."""
    words = json.dumps(item, sort_keys=True).split()
    return [2 + int(hexid(word, 6), 16) for word in words] + [2]


def prompt_tokens(messages: list[JsonMessage]) -> list[int]:
    ids: list[int] = []
    for item in messages:
        ids += ([MARK] if item["role"] == "assistant" else []) + tokens(item)
    return [*ids, MARK]


@dataclass
class Run:
    """One decorated run in the making; `spans` has its root last."""

    id: str = "run"
    entry: str = "agent:run"
    scenario: str | None = None
    policy: str = "policy@1"
    spans: list[SpanRow] = field(default_factory=list)

    @property
    def trace_id(self) -> str:
        return hexid(self.id, 32)

    @property
    def root_id(self) -> str:
        return hexid(self.id + "root")

    def span_id(self, name: str) -> str:
        return hexid(self.id + name)

    def chat(
        self,
        name: str,
        messages: list[JsonMessage],
        *answers: JsonMessage,
        at: int,
        until: int | None = None,
        parent: str | None = None,
        flow: str | None = "E0",
        above: str | None = None,
        policy: str | None = None,
        logprob: float | None = -0.5,
        **extra: Any,
    ) -> JsonMessage:
        """Adds a call from microsecond `at` to `until`; returns its first answer. `extra` replaces attributes by
        name in semconv; None leaves one out."""
        attributes: dict[str, Any] = {
            semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
            semconv.TRAJECTORY_ID: self.id,
            semconv.REQUEST_MODEL: "policy:latest",
            semconv.POLICY_VERSION: policy or self.policy,
            semconv.INPUT_MESSAGES: json.dumps(messages),
            semconv.OUTPUT_MESSAGES: json.dumps([{**answer, "finish_reason": "stop"} for answer in answers]),
            semconv.PROMPT_TOKEN_IDS: encode_token_ids(prompt_tokens(messages)),
            semconv.EXECUTION_ID: flow,
            semconv.EXECUTION_PARENT_ID: above,
        }
        for index, answer in enumerate(answers):
            suffix = f".{index}" if index else ""
            ids = tokens(answer)
            attributes[semconv.TOKEN_IDS + suffix] = encode_token_ids(ids)
            attributes[semconv.LOGPROBS + suffix] = encode_logprobs([logprob] * len(ids))
        attributes.update({getattr(semconv, key): value for key, value in extra.items()})
        self._add(name, "chat policy", parent or self.root_id, at, at + 5 if until is None else until, 3, attributes)
        return answers[0] if answers else {}

    def tool(self, name: str, tool_name: str, *, at: int, until: int, parent: str | None = None, **extra: Any) -> str:
        """Adds an `execute_tool` span; returns its span id."""
        attributes = {
            semconv.OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
            semconv.TRAJECTORY_ID: self.id,
            semconv.TOOL_NAME: tool_name,
            **{getattr(semconv, key): value for key, value in extra.items()},
        }
        return self._add(name, f"execute_tool {tool_name}", parent or self.root_id, at, until, 1, attributes)

    def agent(self, name: str, *, at: int, until: int, parent: str | None = None, **extra: Any) -> str:
        """Adds a decorated sub-agent's span; returns its span id."""
        attributes = {
            semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
            semconv.TRAJECTORY_ID: self.id,
            semconv.AGENT_NAME: name,
            **{getattr(semconv, key): value for key, value in extra.items()},
        }
        return self._add(name, f"invoke_agent {name}", parent or self.root_id, at, until, 1, attributes)

    def update(self, name: str, *, at: int, parent: str | None = None, **extra: Any) -> str:
        """Adds what `update` says in a process that joined the run, as a span of its own; returns its span id."""
        attributes = {
            semconv.TRAJECTORY_ID: self.id,
            semconv.TRAJECTORY_SPAN_COUNT: 0,
            **{getattr(semconv, key): value for key, value in extra.items()},
        }
        return self._add(name, "update", parent or self.root_id, at, at, 1, attributes)

    def end(self, *, at: int = 1000, **extra: Any) -> list[SpanRow]:
        """Adds the root; returns all spans."""
        attributes = {
            semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
            semconv.TRAJECTORY_ID: self.id,
            semconv.AGENT_NAME: "planner",
            semconv.ENTRY: self.entry,
            semconv.SCENARIO: self.scenario,
            semconv.TRAJECTORY_SPAN_COUNT: sum(semconv.TRAJECTORY_SPAN_COUNT not in s.attributes for s in self.spans),
            semconv.EXECUTION_ID: "E0",
            **{getattr(semconv, key): value for key, value in extra.items()},
        }
        self._add("root", "invoke_agent planner", None, 0, at, 1, attributes)
        return self.spans

    def _add(
        self, name: str, title: str, parent: str | None, at: int, until: int, kind: int, attributes: dict[str, Any]
    ) -> str:
        self.spans.append(
            SpanRow(
                trace_id=self.trace_id,
                span_id=self.span_id(name),
                parent_span_id=parent,
                name=title,
                start_ns=T0 + at * 1000,
                end_ns=T0 + until * 1000,
                kind=kind,
                attributes={key: value for key, value in attributes.items() if value is not None},
            )
        )
        return self.span_id(name)


def research_run(
    id: str = "run",
    scenario: str | None = None,
    questions: tuple[str, str] = ("a", "b"),
    policy: str = "policy@1",
) -> list[SpanRow]:
    """A planner that starts two undecorated sub-agents in parallel, each with a tool, and merges their answers."""
    run = Run(id, scenario=scenario, policy=policy)
    history = [message("system", "You plan."), message("user", f"merge {scenario}")]
    asked = tuple((f"c{i}", "research", json.dumps({"q": q})) for i, q in enumerate(questions))
    history.append(run.chat("m1", history, message("assistant", calls=asked), at=10))
    for i, question in enumerate(questions):
        sub = [message("system", "You research."), message("user", question)]
        lookup = message("assistant", calls=((f"{id}-t{i}", "lookup", "{}"),))
        sub.append(run.chat(f"s{i}1", sub, lookup, at=20 + i, flow=f"E{i + 1}", above="E0"))
        sub.append(result(f"{id}-t{i}", f"page {question}"))
        run.chat(f"s{i}2", sub, message("assistant", f"answer {question}"), at=30 + i, flow=f"E{i + 1}", above="E0")
        history.append(result(f"c{i}", f"answer {question}"))
    history.append(run.chat("m2", history, message("assistant", f"merged {scenario}"), at=50))
    history.append(message("user", "shorter"))
    run.chat("m3", history, message("assistant", "short"), at=60)
    return run.end(ENTRY_ARGUMENTS=json.dumps({"scenario": scenario}), ENTRY_RESULT='"short"')
