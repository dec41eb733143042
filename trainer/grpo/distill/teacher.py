"""TeacherModel: what is asked of the model that a policy is distilled from, wherever it runs; and that it has the
policy's tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from arttrace.records.sequence import TokenSequence
from arttrace.system.addresses import is_http
from arttrace.system.errors import ServingError, TrainingError
from trainer.grpo.distill.loaded import LoadedTeacher
from trainer.grpo.distill.served import ServedTeacher
from trainer.learner import LearnerConfig
from trainer.policies.base_tokenizer import read_tokenizer
from trainer.serving.hub import find_base_model

_AT_ONCE = 4096
"""Token ids that are compared at once."""


class TeacherModel(Protocol):
    """A model that rates what another one sampled.

    `longest` is the number of tokens of which it can rate the last one (None: no bound is known), `any_temperature`
    says that it rates at that of the sampling, and not at 1 alone, `on_device` that it takes memory of the device on
    which the policy is trained.
    """

    @property
    def name(self) -> str: ...
    @property
    def longest(self) -> int | None: ...
    @property
    def any_temperature(self) -> bool: ...
    @property
    def on_device(self) -> bool: ...

    def text(self, ids: Sequence[int]) -> str | None:
        """The text that its tokenizer makes of token ids; None where it has not all of them."""
        ...

    def rate(
        self, sequences: Sequence[TokenSequence], computed: Callable[[int], None]
    ) -> list[tuple[float | None, ...]]:
        """Of each sequence the log-probabilities (nats) of its targets, shape (T,), None for other tokens and for those
        of which it gives none. Targets are such as it can rate: within `longest`, and sampled at temperature 1 unless
        it takes `any_temperature`. `computed` is called with the number of targets that are done, first with 0. It may
        be called several times."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


def open_teacher(named: str, model: str | None, learner: LearnerConfig, *, weights: bool = True) -> TeacherModel:
    """The teacher that --teacher and --teacher-model name.

    Args:
        named: The URL of a server, a directory, or a name on the Hugging Face hub.
        model: Which of the server's models; None: the only one.
        learner: How the policy is trained, and so a teacher that is loaded beside it.
        weights: Whether it is to rate: else of one on the hub only what says its shape and its tokens is fetched.

    Raises:
        TrainingError: There is no such teacher, or its name on the hub cannot be fetched.
    """
    if is_http(named):
        return ServedTeacher(named, model)
    if model is not None:
        raise TrainingError(
            f"--teacher-model {model} names a model of a server, and --teacher {named} is no URL.",
            "Leave it out, or name the server: --teacher http://HOST:PORT/v1.",
        )
    try:
        directory, _ = find_base_model(named, weights=weights)
    except ServingError as error:
        hint = error.hint and error.hint.replace("--base-model", "--teacher")
        raise TrainingError(f"The teacher cannot be loaded: {error.message}.", hint) from error
    return LoadedTeacher(directory, learner)


def require_same_tokens(teacher: TeacherModel, base_model: Path, sampled: Collection[int]) -> None:
    """Raise TrainingError unless each of these token ids, and every special token of the policy's tokenizer, means the
    same to the teacher."""
    own = read_tokenizer(base_model)
    ids = sorted({*own.all_special_ids, *sampled})
    for first in range(0, len(ids), _AT_ONCE):
        some = ids[first : first + _AT_ONCE]
        if own.decode(some) == teacher.text(some):
            continue
        while len(some) > 1:
            middle = len(some) // 2
            differing = [half for half in (some[:middle], some[middle:]) if own.decode(half) != teacher.text(half)]
            if not differing:  # they differ only beside each other
                break
            some = differing[0]
        theirs = teacher.text(some)
        said = "nothing" if theirs is None else repr(theirs)
        which = f"token {some[0]} is" if len(some) == 1 else f"tokens {some[0]} to {some[-1]} are"
        raise TrainingError(
            f"The teacher {teacher.name} has another tokenizer than {base_model}: {which} {own.decode(some)!r} there, "
            f"and {said} to the teacher.",
            "Distil from a model of the same family, whose tokenizer has the same ids.",
        )
