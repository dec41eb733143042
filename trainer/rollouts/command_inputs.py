"""Pure: a command and inputs become scenarios, each with the words of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from arttrace.records.message import canonical_json
from arttrace.records.rollout import COMMAND, Command
from arttrace.system.errors import RolloutError
from arttrace.trajectories.groups import key_of
from trainer.rollouts.replay import RecordedInput, ReplayPlan

_FIELD = re.compile(r"\{(\w+)\}")


def command_inputs(
    program: Sequence[str],
    inputs: Sequence[dict[str, Any]],
    *,
    workspace: Path | None = None,
    held_out: bool = False,
) -> list[RecordedInput]:
    """The program on each of the inputs. `{name}` in one of its words is the input's field of that name, a text as it
    is, else as JSON; what is no field's name stays as it is.

    Args:
        program: The words of the program.
        inputs: The fields of each input by name.
        workspace: The directory of which each run gets a copy to work in.
        held_out: Whether nothing is trained on these runs.

    Raises:
        RolloutError: A word names a field that only other inputs have, or no word names a field.
    """
    known = {name for fields in inputs for name in fields}
    used = known.intersection(name for word in program for name in _FIELD.findall(word))
    if inputs and not used:
        named = ", ".join(f"{{{name}}}" for name in sorted(known)) or "none, as the inputs have no fields"
        raise RolloutError(
            f"no field of the inputs stands in the command {' '.join(program)}",
            f"Write one where it belongs: {named}. Each run would be the same.",
        )
    name = Path(program[0]).name
    found = []
    for number, fields in enumerate(inputs, 1):
        if missing := sorted(used - fields.keys()):
            raise RolloutError(f"input {number} has no field {missing[0]!r}, which the command names")
        words = tuple(_filled_in(word, fields) for word in program)
        given = Command(words, None if workspace is None else str(workspace.absolute()))
        key = key_of(group=None, scenario=None, entry=name, arguments=fields)
        found.append(RecordedInput(COMMAND + name, fields, group=key, held_out=held_out, command=given))
    return found


def with_start(plan: ReplayPlan, starter: Sequence[str], copies: str) -> ReplayPlan:
    """The plan with commands that `starter` starts, and whose workspaces are copied below `copies`."""
    scenarios = []
    for one in plan.scenarios:
        assert one.command is not None
        command = Command((*starter, *one.command.words), one.command.workspace, copies)
        scenarios.append(replace(one, command=command))
    return replace(plan, scenarios=tuple(scenarios))


def _filled_in(word: str, fields: dict[str, Any]) -> str:
    def of(match: re.Match[str]) -> str:
        if match[1] not in fields:
            return match[0]
        value = fields[match[1]]
        return value if isinstance(value, str) else canonical_json(value).decode()

    return _FIELD.sub(of, word)
