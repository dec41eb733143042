"""`arttrace dataset` and `arttrace export` take as much memory for four times the runs: what Python holds at its
most."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from collector_process import collecting
from set_aside import set_aside
from stored_runs import ANSWERS, run_with_a_tool

from arttrace.commands import cli
from arttrace.commands.data import export
from arttrace.formats.datasets.forms import Form
from arttrace.store import Store, bounded_parts
from arttrace.store.access import any_store, queries, summary_pages
from arttrace.store.access.client import OwnerClient
from arttrace.store.rows.views import DESCRIBED
from arttrace.system.paths import DataDir
from arttrace.views.datasets import parquet_file, view_files

WARM, FEW, MANY = 1, 6, 24
"""Groups of four runs of two calls and a tool."""

_MORE = {Form.TRL_UNPAIRED: ["--min-reward", "0.5"], Form.OPENAI_SFT: ["--best"], Form.VERL_SFT: ["--held-out", "0.3"]}
COMMANDS = {
    **{f"dataset {form}": ["dataset", "--format", form.value, *_MORE.get(form, []), "-o", "rows"] for form in Form},
    **{f"export {form}": ["export", "--format", form, "-o", "requests"] for form in ("otlp-json", "otlp-protobuf")},
    "export runs that match": ["export", "--since", "1970-01-01", "-o", "requests"],
    "export parquet": ["export", "--format", "parquet", "-o", "views"],
}
ALIKE = {f"dataset {form}" for form in (Form.TRL_PROMPT_COMPLETION, Form.SHAREGPT, Form.OPENAI_DPO)}
"""Their rows come one by one from where those of trl-sft and of trl-preference come from."""
VIEWS = ("spans", "messages", "trajectories")
"""The widest, the longest and the slowest to make; the others are written as these are."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, DataDir]:
    made = {groups: DataDir(tmp_path_factory.mktemp(f"groups{groups}")) for groups in (WARM, FEW, MANY)}
    for groups, data in made.items():
        with Store.open(data, create=True) as store:
            store.append(
                record
                for number in range(groups)
                for member, (answer, reward) in enumerate(ANSWERS)
                for record in run_with_a_tool(
                    f"g{number}-{member}", f"g{number}", answer, reward, at=1000 * (4 * number + member)
                )
            )
            assert len(store.summaries()) == 4 * groups
    return made


@pytest.fixture(scope="module")
def owned(stores: dict[int, DataDir]) -> Iterator[dict[int, DataDir]]:
    """The same, each owned by a collector, which is asked then."""
    with ExitStack() as running:
        for data in stores.values():
            running.enter_context(collecting(data))
        yield stores


@pytest.fixture
def no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cycles, which each answer of an HTTP client is in, are collected at once: it is not asked when Python does it."""
    request = OwnerClient.request

    def collected(self: OwnerClient, name: str, arguments: Mapping[str, Any]) -> Any:
        gc.collect()
        return request(self, name, arguments)

    monkeypatch.setattr(OwnerClient, "request", collected)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Few runs fill a part, so that the test takes seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bounded_parts, "_LEAST_SPANS", 96)
    monkeypatch.setattr(any_store, "_LEAST_ROWS", 96)
    monkeypatch.setattr(queries, "_ROWS_OF_PAGE", 48)
    monkeypatch.setattr(summary_pages, "_RUNS_OF_PAGE", 24)
    monkeypatch.setattr(parquet_file, "_ROWS_OF_GROUP", 24)
    monkeypatch.setattr(view_files, "DESCRIBED", [view for view in DESCRIBED if view.name in VIEWS])
    monkeypatch.setattr(export, "_IDS_AT_ONCE", 24)
    monkeypatch.setattr(export, "_SPANS_AT_ONCE", 24)


def most(command: list[str], data: DataDir) -> int:
    """The bytes that Python holds at its most while a command runs, beyond those that it held before."""
    set_aside()
    tracemalloc.start()
    try:
        done = CliRunner().invoke(cli, [*command, "--dir", str(data.root)], catch_exceptions=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.exit_code == 0, done.output
    return peak


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.full if what in ALIKE else ()) for what in COMMANDS]
)
def test_four_times_the_runs_take_as_much_memory(what: str, stores: dict[int, DataDir]) -> None:
    _, few, many = (most(COMMANDS[what], stores[groups]) for groups in (WARM, FEW, MANY))
    assert many < 2 * few, f"{few} bytes, and {many}"


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize("what", ["dataset atif", "export runs that match", "export parquet"])
def test_four_times_the_runs_of_a_collector_take_as_much_memory(what: str, owned: dict[int, DataDir]) -> None:
    _, few, many = (most(COMMANDS[what], owned[groups]) for groups in (WARM, FEW, MANY))
    assert many < 2 * few, f"{few} bytes, and {many}"


def test_parts_grow_with_the_store_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [bounded_parts.spans_at_once(stored) for stored in (0, 10_000, 100_000, 10**6, 10**9)] == [
        500,
        500,
        1000,
        5000,
        5000,
    ]
