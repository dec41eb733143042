"""A task that a model can be taught on the spot and then has something left to learn: the sum of two numbers.

The base model is made from right demonstrations first, and then from such as are wrong in `NOISE` of all cases. So it
knows sums and answers wrongly all the same; a reward for right answers is all that tells it which of its answers to
give.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.card.shapes import Shape, add_tokenizer, make_model

NOISE = 0.6
_SPOILT = 0.5
"""Where the noisy demonstrations end: a right answer's mean probability. Then the model errs and has not forgotten."""
_TOY = Shape("toy, 0.2 M", 64, 256, 2, 4, 2, 32, 320)
_CARD = Shape("Qwen3 shape, 123 M", 1024, 4096, 8, 16, 4, 64, 2048)


@dataclass(frozen=True, slots=True)
class Task:
    """Sums of numbers below `below`. All prompts have one length, and so have all answers."""

    below: int
    end: int
    tokenizer: Any

    @property
    def longest(self) -> int:
        """Tokens of an answer, its end included."""
        return len(self.answer((0, 0))) + 1

    def scenarios(self, *, held_out: bool) -> list[tuple[int, int]]:
        """Pairs of numbers: one in five is held out, always the same."""
        pairs = [(one, other) for one in range(self.below) for other in range(self.below)]
        random.Random(11).shuffle(pairs)
        cut = len(pairs) // 5
        return pairs[:cut] if held_out else pairs[cut:]

    def question(self, pair: tuple[int, int]) -> str:
        """What the user says."""
        digits = len(str(self.below - 1))
        return f"{pair[0]:0{digits}d}+{pair[1]:0{digits}d}"

    def prompt(self, pair: tuple[int, int]) -> list[int]:
        """Its tokens in the chat template."""
        messages = [{"role": "user", "content": self.question(pair)}]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def answer(self, pair: tuple[int, int]) -> str:
        """The right one."""
        return f"{sum(pair):0{len(str(2 * self.below - 2))}d}"

    def tokens(self, answer: str) -> list[int]:
        """Of an answer, its end included."""
        return [*self.tokenizer(answer, add_special_tokens=False)["input_ids"], self.end]

    def reward(self, pair: tuple[int, int], answer: str) -> float:
        """1 for the right sum."""
        return float(answer.strip() == self.answer(pair))


def make_base(folder: Path, device: str, seconds: float) -> tuple[Path, Task, dict[str, float]]:
    """A model trained from scratch on noisy sums until it knows them and errs as they do, or time is up.

    Returns its directory, the task, and what the training came to."""
    from transformers import AutoTokenizer

    shape = _TOY if device == "cpu" else _CARD
    directory = make_model(shape, folder / "base", device)
    add_tokenizer(directory, folder, shape.vocabulary)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    task = Task(5 if device == "cpu" else 100, tokenizer.eos_token_id, tokenizer)
    return directory, task, _teach(directory, task, device, seconds)


def _teach(directory: Path, task: Task, device: str, seconds: float) -> dict[str, float]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).to(device)
    rate, gentle = (3e-3, 1e-3) if device == "cpu" else (5e-4, 2.5e-5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    pairs = task.scenarios(held_out=True) + task.scenarios(held_out=False)
    prompts = torch.tensor([task.prompt(pair) for pair in pairs], device=device)
    right = torch.tensor([task.tokens(task.answer(pair)) for pair in pairs], device=device)
    before, batch = prompts.shape[1], 25 if device == "cpu" else 512
    drawn = random.Random(5)
    began, steps, known, taught = time.monotonic(), 0, 0.0, False
    while time.monotonic() - began < seconds:
        chosen = [drawn.randrange(len(pairs)) for _ in range(batch)]
        answers = [drawn.randrange(len(pairs)) if taught and drawn.random() < NOISE else one for one in chosen]
        ids = torch.cat([prompts[chosen], right[answers]], 1)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(input_ids=ids[:, :-1]).logits[:, before - 1 :]
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, before:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        if taught:
            if _known(model, prompts[:500], right[:500])[1] < _SPOILT:
                break
        elif steps % 20 == 0 and _known(model, prompts[:500], right[:500])[0] >= 0.95:
            # Adam's memory of gradients near zero would make the first wrong answers steps without measure.
            taught, optimizer = True, torch.optim.AdamW(model.parameters(), lr=gentle, weight_decay=0.01)
    known, likely = _known(model, prompts[:500], right[:500])
    model.to(torch.bfloat16 if device == "cuda" else torch.float32).save_pretrained(directory)
    count = sum(weights.numel() for weights in model.parameters())
    took = time.monotonic() - began
    return {"parameters": count, "steps": steps, "seconds": took, "known": known, "likely": likely}


def _known(model: Any, prompts: Any, right: Any) -> tuple[float, float]:
    """The share of questions whose right answer is the likeliest at each of its tokens, and the mean probability of
    the right answers."""
    import torch

    with torch.no_grad():
        ids = torch.cat([prompts, right], 1)
        known = torch.log_softmax(model(input_ids=ids[:, :-1]).logits[:, prompts.shape[1] - 1 :].float(), -1)
        likely = known.gather(2, right[..., None]).sum((1, 2)).exp().mean()
    return float((known.argmax(-1) == right).all(1).float().mean()), float(likely)
