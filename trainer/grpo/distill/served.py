"""ServedTeacher: a teacher behind a URL, asked for the log-probabilities of given token ids as vLLM gives them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import httpx
import msgspec

from arttrace.records.sequence import TokenSequence
from arttrace.records.values.nesting import UNREADABLE
from arttrace.records.values.units import quantity
from arttrace.system.addresses import verified, why_never_asked, without_login
from arttrace.system.errors import TrainingError

KEY = "ARTTRACE_TEACHER_API_KEY"
"""The variable of the environment that has the server's key."""
AT_ONCE = 8
"""Requests under way at the same time: the server batches them."""
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Before each further try of a request."""
_CONNECT_S, _READ_S = 10.0, 600.0
_UNCHANGED = "Nothing was changed: the same command begins again."
_SERVE = "`vllm serve MODEL` starts one; it needs no adapters, and is another server than that of `arttrace serve`."

_T = TypeVar("_T")


class ServedTeacher:
    """A model of a server that speaks vLLM's `/v1/completions` and `/detokenize`.

    `name` is the model's, `longest` the number of tokens of which it can rate the last one (None: no bound is known).
    """

    any_temperature = False
    on_device = False

    def __init__(self, url: str, model: str | None = None) -> None:
        """Find the model: `model`, or the only one that is no adapter.

        Args:
            url: Its base URL, with or without "/v1".
            model: The name under which it is served.

        Raises:
            TrainingError: Nothing answers there, the key is wrong, or the model is not served or not the only one.
        """
        key = os.environ.get(KEY)
        if why := why_never_asked(url, key):
            raise TrainingError(f"The teacher cannot be asked: {why}.", f"Correct --teacher, or {KEY}.")
        base = url.rstrip("/").removesuffix("/v1")
        self.shown = without_login(base)
        self._client = httpx.AsyncClient(
            base_url=base,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(_READ_S, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=AT_ONCE),
            trust_env=False,
            verify=verified(url),
        )
        self._runner = asyncio.Runner()  # its connections are of one event loop; Ctrl-C cancels what runs there
        try:
            card = self._find(model)
        except BaseException:
            self.close()
            raise
        self.name = card.id
        self.longest = None if card.max_model_len is None else card.max_model_len - 1  # it samples one more

    def _find(self, model: str | None) -> _TeacherCard:
        cards = self._run(self._asked(_TeacherCards, "GET", "/v1/models")).data
        served = [one for one in cards if model or one.parent is None]
        found = [one for one in served if model in (None, one.id)]
        if len(found) != 1:
            names = ", ".join(one.id for one in served) or "none"
            raise TrainingError(
                f"The server at {self.shown} has no model {model!r}: it has {names}."
                if model
                else f"Which model of the server at {self.shown} is the teacher is not known: it has {names}.",
                "Name one of them: --teacher-model NAME.",
            )
        return found[0]

    def text(self, ids: Sequence[int]) -> str | None:
        """The text that its tokenizer makes of token ids; None where it has not all of them."""
        try:
            request = {"model": self.name, "tokens": list(ids)}
            return self._run(self._asked(_Detokenized, "POST", "/detokenize", request)).prompt
        except _SaidNo as error:
            if error.status == httpx.codes.NOT_FOUND:
                raise TrainingError(
                    f"The server at {self.shown} has no /detokenize, so that its token ids cannot be compared with the "
                    "policy's.",
                    f"Serve the teacher by vLLM: {_SERVE}",
                ) from None
            return None

    def rate(
        self, sequences: Sequence[TokenSequence], computed: Callable[[int], None]
    ) -> list[tuple[float | None, ...]]:
        """Its log-probabilities (nats) of what was sampled; see `TeacherModel.rate`. A sequence is sent up to
        its last target, and not if others begin with it.

        Raises TrainingError when the server does not answer, after some tries, or answers otherwise than vLLM.
        """
        cut = [_up_to_last_target(one) for one in sequences]
        whole = _whole([ids for ids in cut if ids])
        targets = dict.fromkeys(whole.values(), 0)
        for ids, one in zip(cut, sequences, strict=True):
            if ids:
                targets[whole[ids]] += sum(one.trained[: len(ids)])
        rated = self._run(self._rate_all(targets, computed))
        found: list[tuple[float | None, ...]] = []
        for ids, one in zip(cut, sequences, strict=True):
            values = rated[whole[ids]][: len(ids)] if ids else []
            own = [value if trained else None for value, trained in zip(values, one.trained, strict=False)]
            found.append((*own, *[None] * (len(one.token_ids) - len(own))))
        return found

    def close(self) -> None:
        """Close its connections."""
        with self._runner:
            self._run(self._client.aclose())

    def _run(self, asking: Coroutine[Any, Any, _T]) -> _T:
        return self._runner.run(asking)

    async def _rate_all(
        self, targets: Mapping[tuple[int, ...], int], computed: Callable[[int], None]
    ) -> dict[tuple[int, ...], list[float | None]]:
        """The log-probabilities of each prompt, which has so many targets. The first request that fails, and Ctrl-C,
        end those under way."""
        rated: dict[tuple[int, ...], list[float | None]] = {}
        waiting = iter(targets)
        done = 0
        computed(done)

        async def rate_in_turn() -> None:
            nonlocal done
            for ids in waiting:
                rated[ids] = await self._logprobs(ids)
                done += targets[ids]
                computed(done)

        workers = [asyncio.create_task(rate_in_turn()) for _ in range(AT_ONCE)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return rated

    async def _logprobs(self, ids: tuple[int, ...]) -> list[float | None]:
        """Of each token after those before it, (T,)."""
        request = {"model": self.name, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        try:
            answer = await self._asked(_RatedPrompts, "POST", "/v1/completions", request)
        except _SaidNo as error:
            raise TrainingError(
                f"The teacher at {self.shown} refuses to rate {quantity(len(ids), 'token')} ({error.status}): "
                f"{error.reason}",
                f"It has to be a vLLM that gives prompt_logprobs. {_SERVE} {_UNCHANGED}",
            ) from None
        places = answer.choices[0].prompt_logprobs if answer.choices else None
        if places is None:
            raise TrainingError(
                f"The server at {self.shown} gives no log-probabilities of a prompt (prompt_logprobs).",
                f"Serve the teacher by vLLM: {_SERVE} {_UNCHANGED}",
            )
        of_ids = [None if place is None else place.get(str(id)) for place, id in zip(places, ids, strict=False)]
        if len(places) != len(ids) or None in of_ids[1:]:
            raise TrainingError(
                f"The server at {self.shown} rated other tokens than it was given.",
                "Something between here and the engine changes the prompt: name the engine itself with --teacher.",
            )
        return [None if one is None else one.logprob for one in of_ids]

    async def _asked(self, kind: type[_T], method: str, path: str, body: object = None) -> _T:
        """Raises TrainingError when there is no answer, _SaidNo for one that says no."""
        content = b"" if body is None else msgspec.json.encode(body)
        for pause in (*PAUSES_S, None):
            try:
                answer = await self._client.request(
                    method, path, content=content, headers={"content-type": "application/json"}
                )
            except (httpx.TransportError, httpx.InvalidURL) as error:
                trouble = str(error) or type(error).__name__
            else:
                if answer.status_code == httpx.codes.OK:
                    return self._read(kind, path, answer.content)
                trouble = f"{answer.status_code}: {_reason(answer.content)}"
                self._require_key(answer.status_code)
                if answer.status_code < 500 and answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                    raise _SaidNo(self.shown, path, answer.status_code, _reason(answer.content))
            if pause is not None:
                await asyncio.sleep(pause)
        raise TrainingError(
            f"The teacher at {self.shown} does not answer {path} ({trouble}).",
            f"Start it, or name another with --teacher. {_UNCHANGED}",
        )

    def _require_key(self, status: int) -> None:
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise TrainingError(
                f"The teacher at {self.shown} "
                + (f"does not take the key of {KEY}." if os.environ.get(KEY) else "asks for a key."),
                f"Set {KEY} to its key.",
            )

    def _read(self, kind: type[_T], path: str, content: bytes) -> _T:
        try:
            return msgspec.json.decode(content, type=kind)
        except UNREADABLE as error:
            raise TrainingError(
                f"What answers at {self.shown}{path} is no vLLM: {error}.", f"Serve the teacher by vLLM: {_SERVE}"
            ) from None


class _SaidNo(TrainingError):
    """The server understood, and said no."""

    def __init__(self, shown: str, path: str, status: int, reason: str) -> None:
        super().__init__(
            f"The server at {shown} answers {path} with {status}: {reason}", f"Serve the teacher by vLLM: {_SERVE}"
        )
        self.status = status
        self.reason = reason


class _TeacherCard(msgspec.Struct):
    id: str
    parent: str | None = None
    max_model_len: int | None = None


class _TeacherCards(msgspec.Struct):
    data: list[_TeacherCard]


class _Detokenized(msgspec.Struct):
    prompt: str


class _RatedToken(msgspec.Struct):
    logprob: float


class _RatedPrompt(msgspec.Struct):
    prompt_logprobs: list[dict[str, _RatedToken] | None] | None = None


class _RatedPrompts(msgspec.Struct):
    choices: list[_RatedPrompt]


def _reason(content: bytes) -> str:
    try:
        return str(msgspec.json.decode(content)["error"]["message"])[:1000]
    except (*UNREADABLE, KeyError, TypeError):
        return content[:1000].decode("utf-8", "replace") or "no reason"


def _up_to_last_target(sequence: TokenSequence) -> tuple[int, ...]:
    last = max((place for place, trained in enumerate(sequence.trained) if trained), default=-1)
    return tuple(sequence.token_ids[: last + 1])


def _whole(rows: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """For each row one that begins with it and that no other begins with."""
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    longer: tuple[int, ...] = ()
    for ids in sorted(set(rows), reverse=True):  # what begins with a row follows it in the order of rows
        longer = longer if longer[: len(ids)] == ids else ids
        found[ids] = longer
    return found
