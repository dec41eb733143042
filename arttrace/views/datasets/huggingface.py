"""`arttrace.dataset`: stored runs as a dataset of Hugging Face's `datasets`, in memory or read as it is iterated."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from arttrace.formats.datasets.forms import Form, Row
from arttrace.records.values.tokens import plain
from arttrace.store import open_store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.views.datasets.selection import DatasetSelection, Written, selected_rows
from arttrace.views.run_filter import RunFilter, moment

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict


def dataset(
    form: str = "trl-sft",
    *,
    best: bool = False,
    min_reward: float | None = None,
    min_gap: float = 0.1,
    held_out: float = 0.0,
    streaming: bool = False,
    entry: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
    policy: str | None = None,
    since: str | None = None,
    dir: str | os.PathLike[str] | None = None,
) -> Dataset | DatasetDict | IterableDataset | IterableDatasetDict:
    """Stored runs as rows of `form`, one of those that `arttrace dataset` writes; the choices are that command's.

    Args:
        form: The form of a row, as `arttrace dataset --format` names it.
        best: Take the best run of each group alone.
        min_reward: Leave out runs whose reward is lower, or who have none.
        min_gap: For pairs: how far apart the rewards of the two runs are at least.
        held_out: The share of the groups, 0 to 1, that goes to the split "test"; each group is whole in one split.
        streaming: Read the store while the rows are read, each time anew, and keep nothing in memory.
        entry: Runs of this entry point alone.
        group: Runs of this group alone.
        tags: Runs that have all of these tags.
        policy: Runs that this policy sampled.
        since: Runs that began later, as `arttrace ls --since` takes it: "2h", "3d", or a date.
        dir: The data directory; ARTTRACE_DIR, else ".arttrace".

    Returns:
        A `datasets.Dataset`, with `streaming` an IterableDataset; with `held_out` a dict of two, "train" and "test".
        What is left out is warned of, with the reasons.

    Raises:
        ArttraceError: `datasets` is not installed, or the store cannot be read.
        ValueError: The choices contradict each other.
    """
    try:
        import datasets
    except ImportError as error:
        raise ArttraceError("the package `datasets` is not installed", "pip install datasets") from error
    wanted = RunFilter(
        entry=entry, group=group, tags=tuple(tags), policy=policy, since_ns=None if since is None else moment(since)
    )
    selection = DatasetSelection(
        form=Form(form), best=best, min_reward=min_reward, min_gap=min_gap, held_out=held_out, wanted=wanted
    )
    data = DataDir.resolve(None if dir is None else os.fspath(dir))

    def read(*, test: bool | None) -> Iterator[Row]:
        written = Written()
        with open_store(data) as store:
            for row, is_held_out in selected_rows(store, selection, written):
                if test is None or is_held_out is test:
                    yield to_builtins(row, enc_hook=plain)
        _warn(written)

    if streaming:
        if not held_out:
            return datasets.IterableDataset.from_generator(read, gen_kwargs={"test": None})
        return datasets.IterableDatasetDict(
            {
                name: datasets.IterableDataset.from_generator(read, gen_kwargs={"test": test})
                for name, test in (("train", False), ("test", True))
            }
        )
    parts: tuple[list[Row], list[Row]] = [], []
    written = Written()
    with open_store(data) as store:
        for row, is_held_out in selected_rows(store, selection, written):
            parts[is_held_out].append(to_builtins(row, enc_hook=plain))
    _warn(written)
    made: list[Any] = [datasets.Dataset.from_list(rows, on_mixed_types="use_json") for rows in parts]
    return datasets.DatasetDict(train=made[0], test=made[1]) if held_out else made[0]


def _warn(written: Written) -> None:
    for line in written.said():
        warnings.warn(line, stacklevel=3)
