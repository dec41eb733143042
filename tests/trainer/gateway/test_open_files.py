"""How many requests are held where a system allows few files, many, or any number."""

from __future__ import annotations

import resource

import pytest

from trainer.gateway.http.open_files import requests_at_once

ANY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "held", "afterwards"),
    [
        (1024, 1 << 20, 1000, 3128),
        (1024, ANY, 1000, 3128),
        (65_536, 1 << 20, 1000, 65_536),
        (ANY, ANY, 1000, ANY),
        (256, 1024, 298, 1024),
        (64, 64, 1, 64),
    ],
)
def test_files_are_asked_for_as_far_as_the_system_allows(
    soft: int, hard: int, held: int, afterwards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, asked: limits.append(asked))
    assert requests_at_once(1000) == held
    assert limits[-1] == (afterwards, hard)


def test_a_system_that_refuses_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, ANY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert requests_at_once(1000) == 42
