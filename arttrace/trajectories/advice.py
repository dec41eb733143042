"""What can be done about a run that is incomplete, or has calls that are not read, by what is said of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from arttrace.records import semconv
from arttrace.trajectories.decoding.call import KEPT
from arttrace.trajectories.identity.collisions import ADVICE_ON_COLLISIONS, has_collisions

_Found = Callable[[str], object]
_INCOMPLETE: Final[tuple[tuple[_Found, str], ...]] = (
    (has_collisions, ADVICE_ON_COLLISIONS),
    (
        re.compile("refused: |refused for other").search,
        "It was sent in a form that cannot be read, or is too large. The reason goes when it is sent or imported again "
        "in one that can.",
    ),
    (
        re.compile("spans missing").search,
        "The run said how many spans it ended; that many did not arrive. They may still be on their way "
        "(`arttrace ship` delivers what captured processes left), or a process was killed before it wrote them.",
    ),
    (
        re.compile("in progress").search,
        "It was begun, and of its end nothing is known: it still runs, or its process died.",
    ),
    (
        re.compile("interrupted: .*(session missing|in other files)").search,
        "The file that it was read from has only a part of it. `arttrace import` does not join files.",
    ),
    (
        re.compile("interrupted: .*(counts .*as failed|masked by)").search,
        "Whoever made the rollout says that its reward or its tokens are not to be relied on. Collect it again.",
    ),
    (
        re.compile("interrupted").search,
        "The entry point was left before it ended: cancelled, or its generator was closed.",
    ),
    (
        re.compile("root missing").search,
        "The span at its top did not arrive: the run goes on, its process died, or nobody sent that span.",
    ),
    (
        re.compile("no root").search,
        "A model was called outside any run: decorate the entry with `@arttrace.trajectory`, or start the program with "
        "`arttrace run`.",
    ),
    (
        re.compile("parent missing|linked span missing|parent did not arrive").search,
        "A span that others name did not arrive. It may still be on its way (`arttrace ship`), or its sender dropped "
        "it, or sends it elsewhere.",
    ),
    (
        re.compile("in the background").search,
        "Other requests brought these answers, and are not recorded. Ask without `background` in runs that are to "
        "train.",
    ),
)
_BOUNDS: Final = "beyond 8 MiB by capture, else by OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"
_UNREAD: Final[tuple[tuple[_Found, str], ...]] = (
    (
        re.compile(KEPT).search,
        "The request named what the server keeps, and no call of this run has it. Let one run hold all turns of a "
        "conversation, or send its messages with each request.",
    ),
    (
        re.compile("beyond OTEL_").search,
        "Its sender dropped some of it. Set OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=10000 and "
        "OTEL_SPAN_EVENT_COUNT_LIMIT=10000 for the program.",
    ),
    (
        re.compile(": no answer$").search,
        "Its sender recorded what was asked, and no answer. Some SDKs do not record the answers of every API: capture "
        "the program with `arttrace run`, or with a newer version of that SDK.",
    ),
    (
        re.compile(f": unreadable .*{semconv.INPUT_MESSAGES}").search,
        f"The prompt was not recorded, was cut ({_BOUNDS}), or is in a form that is not known here. `arttrace show "
        "--raw` has what came.",
    ),
    (
        re.compile(": unreadable ").search,
        f"What is named was not recorded whole, was cut ({_BOUNDS}), or is in a form that is not known here. `arttrace "
        "show --raw` has what came.",
    ),
    (
        bool,
        "Its content was not recorded (ARTTRACE_CAPTURE_CONTENT=off; other SDKs have a setting of their own), or is in "
        "a form that is not known here. `arttrace show --raw` has what came.",
    ),
)
ON_NO_CALL: Final = (
    "`arttrace doctor -- PROGRAM` says what is captured of a program. One that calls a model by itself, as Claude Code "
    "does, is recorded by `arttrace run --policy`, and its sessions are read by `arttrace import`. An answer out of a "
    "cache, as DSPy's, which is on by default, is no call: turn it off for runs that are to be trained on."
)
"""What helps where nothing is wrong with a run but that no model answered in it."""

ON_NO_RUN: Final = (
    "A run is made of spans that say, in a form that is known here, that they are a model call, a tool or an agent. "
    "`arttrace sql 'SELECT name, document FROM spans'` has what came; docs/formats names the forms, and "
    "docs/extend/format.md says how one is added."
)
"""What helps where spans arrive, and none makes a run."""


def on_incomplete(reasons: str) -> list[str]:
    """What the reasons why a run is incomplete mean, and what helps, as far as that is known: each but once."""
    return _said(_INCOMPLETE, filter(None, reasons.split("; ")))


def on_unread(names: Iterable[str]) -> list[str]:
    """What helps with calls that are not read, by their names (`unread_calls`): each but once."""
    return _said(_UNREAD, names)


def _said(known: Sequence[tuple[_Found, str]], of: Iterable[str]) -> list[str]:
    found = (next((advice for finds, advice in known if finds(one)), "") for one in of)
    return [advice for advice in dict.fromkeys(found) if advice]
