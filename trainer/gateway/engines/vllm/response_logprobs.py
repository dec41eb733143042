"""Log-probabilities of all tokens in vLLM's Responses API, which has a place for those of text alone.

vLLM leaves out those of an answer that only calls tools, and in a stream those of tokens that end inside a character.
With `enable_response_messages` it returns the tokens it sampled; here each of these comes with its log-probability.
"""

from __future__ import annotations

import logging
from typing import Any

_LEAST = -9999.0  # what vLLM writes in the place of minus infinity


def put_beside_tokens() -> None:
    """Have this process's API server put `logprobs` beside the `tokens` of a response's `output_messages`."""
    try:
        from vllm.entrypoints.openai.responses.context import SimpleContext

        replace_in(SimpleContext)
    except (ImportError, AttributeError) as error:
        logging.getLogger("vllm").warning(
            "Tool calls of the Responses API are not trained on: this vLLM keeps its log-probabilities elsewhere: %s",
            error,
        )


def replace_in(context: Any) -> None:
    """Have this class of vLLM's, which holds one response while it is sampled, give `logprobs` too."""
    own = context.output_messages

    def output_messages(self: Any) -> list[Any]:
        messages: list[Any] = own.fget(self)
        tokens, sampled = self._accumulated_token_ids, self._accumulated_logprobs
        if len(messages) == 1 and sampled and len(sampled) == len(tokens):
            chosen = zip(tokens, sampled, strict=True)
            messages[0].logprobs = [max(ranked[token].logprob, _LEAST) for token, ranked in chosen]
        return messages

    context.output_messages = property(output_messages)
