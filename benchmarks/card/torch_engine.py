"""A plain torch sampler in the place of a serving engine: transformers with PEFT, its own copy of the weights.

It proves what needs an engine's log-probabilities or its memory, not its speed: there is no batching across requests,
no paged cache, no compiled kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAME = "plain torch sampler"


class TorchEngine:
    """The base model with the learner's newest adapter ("now") and the one before it ("before")."""

    def __init__(self, base_model: Path, learner: Any) -> None:
        import torch
        from peft import get_peft_model
        from transformers import AutoModelForCausalLM

        self._device = learner.config.device
        base = AutoModelForCausalLM.from_pretrained(base_model, dtype=getattr(torch, learner.config.dtype))
        settings = learner.model.peft_config["default"]
        # In the base model's precision, as vLLM holds adapters and a version's file has them.
        self._model = get_peft_model(base, settings, adapter_name="now", autocast_adapter_dtype=False)
        self._model.add_adapter("before", settings, autocast_adapter_dtype=False)
        self._weights = _weights(learner)
        self.take(learner)
        self._model.to(self._device).eval()

    def take(self, learner: Any) -> None:
        """The learner's weights are the newest version now."""
        from peft import set_peft_model_state_dict

        before, self._weights = self._weights, _weights(learner)
        for name, weights in (("before", before), ("now", self._weights)):
            set_peft_model_state_dict(self._model, weights, adapter_name=name)

    def score(self, rows: Sequence[Sequence[int]], prompt: int, adapter: str = "now") -> list[list[float]]:
        """The log-probability of every token of each row, all of one length, after its first `prompt` ones."""
        import torch

        self._model.set_adapter(adapter)
        with torch.no_grad():
            ids = torch.tensor([list(row) for row in rows], device=self._device)
            logps = torch.log_softmax(self._model(input_ids=ids).logits[:, :-1].float(), -1)
            found: list[list[float]] = logps.gather(2, ids[:, 1:, None])[:, prompt - 1 :, 0].tolist()
        return found

    def sample(
        self, prompts: Sequence[Sequence[int]], longest: int, end: int, *, greedy: bool = False
    ) -> list[tuple[list[int], list[float]]]:
        """For each prompt, all of one length, the tokens up to and with `end`, and their log-probabilities."""
        import torch

        self._model.set_adapter("now")
        ids = torch.tensor([list(prompt) for prompt in prompts], device=self._device)
        drawn, logps, cache = [], [], None
        with torch.no_grad():
            for _ in range(longest):
                answer = self._model(input_ids=ids, past_key_values=cache, use_cache=True)
                cache = answer.past_key_values
                known = torch.log_softmax(answer.logits[:, -1].float(), -1)
                ids = known.argmax(-1, keepdim=True) if greedy else torch.multinomial(known.exp(), 1)
                drawn.append(ids[:, 0])
                logps.append(known.gather(1, ids)[:, 0])
                if bool((torch.stack(drawn) == end).any(0).all()):
                    break
        tokens, known_logps = torch.stack(drawn, 1).tolist(), torch.stack(logps, 1).tolist()
        return [_until(end, row, known) for row, known in zip(tokens, known_logps, strict=True)]

    def sleep(self) -> None:
        """Give the device's memory back; the weights wait in the host's."""
        self._move("cpu")

    def wake(self) -> None:
        """Take it again."""
        self._move(self._device)

    def _move(self, device: str) -> None:
        import torch

        self._model.to(device)
        if self._device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def _weights(learner: Any) -> dict[str, Any]:
    """A copy of the learner's adapter."""
    from peft import get_peft_model_state_dict

    return {name: tensor.detach().clone() for name, tensor in get_peft_model_state_dict(learner.model).items()}


def _until(end: int, row: list[int], logps: list[float]) -> tuple[list[int], list[float]]:
    length = row.index(end) + 1 if end in row else len(row)
    return row[:length], logps[:length]


def sampled_run(
    name: str, prompt: Sequence[int], sampled: Sequence[int], logps: Sequence[float], version: str, advantage: float
) -> Any:
    """A run of one call, as a learner takes it."""
    from benchmarks.learner_cases import Sequence as Tokens
    from trainer.learner.interface import Sample

    before, count = len(prompt), len(sampled)
    sequence: Any = Tokens(
        trajectory_id=name,
        token_ids=(*prompt, *sampled),
        trained=(0,) * before + (1,) * count,
        logprobs=(None,) * before + tuple(logps),
        versions=(-1,) * before + (0,) * count,
        policy_versions=(version,),
    )
    return Sample((sequence,), advantage)


def sampled_runs(
    rows: Sequence[Sequence[int]], prompt: int, logps: Sequence[Sequence[float]], version: str
) -> list[Any]:
    """Runs of one call, whose advantages differ; `logps` are those of each row after its first `prompt` tokens."""
    return [
        sampled_run(f"t{number}", row[:prompt], row[prompt:], known, version, (-1.0) ** number)
        for number, (row, known) in enumerate(zip(rows, logps, strict=True))
    ]
