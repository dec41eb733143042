"""A teacher behind a URL that is dead, wrong or slow: a clear error, and nothing is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from reserved_port import reserved_port
from teacher_site import teacher_site

from arttrace.system.errors import TrainingError
from arttrace.system.paths import DataDir
from trainer.policies.checkpoints import Checkpoints

GATEWAY = {"error": {"message": "prompt_logprobs is not served here"}}
RATED = "/v1/completions"
ONE = {"11": {"logprob": -1.0}}

Train = Callable[..., Result]


@pytest.mark.parametrize(
    ("path", "status", "body", "said", "remedy"),
    [
        (RATED, 400, GATEWAY, "prompt_logprobs is not served here", "another server than that of `arttrace serve`"),
        (RATED, 500, b"out of memory", "does not answer /v1/completions (500: out of memory)", "Nothing was changed"),
        (RATED, 200, {"choices": [{"index": 0, "text": "x"}]}, "gives no log-probabilities of a prompt", "vllm serve"),
        (RATED, 200, {"choices": []}, "gives no log-probabilities of a prompt", "vllm serve"),
        (RATED, 200, {"choices": [{"prompt_logprobs": [None, ONE]}]}, "rated other tokens", "the engine itself"),
        (RATED, 200, b"<html>", "is no vLLM", "vllm serve"),
        ("/detokenize", 404, b"", "has no /detokenize", "vllm serve"),
        ("/v1/models", 404, b"", "answers /v1/models with 404", "vllm serve"),
        ("/v1/models", 401, b"", "asks for a key", "Set ARTTRACE_TEACHER_API_KEY"),
        ("/v1/models", 200, {"data": []}, "is not known: it has none", "--teacher-model NAME"),
        (
            "/v1/models",
            200,
            {"data": [{"id": "x"}, {"id": "y"}]},
            "is not known: it has x, y",
            "--teacher-model NAME",
        ),
    ],
)
def test_a_teacher_that_fails(
    data: DataDir, better: Path, train: Train, path: str, status: int, body: Any, said: str, remedy: str
) -> None:
    with teacher_site(better, lambda asked, number: (status, body) if asked == path else None) as site:
        done = train("--teacher", site.url)
    assert isinstance(done.exception, TrainingError), done.output
    assert said in done.exception.message
    assert remedy in str(done.exception.hint)
    assert not Checkpoints(data.policies, "policy").steps()
    with teacher_site(better) as site:
        assert train("--teacher", site.url).exception is None, "the same runs wait still"


@pytest.mark.parametrize("interrupted", [True, False])
def test_nothing_is_waited_for_once_the_rating_is_over(better: Path, train: Train, interrupted: bool) -> None:
    """By Ctrl-C, or as one request is refused for good: the others are under way still, at a teacher that is slow."""
    over, late = threading.Event(), []

    def slow(path: str, number: int) -> tuple[int, Any] | None:
        if path != RATED:
            return None
        if number == 1 and not interrupted:
            return 400, GATEWAY
        if number == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if not over.wait(20):
            late.append(number)
            over.set()
        return None

    with teacher_site(better, slow) as site:
        done = train("--teacher", site.url)
        over.set()
    assert not late
    if interrupted:
        assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, "Aborted!"), done.output
    else:
        assert isinstance(done.exception, TrainingError), done.output
        assert "prompt_logprobs is not served here" in done.exception.message


def test_a_teacher_that_is_not_there(train: Train) -> None:
    with reserved_port() as port:
        done = train("--teacher", f"http://127.0.0.1:{port}")
    assert isinstance(done.exception, TrainingError)
    assert done.exception.message.startswith(f"The teacher at http://127.0.0.1:{port} does not answer /v1/models (")
    assert "Start it" in str(done.exception.hint)


def test_an_address_that_is_none(train: Train) -> None:
    failed = train("--teacher", "http://").exception
    assert isinstance(failed, TrainingError)
    assert failed.message == "The teacher cannot be asked: the address names no host, or port 0."


def test_adapters_beside_the_teacher_are_not_taken_for_it(better: Path, train: Train) -> None:
    cards = ({"id": "better"}, {"id": "tuned", "parent": "better"})
    with teacher_site(better, cards=cards) as site:
        assert train("--teacher", site.url, "--dry-run").exception is None
        assert train("--teacher", site.url, "--dry-run", "--teacher-model", "tuned").exception is None
        unknown = train("--teacher", site.url, "--dry-run", "--teacher-model", "worse").exception
    assert isinstance(unknown, TrainingError)
    assert unknown.message.endswith("has no model 'worse': it has better, tuned.")


def test_a_directory_without_a_model(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = train("--teacher", str(tmp_path)).exception
    assert isinstance(failed, TrainingError)
    assert failed.message.startswith("The teacher cannot be loaded: ")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    missing = train("--teacher", "somebody/better").exception
    assert isinstance(missing, TrainingError)
    assert "name it with --teacher" in str(missing.hint)
    named = train("--teacher", str(tmp_path), "--teacher-model", "x").exception
    assert isinstance(named, TrainingError)
    assert "is no URL" in named.message
