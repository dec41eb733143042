"""AsyncClient and Client: OpenAI's clients of a server that records: each answer carries its trajectory.

Inside a run that is captured here the answer belongs to that run, and submitting hands over what was captured. Outside,
the server records the calls, under the id that the request names.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from arttrace.capture.context.flow import calling_flow
from arttrace.capture.handle import handle_of
from arttrace.loop.gather import TrajectoryGroup
from arttrace.loop.model import TrainConfig
from arttrace.loop.remote.connection import ServerConnection
from arttrace.loop.remote.streams import collecting
from arttrace.loop.remote.submission import submit
from arttrace.loop.trainer_process import TrainedStep
from arttrace.loop.trajectory import Trajectory

T = TypeVar("T")

Groups = Iterable["TrajectoryGroup | Iterable[Trajectory]"]


class AsyncClient:
    """An `openai.AsyncOpenAI` of a server: what `chat.completions.create` answers has a `trajectory`, whose id tags it.
    A stream has one too, which holds the answer once the stream was read to its end.

    The next call of the same run names it: `extra_body={"art": {"trajectory_id": answer.trajectory.id}}`. Inside a
    gathered or decorated rollout it is that run's by itself. Use it as an async context manager, or `close` it.

    Args:
        base_url: The server's, such as "http://gpu-box:8000/v1".
        api_key: Its key; $ARTTRACE_API_KEY where it is None.
        options: Further arguments of `openai.AsyncOpenAI`.
    """

    def __init__(self, base_url: str, api_key: str | None = None, **options: Any) -> None:
        from openai import AsyncOpenAI

        self._server = ServerConnection(base_url, api_key)
        self._openai = AsyncOpenAI(base_url=f"{self._server.url}/v1", api_key=self._server.api_key, **options)
        self.chat = _Chat(_Completions(self._openai.chat.completions))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._openai, name)

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
        chosen = {} if config is None else config.settings()
        return await submit(self._server, groups, chosen | settings)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._openai.close()


class Client:
    """As `AsyncClient`, for programs that are not asynchronous: an `openai.OpenAI`.

    Args:
        base_url: The server's, such as "http://gpu-box:8000/v1".
        api_key: Its key; $ARTTRACE_API_KEY where it is None.
        options: Further arguments of `openai.OpenAI`.
    """

    def __init__(self, base_url: str, api_key: str | None = None, **options: Any) -> None:
        from openai import OpenAI

        self._server = ServerConnection(base_url, api_key)
        self._openai = OpenAI(base_url=f"{self._server.url}/v1", api_key=self._server.api_key, **options)
        self.chat = _Chat(_SyncCompletions(self._openai.chat.completions))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._openai, name)

    def submit_trajectories(
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
        chosen = {} if config is None else config.settings()
        return in_thread(submit(self._server, groups, chosen | settings))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._openai.close()


def in_thread(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, for a caller that is not asynchronous but may stand inside an event loop.

    Args:
        work: The coroutine.
    """
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()


class _Chat:
    def __init__(self, completions: Any) -> None:
        self.completions = completions


class _Completions:
    def __init__(self, completions: Any) -> None:
        self._completions = completions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._completions, name)

    async def create(self, **asked: Any) -> Any:
        trajectory, request = _tagged(asked)
        return _with_trajectory(await self._completions.create(**request), trajectory)


class _SyncCompletions:
    def __init__(self, completions: Any) -> None:
        self._completions = completions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._completions, name)

    def create(self, **asked: Any) -> Any:
        trajectory, request = _tagged(asked)
        return _with_trajectory(self._completions.create(**request), trajectory)


def _tagged(asked: Mapping[str, Any]) -> tuple[Trajectory, dict[str, Any]]:
    """The call's trajectory, still without the answer, and the request that names it."""
    made = Trajectory(list(asked.get("messages", ())), tools=asked.get("tools") or None)
    body = dict(asked.get("extra_body") or {})
    art = dict(body.get("art") or {})
    if (named := art.get("trajectory_id")) is not None:
        made.id = str(named)
        return made, dict(asked)
    scope = calling_flow().scope  # not the program's own run, which is over only with the program
    if scope is not None and (run := handle_of(scope.root)).id:
        made.id, made.captured = run.id, True
        return made, dict(asked)  # not to be recorded there
    made.id = secrets.token_hex(16)
    return made, {**asked, "extra_body": {**body, "art": {**art, "trajectory_id": made.id}}}


def _with_trajectory(answer: Any, trajectory: Trajectory) -> Any:
    """The answer, with its trajectory. That of a stream has its choice once the stream was read to its end."""
    object.__setattr__(answer, "trajectory", trajectory)  # beside the fields of the client's object
    if hasattr(answer, "__next__") or hasattr(answer, "__anext__"):
        return collecting(answer, trajectory.messages_and_choices.append)
    trajectory.messages_and_choices += (getattr(answer, "choices", None) or [])[:1]
    return answer
