"""AsyncClient and Client: OpenAI's clients for a server that records. Each answer has its trajectory.

Inside a run that is captured here the answer belongs to that run, and submitting uploads what was captured. Outside,
the server records the calls, under the id that the request names.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeVar

from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.processes.art_names import TrainConfig, settings_of
from arttrace.loop.processes.trainer_process import TrainedStep
from arttrace.loop.remote.connection import ServerConnection
from arttrace.loop.remote.submission import submit
from arttrace.loop.trajectory import Trajectory

T = TypeVar("T")

Groups = Iterable["TrajectoryGroup | Iterable[Trajectory]"]


class _Client:
    """What both clients share. Attributes that they do not define are the OpenAI client's."""

    _server: ServerConnection
    _openai: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._openai, name)

    def with_options(self, **options: Any) -> Self:
        """The same client with other options; it shares its connections.

        Args:
            options: Those of the OpenAI client's `with_options`, such as `timeout`.
        """
        made = object.__new__(type(self))
        made._server, made._openai = self._server, self._openai.with_options(**options)
        return made


class AsyncClient(_Client):
    """An `openai.AsyncOpenAI` for a server: every answer has a `trajectory`, whose id identifies the run. This holds
    for chat completions, responses and completions, by `create`, `parse`, `stream`, `with_raw_response` and
    `with_streaming_response`. A stream's trajectory has the answer once the stream has been read to its end. If there
    are several choices, the first is in its messages, each further one in a history of its own.

    Name the run in its next call: `extra_body={"art": {"trajectory_id": answer.trajectory.id}}`. Inside a gathered or
    decorated rollout that is not needed. Use the client as an async context manager, or `close` it.

    Args:
        base_url: The server's, such as "http://gpu-box:8000/v1".
        api_key: Its key; $ARTTRACE_API_KEY where it is None.
        options: Further arguments of `openai.AsyncOpenAI`.
    """

    def __init__(self, base_url: str, api_key: str | None = None, **options: Any) -> None:
        from arttrace.loop.remote.recorded_openai import AsyncRecordedOpenAI

        self._server = ServerConnection(base_url, api_key)
        self._openai = AsyncRecordedOpenAI(base_url=f"{self._server.url}/v1", api_key=self._server.api_key, **options)

    async def submit_trajectories(
        self, groups: Groups, config: TrainConfig | None = None, **settings: Any
    ) -> list[TrainedStep]:
        """Train one step on groups of trajectories with rewards. The server makes it, saves it and serves it.

        Args:
            groups: TrajectoryGroups, or lists of trajectories.
            config: Settings by ART's names.
            settings: The options of `arttrace train` by their names, over those of `config`.

        Returns:
            A TrainedStep whose version is served; none when all rewards within each group are equal.

        Raises:
            TrainingError: There is nothing to compare, a trajectory holds nothing that was sampled, or the step went
                wrong.
            ServingError: The server does not answer.
        """
        return await submit(self._server, groups, settings_of(config) | settings)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._openai.close()


class DoneSteps(list[TrainedStep]):
    """Steps. Awaiting them gives them: ART's programs do, `await client.submit_trajectories(...)`."""

    def __await__(self) -> Generator[Any, None, list[TrainedStep]]:
        yield from ()
        return list(self)


class Client(_Client):
    """As `AsyncClient`, for programs that are not asynchronous: an `openai.OpenAI`.

    Args:
        base_url: The server's, such as "http://gpu-box:8000/v1".
        api_key: Its key; $ARTTRACE_API_KEY where it is None.
        options: Further arguments of `openai.OpenAI`.
    """

    def __init__(self, base_url: str, api_key: str | None = None, **options: Any) -> None:
        from arttrace.loop.remote.recorded_openai import RecordedOpenAI

        self._server = ServerConnection(base_url, api_key)
        self._openai = RecordedOpenAI(base_url=f"{self._server.url}/v1", api_key=self._server.api_key, **options)

    def submit_trajectories(self, groups: Groups, config: TrainConfig | None = None, **settings: Any) -> DoneSteps:
        """Train one step on groups of trajectories with rewards. The server makes it, saves it and serves it. What
        is returned need not be awaited, but may be.

        Args:
            groups: TrajectoryGroups, or lists of trajectories.
            config: Settings by ART's names.
            settings: The options of `arttrace train` by their names, over those of `config`.

        Returns:
            A TrainedStep whose version is served; none when all rewards within each group are equal.

        Raises:
            TrainingError: There is nothing to compare, a trajectory holds nothing that was sampled, or the step went
                wrong.
            ServingError: The server does not answer.
        """
        return DoneSteps(in_thread(submit(self._server, groups, settings_of(config) | settings)))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._openai.close()


def in_thread(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, for a caller that is not asynchronous but may stand inside an event loop. Where the
    caller is interrupted, as by Ctrl-C, it is cancelled.

    Args:
        work: The coroutine.
    """
    begun: Future[Callable[[], object]] = Future()

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        begun.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await work

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(asyncio.run, cancellable())
        try:
            return done.result()
        except BaseException:
            if not done.done():
                with contextlib.suppress(RuntimeError):  # it is done this moment, and its loop closed
                    begun.result()()
            raise
