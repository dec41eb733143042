"""Which runs make a group ready: those that a step can compare."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from daemon_site import Site

from arttrace.records.reward import JUDGE, Reward
from arttrace.store import TrajectorySummary
from trainer.daemon.queue import ReadyTerms, look

CODE, JUDGED, UNREAD, BARE = "by code", "judged too", "unread, by code", "without a reward"
LATER = "judged later"


def runs_of_group(site: Site, kinds: Sequence[str]) -> list[TrajectorySummary]:
    site.group("g", *(None if kind == BARE else 1.0 for kind in kinds))
    for number, kind in enumerate(kinds):
        if kind in (JUDGED, LATER):
            site.store.append([Reward(f"ruler-{number}", f"g-{number}", 0.1, source=JUDGE, judgement_id=kind)])
    runs = sorted(site.store.summaries(), key=lambda run: run.id)
    return [
        msgspec.structs.replace(run, unread={"a prompt": 1} if kind == UNREAD else {})
        for run, kind in zip(runs, kinds, strict=True)
    ]


@pytest.mark.parametrize(
    ("kinds", "rewarded", "planned", "left_out"),
    [
        ([CODE, CODE, JUDGED], True, "", {"rewarded otherwise than its group": 1}),
        ([CODE, CODE, CODE, JUDGED], True, "012", {"rewarded otherwise than its group": 1}),
        ([JUDGED, JUDGED, JUDGED, CODE], True, "012", {"rewarded otherwise than its group": 1}),
        ([JUDGED, JUDGED, LATER, LATER], True, "0123", {}),
        ([JUDGED, JUDGED, JUDGED, LATER], True, "012", {"rewarded otherwise than its group": 1}),
        ([CODE, CODE, BARE, JUDGED], False, "0123", {}),
        ([JUDGED, BARE, LATER], False, "012", {}),
        ([CODE, BARE, UNREAD], False, "", {"rewarded otherwise than its group": 1}),
        ([CODE, CODE, BARE, UNREAD], False, "012", {"rewarded otherwise than its group": 1}),
        ([UNREAD, UNREAD, UNREAD], False, "012", {}),
    ],
)
def test_a_group_is_ready_when_enough_of_its_runs_can_be_compared(
    site: Site, kinds: list[str], rewarded: bool, planned: str, left_out: dict[str, int]
) -> None:
    """A judge scores all that it can read; without one, what is rewarded with a judge's score stands apart."""
    terms = ReadyTerms("policy", 0, 3, rewarded)
    ready, queue = look(runs_of_group(site, kinds), terms, ())
    assert [group.ids for group in ready] == ([tuple(f"g-{number}" for number in planned)] if planned else [])
    assert queue.left_out == left_out
    assert queue.waiting == (not planned)
