"""TokenSequence: token ids, mask and log-probabilities of one branch of one agent, ready to train on."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class TokenSequence(msgspec.Struct, frozen=True):
    """One branch as the engine saw it.

    `token_ids`, `trained`, `logprobs` and `versions` have shape (T,). `trained[t]` is 1 where token t was sampled by
    the policy and belongs to this sequence's targets (each sampled token is trained in exactly one sequence), else 0.
    `logprobs[t]` is the log-probability under which token t was sampled, None where not trained or not known.
    `versions[t]` indexes `policy_versions`, -1 where not trained. `call_ids` are the span ids merged, in order.
    `temperatures` has shape (T,): the temperature at which each target was sampled and for which its log-probability
    holds, 1 for other tokens; empty if all are 1.
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
        """The number of targets in this sequence."""
        return sum(self.trained)


class NotTrained(StrEnum):
    """Why a step does not train on something. The values are what `ls`, `show`, `train` and `status` print.

    First the reasons why sampled tokens of a call are not targets, then those why a run, one of its conversations, or
    a part of an answer is left out.
    """

    NO_TOKEN_IDS = "no token ids"
    NO_LOGPROBS = "log-probabilities missing"
    COLLIDED = "other content under its id"
    TRUNCATED = "truncated"
    MASKED = "redacted or masked"
    ERROR = "error"
    IN_PROGRESS = "in progress"
    COUNT_DIFFERS = "token count differs from usage"
    PROMPT_COUNT_DIFFERS = "prompt token count differs from usage"
    RECORDED_TWICE = "recorded twice"
    NOT_AT_TEMPERATURE_1 = "not sampled at temperature 1"
    ALTERED_SAMPLING = "sampling was narrowed or shifted"
    OTHER_POLICY = "sampled by another policy"
    NO_POLICY_VERSION = "policy version not known"
    MEDIA = "images, sound or video in the prompt"

    INCOMPLETE = "incomplete"
    HELD_OUT = "held out from training"
    NOT_TRAINABLE = "of an agent that is not to be trained"
    TOO_STALE = "too stale"
    OTHER_WEIGHTS = "sampled by other weights than their version's"
    NOT_MADE_HERE = "sampled by a version not made here"
    NO_REWARD = "no reward"
    REWARD_TOO_LARGE = "a reward beyond 1e12"
    REWARDED_OTHERWISE = "rewarded otherwise than its group"
    ALONE = "alone in its group"
    NO_TRAINABLE_TOKENS = "no trainable tokens"
    NO_TOKENS_OF_POLICY = "no tokens of this policy"
    EQUAL_REWARDS = "in a group of equal rewards"
    NOT_THE_BEST = "not the best of its group"
    BELOW_MIN_REWARD = "a reward below the bound"
    REWARDS_TOO_CLOSE = "too close to the others' rewards"
    CONTEXTS_DIFFER = "the two runs begin differently"
    OTHER_OF_PAIR = "the other run of its pair is left out"
    UNREADABLE = "messages that cannot be read"
    BEGUN_ANSWER = "answers that the program began"
    SEVERAL_PROMPTS = "answers to one of several prompts in a request"
    CUT_OFF = "answers that were cut off"
    CUT_SHORT = "answers cut short, which the format would give an end"
    CUT_CALL = "tool calls of answers that were cut short"
    NO_STOP = "the chat template does not show where an answer that was cut short stops"
    NOT_TEXT = "parts that are no text"
    EMPTY_ANSWERS = "empty answers"
    NO_ANSWER = "runs without an answer"
    ROOT_CALLED_NONE = "runs whose root agent called no model"
    PROMPT_DIFFERS = "the chat template ends a prompt otherwise than it begins an answer"
    NO_PROMPT = "an answer has no prompt before it"
    TOKEN_ACROSS_BORDER = "a token crosses the border of an answer"
    TOKENS_DIFFER = "the tokens of an answer do not spell it"
    EARLIER_ANSWERS = "up to an answer before the last, which the chat template renders otherwise once more follow"
    REASONING_DROPPED = "reasoning that the chat template drops"


class TokenReport(msgspec.Struct, frozen=True):
    """Counts of a trajectory's calls and sampled tokens, trained and not: nothing is dropped without a count.

    `reasons` maps a NotTrained to the number of calls quarantined for it. Token counts are of sampled tokens;
    `captured_tokens` is the sum of `trained_tokens` and `quarantined_tokens`, `forks` the sequences beyond the first
    of each agent.
    """

    calls: int = 0
    captured_tokens: int = 0
    trained_tokens: int = 0
    quarantined_tokens: int = 0
    quarantined_calls: int = 0
    forks: int = 0
    reasons: dict[str, int] = {}
