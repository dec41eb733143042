"""What looks through all runs holds a page of them at a time, however many there are."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from langfuse_server import langfuse_server
from recorded_runs import recorded_group
from set_aside import set_aside

from arttrace.capture.base.langfuse_project import Connection
from arttrace.formats.datasets.forms import Form
from arttrace.records.record import Record
from arttrace.records.reward import JUDGE, Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store, TrajectorySummary
from arttrace.store.access import summary_pages
from arttrace.store.rows.prefixes import RecentInputs
from arttrace.system.paths import DataDir
from arttrace.views.datasets import selection
from arttrace.views.datasets.selection import DatasetSelection, Written, selected_rows
from arttrace.views.langfuse import push as pushing
from arttrace.views.langfuse.client import LangfuseClient
from arttrace.views.langfuse.push import push
from arttrace.views.langfuse.state import SentRuns
from arttrace.views.run_filter import RunFilter
from arttrace.views.run_index import RunIndex

GROUPS, MEMBERS, PAGE = 12, 3, 4
SPANS = 3  # of a run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    given: list[Record] = []
    for number in range(GROUPS):
        given += recorded_group(f"g{number:02}", [float(member) for member in range(MEMBERS)])
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        store.append(given)
        yield store


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_pages, "_IDS_OF_PAGE", 7)
    monkeypatch.setattr(summary_pages, "_RUNS_OF_PAGE", PAGE)
    monkeypatch.setattr(selection, "spans_at_once", lambda stored: PAGE * SPANS)
    monkeypatch.setattr(pushing, "_SPANS_AT_ONCE", PAGE * SPANS)


@pytest.fixture(autouse=True)
def few_objects() -> None:
    """What earlier tests of the process left is not looked through each time."""
    set_aside()


def alive(kind: type) -> int:
    return sum(1 for one in gc.get_objects() if type(one) is kind)


@pytest.mark.parametrize("form", [Form.TRL_SFT, Form.TRL_PREFERENCE])
def test_writing_rows_holds_few_runs(store: Store, form: Form) -> None:
    before = alive(Trajectory), alive(TrajectorySummary)
    rows, most = 0, [0, 0]
    for _ in selected_rows(store, DatasetSelection(form=form), Written()):
        rows += 1
        most = [
            max(most[0], alive(Trajectory) - before[0]),
            max(most[1], alive(TrajectorySummary) - before[1]),
        ]
    assert rows >= GROUPS
    assert 0 < most[0] <= PAGE + MEMBERS, "a part, which a whole group may end"
    assert most[1] <= PAGE


def test_a_push_holds_few_runs(store: Store) -> None:
    before, most = alive(TrajectorySummary), 0

    def progress(done: int, total: int) -> None:
        nonlocal most
        most = max(most, alive(TrajectorySummary) - before)

    with langfuse_server() as server:
        connection = Connection.resolve(server.environ())
        with LangfuseClient(connection) as client:
            pushed = push(store, client, connection, SentRuns(store.data, connection), progress=progress)
    assert pushed.runs == GROUPS * MEMBERS
    assert 0 < most <= PAGE


def test_groups_are_whole_and_in_order_and_places_are_those_of_the_group(store: Store) -> None:
    every = sorted(store.summaries(), key=lambda run: (run.start_ns, run.id))
    expected: dict[str, list[str]] = {}
    for run in every:
        expected.setdefault(run.group, []).append(run.id)
    with RunIndex(store, RunFilter()) as runs:
        for spans in (1, SPANS, 4 * SPANS, 1000):
            parts = list(runs.groups(spans, whole=True))
            assert [one for part in parts for one in part] == list(expected.items())
            cut = list(runs.groups(spans, whole=False))
            assert [id for part in cut for _, ids in part for id in ids] == [
                id for ids in expected.values() for id in ids
            ]
            assert all(set(ids) <= set(expected[key]) for part in cut for key, ids in part)
            pages = list(runs.pages(spans))
            assert [id for page in pages for id in page] == [run.id for run in every]
            most = max(1, spans // SPANS)
            assert {len(page) for page in pages[:-1]} <= {most}
            assert {sum(len(ids) for _, ids in part) for part in cut[:-1]} <= {most}
            assert all(sum(len(ids) for _, ids in part) < most + MEMBERS for part in parts)
        runs.number_groups()
        places = runs.places([run.id for run in every])
    assert [(one.number, one.of, one.advantage) for one in (places[id] for id in expected["g00"])] == [
        (0, 3, -1.0),
        (1, 3, 0.0),
        (2, 3, 1.0),
    ]


def test_what_does_not_match_is_compared_with_and_not_counted(store: Store) -> None:
    with RunIndex(store, RunFilter(reward=">1.5")) as runs:
        runs.number_groups()
        assert runs.count == GROUPS
        assert {one.advantage for one in runs.places([id for page in runs.pages(9) for id in page]).values()} == {1.0}


def test_runs_are_found_by_the_ids_that_they_were_recorded_under(store: Store) -> None:
    pages = list(summary_pages.summary_pages(store))
    assert max(map(len, pages)) <= PAGE
    assert sorted(run.id for page in pages for run in page) == sorted(run.id for run in store.summaries())
    one = pages[0][0]
    assert store.summaries(ids=[one.id, "nobody"]) == [one]
    store.append([Reward(id="late", trajectory_id=one.id, value=0.5, time_ns=9)])
    assert len(store.summaries(ids=[one.id])[0].rewards) == len(one.rewards) + 1


def test_short_inputs_of_many_runs_are_not_all_remembered() -> None:
    recent = RecentInputs(1)
    for number in range(100_000):
        recent.remember(f"{number:032x}", f'[{{"role":"user","content":"{number}"}}]', 0, number)
    assert len(recent._of_trace) < 50_000


def test_rewards_that_differ_by_their_rounding_alone_have_no_advantage(store: Store) -> None:
    """As training and the viewer have it."""
    rewards = [0.1 + 0.2, 0.3, 0.3]
    store.append(recorded_group("h", rewards))
    assert rewards[0] > rewards[1]
    with RunIndex(store, RunFilter(group="h")) as runs:
        runs.number_groups()
        places = runs.places([f"h-{number}" for number in range(3)])
    assert {one.advantage for one in places.values()} == {0.0}


def test_only_runs_that_can_be_compared_have_an_advantage(store: Store) -> None:
    """Complete ones, whose rewards are on one scale: what a step compares."""
    given = recorded_group("h", [0.0, 1.0, 1.0, 0.5, 0.0])
    first = "answer 0 of h-4"
    given.remove(next(one for one in given if isinstance(one, SpanRow) and one.parent_span_id and first in str(one)))
    store.append([*given, Reward("ruler", "h-3", 0.5, source=JUDGE)])
    with RunIndex(store, RunFilter(group="h")) as runs:
        runs.number_groups()
        places = runs.places([f"h-{number}" for number in range(5)])
    assert [places[f"h-{number}"].advantage for number in range(5)] == [
        pytest.approx(-2 / 3),
        pytest.approx(1 / 3),
        pytest.approx(1 / 3),
        None,
        None,
    ]


def test_runs_that_were_judged_apart_have_no_place_beside_each_other(store: Store) -> None:
    """What a judge said of two runs is another scale than what it said of two others."""
    scores = (0.9, 0.7, 0.1, 0.3, 1.0)
    judgements = [
        Reward(f"ruler:h-{number}", f"h-{number}", value, source=JUDGE, judgement_id=f"judgement {number // 2}")
        for number, value in enumerate(scores)
    ]
    store.append([*recorded_group("h", [None] * 5), *judgements])
    with RunIndex(store, RunFilter(group="h")) as runs:
        runs.number_groups()
        places = runs.places([f"h-{number}" for number in range(5)])
    advantages = [places[f"h-{number}"].advantage for number in range(5)]
    assert (advantages[:4], advantages[4]) == (pytest.approx([0.1, -0.1, -0.1, 0.1]), None)
