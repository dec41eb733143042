"""What verl dumps of rollouts and validations (`trainer.rollout_data_dir`, `trainer.validation_data_dir`). Pure.

A line is what one call or loop was given and gave, as decoded text without special tokens. Newer versions name it by
`uid`, PROMPT_SESSION_OUTPUT: outputs of a session, which stand behind each other, are calls of one run, whose reward is
that of the last, and sessions of a prompt are a group. Without a `uid`, equal prompts with equal ground truth in a step
are one. Only a validation has `reward` beside `score`, or step 0: its runs are held out. A run with text that may hold
what the model was told, and cannot be taken apart, is not to be trained on. Source: verl 0.9, ppo/ray_trainer.py and
ppo/v1/trainer_base.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from arttrace.formats.content_ids import ContentIds
from arttrace.formats.imported_run import BEHIND, ImportedRun, hashed, lacks
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.systems.rollouts.printed_chats import prompt_of, turns_of
from arttrace.records import semconv

KIND = "verl rollouts"
_NUMBER = re.compile("[0-9]{1,6}")
_TEXTS = ("input", "output")
_READ = frozenset({*_TEXTS, "gts", "score"})
SEVERAL_TURNS = "texts of several turns, each kept as one, whose runs are not to be trained on"

Line = dict[str, Any]


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a line of a dump."""
    return all(isinstance(item.get(name), str) for name in _TEXTS) and "score" in item and type(item.get("step")) is int


class VerlRollouts:
    """The rollouts of one file. Lines of a session are kept until it ends."""

    def __init__(self, source: str, ids: ContentIds) -> None:
        self._source = source
        self._ids = ids
        self._session = ("", "")
        self._outputs: dict[int, Line] = {}
        self._unread = 0
        self.count = 0

    def take(self, item: Line, place: str) -> Iterator[Read]:
        """The rollout of the line, or the session that this one ends."""
        prompt, session, number = _named(item.get("uid"))
        if number is None:
            ended = self.finish()
            self.count += 1
            key = self._ids.next(self._source, [place, item])
            same = hashed(16, item["input"], item.get("gts"))
            group = f"{self._source}/{same}/{'validation' if _is_validation(item) else 'step'} {item['step']}"
            yield from ended
            yield from self._run(key, group, [item])
            return
        ended = iter(()) if self._session == (prompt, session) else self.finish()
        self._session = prompt, session
        self._outputs[number] = item
        yield from ended

    def miss(self) -> None:
        """A line of the file cannot be read: it may be one of the session."""
        self._unread = 1 if self._outputs else 0

    def finish(self) -> Iterator[Read]:
        """The session whose lines are kept."""
        (prompt, session), outputs, unread = self._session, self._outputs, self._unread
        self._session, self._outputs, self._unread = ("", ""), {}, 0
        if not outputs:
            return iter(())
        self.count += 1
        missing = max(max(outputs) + 1 - len(outputs), unread)
        lines = [outputs[number] for number in sorted(outputs)]
        return self._run(f"{prompt}_{session}", prompt, lines, missing)

    def _run(self, key: str, group: str, lines: list[Line], missing: int = 0) -> Iterator[Read]:
        run = ImportedRun(self._source, key)
        last = lines[-1]
        tags = [semconv.HELD_OUT_TAG] if _is_validation(last) else []
        result: Any = None
        for number, line in enumerate(lines):
            prompt = prompt_of(line["input"])
            turns = turns_of(line["output"], prompt)
            history = list(prompt.messages)
            places = [at for at, message in enumerate(turns.messages) if message["role"] == "assistant"]
            for at, message in enumerate(turns.messages):
                if message["role"] == "assistant":
                    yield run.call([number, at], history, [message], offered=prompt.tools)
                    result = message["content"]
                history.append(message)
            yield from (LeftOutItem(BEHIND) for _ in turns.messages[places[-1] + 1 :])
            uncertain = [part for part in (prompt, turns) if not part.are_certain]
            yield from (LeftOutItem(SEVERAL_TURNS) for _ in uncertain)
            if uncertain and semconv.NOT_TRAINABLE_TAG not in tags:
                tags.append(semconv.NOT_TRAINABLE_TAG)
        beside = {name: value for name, value in last.items() if name not in _READ and value is not None}
        truth = {"ground_truth": last["gts"]} if last.get("gts") is not None else {}
        yield run.end(
            task=hashed(16, lines[0]["input"], last.get("gts")),
            metadata={**beside, **truth},
            result=result,
            attributes={semconv.GROUP: group, semconv.TAGS: tags or None, **lacks(missing)},
        )
        yield from run.rewards({"reward": last["score"]})


def _named(uid: Any) -> tuple[str, str, int | None]:
    """The prompt, the session and the number of the output; no number where the line has no such name."""
    prompt, *numbers = uid.rsplit("_", 2) if isinstance(uid, str) else ("",)
    if not prompt or len(numbers) != 2 or not all(_NUMBER.fullmatch(one) for one in numbers):
        return "", "", None
    return prompt, numbers[0], int(numbers[1])


def _is_validation(line: Line) -> bool:
    return "reward" in line or line["step"] == 0
