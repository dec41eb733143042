"""TokenSequence: token ids, mask and log-probabilities of one branch of one agent, ready to train on."""

from __future__ import annotations

import msgspec


class TokenSequence(msgspec.Struct, frozen=True):
    """One branch as the engine saw it.

    `token_ids`, `trained`, `logprobs` and `versions` have shape (T,). `trained[t]` is 1 where token t was sampled by
    the policy and belongs to this sequence's targets (each sampled token is trained in exactly one sequence), else 0.
    `logprobs[t]` is the log-probability under which token t was sampled, None where not trained or not known.
    `versions[t]` indexes `policy_versions`, -1 where not trained. `call_ids` are the span ids merged, in order.
    `temperatures` (T,) are those at which the targets were sampled, and of which `logprobs` are: 1 for what is none;
    empty where all are 1.
    """

    trajectory_id: str
    revision: str
    agent_id: str
    token_ids: tuple[int, ...]
    trained: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    versions: tuple[int, ...]
    policy_versions: tuple[str, ...]
    call_ids: tuple[str, ...]
    temperatures: tuple[float, ...] = ()

    @property
    def trained_tokens(self) -> int:
        """How many tokens of this sequence are targets."""
        return sum(self.trained)


class TokenReport(msgspec.Struct, frozen=True):
    """What became of the calls and sampled tokens of one trajectory: nothing is dropped without a count.

    `reasons` maps a reason ("no token ids", "log-probabilities missing", "truncated", "error", "not sampled at
    temperature 1", ...: trajectories/sequences.py) to the number of calls quarantined for it.
    """

    calls: int = 0
    captured_tokens: int = 0
    trained_tokens: int = 0
    quarantined_tokens: int = 0
    quarantined_calls: int = 0
    forks: int = 0
    reasons: dict[str, int] = {}
