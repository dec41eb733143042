"""What is called in `no_capture` is recorded by nobody, in whatever function, thread or process it runs."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from joined_program import run
from openai import AsyncOpenAI, OpenAI
from spool import finished_spans

import arttrace
from arttrace.records import semconv
from arttrace.records.span import SpanRow

Spans = Callable[[], list[SpanRow]]


def asked(spans: list[SpanRow]) -> list[str]:
    return sorted(text for span in spans if (text := span.attributes.get(semconv.INPUT_MESSAGES)))


def said(server: ChatServer) -> list[bytes]:
    return [body for _, body in server.requests]


class Asking:
    def __init__(self, url: str) -> None:
        self.client = OpenAI(base_url=url, api_key="sk-test-0123456789")
        self.asynchronous = AsyncOpenAI(base_url=url, api_key="sk-test-0123456789")

    def ask(self, text: str = "secret") -> str | None:
        messages: Any = [{"role": "user", "content": text}]
        return self.client.chat.completions.create(model="m", messages=messages).choices[0].message.content

    async def ask_later(self) -> str | None:
        messages: Any = [{"role": "user", "content": "secret"}]
        answer = await self.asynchronous.chat.completions.create(model="m", messages=messages)
        return answer.choices[0].message.content

    @arttrace.no_capture()
    def function(self) -> str | None:
        return self.ask()

    @arttrace.no_capture()
    async def coroutine(self) -> str | None:
        return await self.ask_later()

    @arttrace.no_capture()
    def generator(self) -> Iterator[str | None]:
        yield self.ask()
        yield self.ask()

    @arttrace.no_capture()
    async def async_generator(self) -> AsyncIterator[str | None]:
        yield await self.ask_later()
        yield await self.ask_later()

    @arttrace.no_capture()
    @arttrace.trajectory
    def run(self) -> str | None:
        return self.ask()


@arttrace.no_capture()
def at_the_top() -> int:
    return 7


def test_a_function_of_any_kind_is_recorded_no_more_than_a_block(server: ChatServer, spans: Spans) -> None:
    asking = Asking(server.url)

    async def asynchronously() -> list[Any]:
        kept = [await asking.coroutine()]
        async for each in asking.async_generator():
            kept += [each, asking.ask("loud")]
        await asking.asynchronous.close()
        return kept

    with arttrace.trajectory(name="run"):
        kept = [asking.function(), *asyncio.run(asynchronously()), asking.run()]
        for each in asking.generator():
            kept += [each, asking.ask("loud")]
    assert {*kept} == {"answer 0 to secret", "answer 0 to loud"}
    assert len(said(server)) == 11
    found = asked(spans())
    assert len(found) == 4
    assert not any("secret" in text for text in found)
    assert inspect.iscoroutinefunction(asking.coroutine)
    assert inspect.isgeneratorfunction(asking.generator)
    assert inspect.isasyncgenfunction(asking.async_generator)
    assert pickle.loads(pickle.dumps(at_the_top))() == 7


def test_one_object_may_be_entered_again(server: ChatServer, spans: Spans) -> None:
    asking, quiet = Asking(server.url), arttrace.no_capture()
    with arttrace.trajectory(name="run"):
        with quiet, quiet:
            asking.ask()
        with quiet:
            asking.ask()
        asking.ask("loud")
    assert len(asked(spans())) == 1


def test_neither_are_the_jobs_that_a_pool_is_given_there(server: ChatServer, spans: Spans) -> None:
    asking = Asking(server.url)
    with arttrace.trajectory(name="run"), ThreadPool(1) as pool:
        with arttrace.no_capture():
            pool.apply(asking.ask)
            pool.map(asking.ask, ["secret"])
        pool.apply(asking.ask, ("loud",))
    assert len(said(server)) == 3
    (text,) = asked(spans())
    assert "loud" in text


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_neither_are_processes_and_their_pools(how: str, tmp_path: Path, server: ChatServer) -> None:
    run(
        """
        import multiprocessing, sys
        from concurrent.futures import ProcessPoolExecutor
        import arttrace
        from asking import ask
        if __name__ == "__main__":
            context, url = multiprocessing.get_context(sys.argv[1]), sys.argv[2]
            def everywhere(text):
                executor.submit(ask, url, text + " executor").result()
                pool.apply(ask, (url, text + " pool"))
                process = context.Process(target=ask, args=(url, text + " process"))
                process.start(); process.join()
                assert process.exitcode == 0
            with ProcessPoolExecutor(1, mp_context=context) as executor, context.Pool(1) as pool:
                with arttrace.no_capture():
                    everywhere("secret, outside")
                with arttrace.trajectory(name="run"):
                    everywhere("loud")
                    with arttrace.no_capture():
                        everywhere("secret, inside")
                pool.close(); pool.join()
        """,
        tmp_path,
        how,
        server.url,
    )
    assert len(said(server)) == 9
    found = asked(finished_spans(tmp_path / "d"))
    assert len(found) == 3, found
    assert not any("secret" in text for text in found)


CHILD = "import sys; from asking import ask; ask(*sys.argv[1:])"
PARENT = """
import os, subprocess, sys
import arttrace
def start(text, **options):
    subprocess.run([sys.executable, "child.py", sys.argv[1], text], check=True, **options)
start("loud")
with arttrace.no_capture():
    start("secret")
    start("secret", env={**os.environ, "A": "1"})
"""


def test_nor_are_programs_that_a_captured_one_starts_there(tmp_path: Path, server: ChatServer) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "parent.py").write_text(PARENT)
    run(
        """
        import os, sys
        from arttrace.commands import main
        os.chdir(os.path.dirname(__file__))
        sys.argv[1:] = ["run", "--quiet", "--", sys.executable, "parent.py", sys.argv[1]]
        main()
        """,
        tmp_path,
        server.url,
    )
    assert len(said(server)) == 3
    (text,) = asked(finished_spans(tmp_path / "d"))
    assert "loud" in text
