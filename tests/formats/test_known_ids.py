"""Ids that were read before are known, in memory or on disk alike."""

from __future__ import annotations

import random

import pytest

from arttrace.formats.files import known_ids
from arttrace.formats.files.known_ids import KnownIds


@pytest.mark.parametrize("in_memory", [1, 7, 1000])
def test_what_was_kept_is_found_however_much_of_it_is_in_memory(
    in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_ids, "_IN_MEMORY", in_memory, raising=False)
    chosen, known, kept = random.Random(in_memory), KnownIds(), dict[bytes, int]()
    for value in range(500):
        id = b"%d" % chosen.randrange(200)
        assert known.get(id) == kept.get(id)
        known.keep(id, value)
        kept[id] = value
    assert {id: known.get(id) for id in kept} == kept


@pytest.mark.parametrize("in_memory", [1, 7, 1000])
def test_each_id_counts_once_however_many_are_in_memory(in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_ids, "_IN_MEMORY", in_memory, raising=False)
    chosen, known, there = random.Random(in_memory), KnownIds(), set[bytes]()
    for _ in range(100):
        some = [b"%d" % chosen.randrange(150) for _ in range(5)]
        assert known.adds(some[0]) == (some[0] not in there)
        known.add(some)
        there |= set(some)
        assert known.count == len(there)
