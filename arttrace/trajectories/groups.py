"""Trajectories that attempted the same thing become groups that can be compared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from arttrace.records.group import Group, is_new_key
from arttrace.records.message import canonical_json
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories.decoding.attribute_values import text

REPLAY_OF = "replay_of"
"""Under this name the metadata of a replayed run has the recorded run's id."""

_READABLE = 60
_REDACTED = re.compile(r"\[redacted, \d+ characters\]")
_ADDRESS = re.compile(r"(<[^<>]*) at 0x[0-9a-fA-F]+>")


def key_of(*, group: str | None, scenario: str | None, entry: str, entry_name: str = "", arguments: Any) -> str | None:
    """The group's key from what the root span says; None when it says nothing that could be compared.

    The explicit group, else the scenario, else the entry point with its arguments in canonical JSON, in a form that
    stays readable while it is short. The entry point's name counts where it was recorded: it is the same however its
    program was started. An argument that was recorded as Python shows an object counts by its type, not by where it lay
    in memory.
    Runs of a function whose arguments were not kept cannot be compared by them: they have no key.
    """
    return group or scenario or _key_by_arguments(entry, entry_name, _in_key(arguments))


_NO_ARGUMENTS = "null"


def _key_by_arguments(entry: str, entry_name: str, arguments: str | None) -> str | None:
    if arguments is None or (arguments == _NO_ARGUMENTS and ":" in entry_name) or not (entry_name or entry):
        return None
    return f"{entry_name or entry} {arguments}"


def _in_key(arguments: Any) -> str | None:
    """What a key has of arguments; None where they were redacted."""
    if _is_redacted(arguments):
        return None
    document = canonical_json(_without_addresses(arguments))
    if len(document) <= _READABLE:
        return document.decode()
    return f"#{hashlib.blake2b(document, digest_size=8).hexdigest()}"


def _is_redacted(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return any(map(_is_redacted, value)) if isinstance(value, list) else _REDACTED.fullmatch(str(value)) is not None


def _without_addresses(value: Any) -> Any:
    if isinstance(value, str):
        return _ADDRESS.sub(r"\1>", value) if value.startswith("<") else value
    if isinstance(value, list):
        return [_without_addresses(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_addresses(item) for name, item in value.items()}
    return value


def replayed(metadata: Mapping[str, Any]) -> str | None:
    """The id of the recorded run that a run with this metadata replays; None where it is no replay."""
    return text(metadata.get(REPLAY_OF))


def group_key(trajectory: Trajectory) -> str:
    """The key of a trajectory's group: the one that a later grouping gave it, else its own."""
    return trajectory.regrouped or own_key(trajectory)


def own_key(trajectory: Trajectory) -> str:
    """The key that a trajectory has by itself; one that says nothing of itself is a group of its own, named by its
    id."""
    key = key_of(
        group=trajectory.group,
        scenario=trajectory.scenario,
        entry=trajectory.entry,
        entry_name=trajectory.entry_name,
        arguments=trajectory.arguments,
    )
    return key or trajectory.id


def task_key(trajectory: Trajectory) -> str:
    """What a trajectory attempted, the same in all groups that attempted it: its scenario, else the key of its group;
    in place of a new key the entry point with its arguments."""
    if trajectory.scenario:
        return trajectory.scenario
    if trajectory.regrouped or not is_new_key(trajectory.group or ""):
        return group_key(trajectory)
    return own_key(msgspec.structs.replace(trajectory, group=None))


def group_trajectories(trajectories: Iterable[Trajectory]) -> list[Group]:
    """Groups in order of key, each with its trajectories in order of start (ties by id)."""
    members: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        members.setdefault(group_key(trajectory), []).append(trajectory)
    return [
        Group(key, tuple(sorted(found, key=lambda trajectory: (trajectory.start_ns, trajectory.id))))
        for key, found in sorted(members.items())
    ]


# --- by another criterion ------------------------------------------------------------------------------------

BY = ("entry", "input", "argument.NAME", "metadata.NAME", "tag", "tag.NAME")
"""What runs can be grouped by: the entry point with its arguments, what the user said first, an argument's value, a
value of the metadata, all tags together, the tags `NAME:...` or `NAME=...`."""


def keys_by(by: str, runs: Iterable[Trajectory]) -> dict[str, str | None]:
    """The group key of each run (by id) by another criterion; None for a run that says nothing of it.

    "entry" joins runs of one function that older versions recorded under the path or the module that loaded it, and
    replays that were kept apart from the recorded run; a group or scenario that the user named stays. Each run is taken
    once and not kept in memory. Raises ValueError for a criterion that is none of `BY`.
    """
    kind, _, name = by.partition(".")
    if by == "input":
        return {run.id: _shown(_first_input(run)) for run in runs}
    if kind in ("argument", "metadata") and name:
        return {run.id: _shown(_value_at(run.arguments if kind == "argument" else run.metadata, name)) for run in runs}
    if by == "tag" or (kind == "tag" and name):
        prefixes = (f"{name}:", f"{name}=")
        return {
            run.id: _shown(", ".join(sorted({tag for tag in run.tags if by == "tag" or tag.startswith(prefixes)})))
            for run in runs
        }
    if by != "entry":
        raise ValueError(f"{by!r} is none of {', '.join(BY)}")
    entries = [_Entry.of(run) for run in runs]
    names = {one.name or one.source for one in entries if one.name or _MODULE.fullmatch(one.source)}
    own = {one.id: one.key(names) for one in entries}
    for one in entries:
        if one.replay_of in own:
            own[one.id] = own[one.replay_of]
    return own


_MODULE = re.compile(r"\w+(\.\w+)*:[\w.<>]+")
"""An entry point that was recorded by the module that has it: this is its name as well, or the end of it."""


class _Entry(msgspec.Struct, frozen=True):
    """What a key by the entry point is made of; `named` is the group or scenario that the user gave."""

    id: str
    named: str | None
    source: str
    name: str
    arguments: str | None
    replay_of: str | None

    @classmethod
    def of(cls, run: Trajectory) -> _Entry:
        named = (None if replayed(run.metadata) else run.group) or run.scenario
        arguments = None if named else _in_key(run.arguments)
        return cls(run.id, named, run.entry, run.entry_name, arguments, replayed(run.metadata))

    def key(self, names: Iterable[str]) -> str | None:
        return self.named or _key_by_arguments(
            self.source, self.name or _name_of_source(self.source, names), self.arguments
        )


def _name_of_source(entry: str, names: Iterable[str]) -> str:
    """The name of an entry point of which only the source was recorded: the longest known name that it ends with or
    that ends with it, else its file's name. Of names of several packages none is taken."""
    path, colon, function = entry.rpartition(":") if ":" in entry.rpartition("/")[2] else (entry, "", "")
    if not colon and not path.endswith(".py"):
        return entry
    source = path.removesuffix(".py").strip("/").replace("/", ".")
    known = [name for name in names if name.partition(":")[1:] == (colon, function)]
    fitting = [name for name in known if f".{source}".endswith(f".{name.partition(':')[0]}")]
    own = source.rpartition(".")[2] if path.endswith(".py") else source
    name = max(fitting, key=len, default=f"{own}{colon}{function}")
    if path.endswith(".py") and name not in known:
        return name
    longer = [other for other in known if f".{other}".endswith(f".{name}")]
    longest = max(longer, key=len, default=name)
    return longest if all(f".{longest}".endswith(f".{other}") for other in longer) else name


def _first_input(run: Trajectory) -> Any:
    messages = run.calls[0].call.messages if run.calls else ()
    return next((m.text or msgspec.to_builtins(m.parts) for m in messages if m.role == "user"), None)


def _value_at(value: Any, name: str) -> Any:
    while isinstance(value, dict) and name not in value and "." in name:
        first, _, name = name.partition(".")
        value = value.get(first)
    return value.get(name) if isinstance(value, dict) else None


def _shown(value: Any) -> str | None:
    """A value as a key: text as it is, else JSON; of a long one the beginning and a hash."""
    if value is None or value == "" or _is_redacted(value):
        return None
    key = value if isinstance(value, str) else canonical_json(_without_addresses(value)).decode()
    if len(key) <= _READABLE:
        return key
    return f"{key[: _READABLE - 20]}... #{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"
