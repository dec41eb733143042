"""What a person says of a run: a reward, a note, and both taken back; all are records of rewards by "person"."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from msgspec.structs import replace

from arttrace.records.reward import PERSON, Reward, reward_clock
from arttrace.records.trajectory import Trajectory

MAX_NOTE = 20_000


def verdict_id(run_id: str, agent_id: str | None) -> str:
    """One verdict of a person per run, or agent of it: the later takes the place of the earlier."""
    return f"person:{run_id}:{agent_id or ''}"


def given(run: Trajectory, form: Mapping[str, str]) -> Reward:
    """The record of what a form says. Raises ValueError where it says nothing, or a number that is none."""
    note = form.get("note", "").strip()
    if len(note) > MAX_NOTE:
        raise ValueError(f"a note has at most {MAX_NOTE} characters, this one {len(note)}")
    agent_id = form.get("agent") or None
    if agent_id is not None and agent_id not in {agent.id for agent in run.agents}:
        raise ValueError("this run has no such agent")
    text = form.get("value", "").strip()
    if not text:
        if not note:
            raise ValueError("give a number, a note, or both")
        return Reward(
            id=_note_id(run.id, agent_id, note),
            trajectory_id=run.id,
            value=0.0,
            name="note",
            source=PERSON,
            agent_id=agent_id,
            explanation=note,
            time_ns=reward_clock.now_ns(),
            counts=False,
        )
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    id = verdict_id(run.id, agent_id)
    return Reward(
        id=id,
        trajectory_id=run.id,
        value=value,
        name=PERSON,
        source=PERSON,
        agent_id=agent_id,
        explanation=note,
        time_ns=reward_clock.now_ns(after=_time_of(run, id)),
    )


def taken_back(run: Trajectory, id: str) -> Reward:
    """The record that takes a reward or a note of a person back. Raises ValueError where there is none."""
    found = next((one for one in (*run.rewards, *run.notes) if one.id == id and one.source == PERSON), None)
    if found is None:
        raise ValueError("there is nothing to take back")
    return replace(found, counts=False, explanation="", time_ns=reward_clock.now_ns(after=found.time_ns))


def last_said(run: Trajectory) -> Reward | None:
    """What a person said last of a run."""
    own = [one for one in (*run.rewards, *run.notes) if one.source == PERSON]
    return max(own, key=lambda one: one.time_ns, default=None)


def _note_id(run_id: str, agent_id: str | None, note: str) -> str:
    """The same note sent twice is one."""
    said = "\0".join((run_id, agent_id or "", note))
    return f"note:{hashlib.blake2b(said.encode(), digest_size=16).hexdigest()}"


def _time_of(run: Trajectory, id: str) -> int:
    return max((one.time_ns for one in run.rewards if one.id == id), default=0)
