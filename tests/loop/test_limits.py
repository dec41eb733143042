"""What decorators for rollouts hold in every event loop, and what of a choice goes back to the model."""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref

import openai
import pytest

import arttrace.loop as art


def test_retry_names_what_has_no_name_of_its_own_by_its_type(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="no answer"):
        art.retry(max_attempts=2, delay=0.0)(functools.partial(int, "no answer"))()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["partial raised in attempt 1 of 2"]


def test_retry_takes_any_number_of_attempts_and_no_delay_below_zero() -> None:
    assert art.retry(max_attempts=5000)(lambda: 1)() == 1
    for settings in ({"delay": -1.0}, {"backoff_factor": -2.0}):
        with pytest.raises(ValueError, match=r"is -\d.0, below 0"):
            art.retry(**settings)


def test_limit_concurrency_keeps_nothing_of_a_key_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[asyncio.Semaphore]] = []

    class Noted(asyncio.Semaphore):
        def __init__(self, value: int) -> None:
            super().__init__(value)
            made.append(weakref.ref(self))

    monkeypatch.setattr("asyncio.Semaphore", Noted)
    most = running = 0

    @art.limit_concurrency(1, derive_key=str)
    async def ask(number: int) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    async def ask_all() -> int:
        await asyncio.gather(*(ask(7) for _ in range(3)))
        for number in range(100):
            await ask(number)
        gc.collect()
        return sum(one() is not None for one in made)

    assert (asyncio.run(ask_all()), most) == (0, 1)


def test_limit_concurrency_holds_in_one_event_loop_after_the_other() -> None:
    @art.limit_concurrency(1)
    async def ask(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def ask_at_once() -> list[int]:
        return await asyncio.gather(*map(ask, range(3)))

    assert [asyncio.run(ask_at_once()) for _ in range(2)] == [[0, 1, 2]] * 2


def test_the_reasoning_of_a_choice_goes_back_under_the_name_that_vllm_gives_it() -> None:
    message = {"role": "assistant", "content": "a", "reasoning": "r", "refusal": None}
    choice = openai.types.chat.chat_completion.Choice.model_validate(
        {"index": 0, "finish_reason": "stop", "message": message}
    )
    assert art.Trajectory([choice]).messages() == [{"role": "assistant", "content": "a", "reasoning": "r"}]
