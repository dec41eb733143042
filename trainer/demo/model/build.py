"""Builds the demo's base model: a tiny Qwen3 from scratch, trained on demonstrations until it has learned their form.

A demonstration is one model call. Calls that continue one another become one row, and only the replies are trained on.
Some reply tokens follow from their context and some do not (which service the teacher asks is chance): only the former
can be learned for certain, and when they are is when training ends. What is left to chance is trained on with the odds
that it has in all demonstrations: with one outcome at a time, by chance too, and few of a kind in a batch, what the
model learned was up to a tenth beside the teacher's odds.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from arttrace.system.errors import TrainingError
from trainer.demo.model.demonstrations import Demonstration
from trainer.demo.model.tokenizer import END, build_tokenizer, call_phrases, words_of
from trainer.output.quiet import quiet

_BATCH_ROWS = 16
_LEARNING_RATE = 3e-3
_WARM_UP_STEPS = 30
_CHECK_EVERY = 25
_ANNEAL_STEPS = 250
_MAX_STEPS = 3000


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """What was built: where, its number of parameters, and the optimizer steps it took."""

    path: Path
    parameters: int
    steps: int


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids, which of them are replies, and for each reply the odds of all ids after its context; of one length."""

    ids: list[int]
    replies: list[bool]
    odds: list[Mapping[int, float]]


def build_base_model(
    demonstrations: Sequence[Demonstration],
    seed: int,
    path: Path,
    *,
    steps: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> BuiltModel:
    """Train the model and save it, with its tokenizer, as the Hugging Face directory `path`.

    `steps` says how long, for demonstrations in which what is certain and what is chance cannot be distinguished, as
    hardly any context comes up twice. The same demonstrations, in any order, and the same seed give the same model on
    the same machine. `path` appears as a whole or not at all. Raises TrainingError when there are no demonstrations or
    their form is not learned.
    """
    if not demonstrations:
        raise TrainingError("There are no demonstrations to build the base model from.")
    tokenizer, rows = prepare(demonstrations)
    torch.manual_seed(seed)
    model = _tiny_model(tokenizer)
    with _one_thread():
        taken = _train(model, rows, tokenizer.pad_token_id, torch.Generator().manual_seed(seed), progress, steps)
    _save(model, tokenizer, path)
    return BuiltModel(path, sum(weight.numel() for weight in model.parameters()), taken)


def prepare(demonstrations: Sequence[Demonstration]) -> tuple[PreTrainedTokenizerFast, list[Row]]:
    """The tokenizer that the demonstrations need, and their training rows."""
    renderer = build_tokenizer(())
    rendered = sorted(_render(renderer, one) for one in demonstrations)
    parameters = {name for one in demonstrations for tool in one.tools for name in _parameters(tool)}
    phrases = words_of(text for pair in rendered for text in pair).union(*map(call_phrases, parameters))
    tokenizer = build_tokenizer(phrases)
    return tokenizer, _rows(tokenizer, rendered)


def _render(tokenizer: PreTrainedTokenizerFast, one: Demonstration) -> tuple[str, str]:
    """Prompt and reply as text; the reply ends with the token that ends a message."""
    messages, tools = [dict(message) for message in one.messages], [dict(tool) for tool in one.tools]
    prompt = str(tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False))
    whole = str(tokenizer.apply_chat_template([*messages, dict(one.reply)], tools=tools, tokenize=False))
    return prompt, whole[len(prompt) : whole.rindex(END) + len(END)]


def _parameters(tool: Mapping[str, Any]) -> list[str]:
    return list(tool["function"]["parameters"]["properties"])


def _rows(tokenizer: PreTrainedTokenizerFast, rendered: Sequence[tuple[str, str]]) -> list[Row]:
    """Rows of the calls, where a call that continues another one, reply included, is in the same row.

    `rendered` is sorted, so that a call comes after those that it may continue.
    """
    end = tokenizer.convert_tokens_to_ids(END)
    encoded = tokenizer([text for pair in rendered for text in pair], add_special_tokens=False)["input_ids"]
    open_rows: dict[tuple[int, ...], list[list[bool]]] = defaultdict(list)
    for prompt, reply in zip(encoded[::2], encoded[1::2], strict=True):
        replies = [False] * len(prompt) + [True] * len(reply)
        for position in reversed([at for at, id in enumerate(prompt) if id == end]):
            continued = open_rows[tuple(prompt[: position + 1])]
            if continued:
                replies[: position + 1] = continued.pop()
                break
        open_rows[(*prompt, *reply)].append(replies)
    rows = [(list(ids), replies) for ids, several in open_rows.items() for replies in several]
    return [Row(ids, replies, odds) for (ids, replies), odds in zip(rows, _odds(rows), strict=True)]


def _odds(rows: Sequence[tuple[list[int], list[bool]]]) -> list[list[Mapping[int, float]]]:
    """For each reply token, how often which id comes after the same tokens in all rows, as shares; {} for others."""
    after: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    contexts = [[tuple(ids[:at]) if reply else () for at, reply in enumerate(replies)] for ids, replies in rows]
    for (ids, replies), before in zip(rows, contexts, strict=True):
        for id, reply, context in zip(ids, replies, before, strict=True):
            if reply:
                after[context][id] += 1
    shares = {context: {id: n / ids.total() for id, n in ids.items()} for context, ids in after.items()}
    return [
        [shares[context] if reply else {} for reply, context in zip(replies, before, strict=True)]
        for (_, replies), before in zip(rows, contexts, strict=True)
    ]


def _tiny_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.1,  # with the usual 0.02 a LoRA alone hardly moves a model this small
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config).float()


@contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread: 70 ms a step; two take 50 ms on two idle cores, but 300 ms and more on busy ones."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _train(
    model: Qwen3ForCausalLM,
    rows: Sequence[Row],
    pad: int,
    generator: torch.Generator,
    progress: Callable[[str], None],
    steps: int | None,
) -> int:
    """Train at a constant rate until all that is certain is learned, then anneal; or `steps`. The number taken."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    order: list[int] = []
    right = asked = 0
    learned_at: int | None = None
    step = 0
    anneal = _ANNEAL_STEPS if steps is None else min(_ANNEAL_STEPS, steps // 2)
    while learned_at is None or step < learned_at + anneal:
        if steps is not None and step == steps - anneal:
            learned_at = step
        if len(order) < _BATCH_ROWS:
            order += torch.randperm(len(rows), generator=generator).tolist()
        batch, order = [rows[i] for i in order[:_BATCH_ROWS]], order[_BATCH_ROWS:]
        left = 1.0 if learned_at is None else 1 - (step - learned_at) / anneal
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * min(1.0, (step + 1) / _WARM_UP_STEPS) * left
        hits, certain = _step(model, optimizer, batch, pad)
        right, asked, step = right + hits, asked + certain, step + 1
        if step % _CHECK_EVERY == 0:
            progress(f"step {step}: {right / max(asked, 1):.2%} of what can be known is predicted")
            if steps is None and learned_at is None and right == asked:
                learned_at = step
            right = asked = 0
        if steps is None and learned_at is None and step >= _MAX_STEPS:
            raise TrainingError(
                f"The tiny base model has not learned the form of its demonstrations in {step} steps.",
                "Try another --seed, or pass --base-model DIR.",
            )
    return step


def _step(model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, batch: Sequence[Row], pad: int) -> tuple[int, int]:
    """One optimizer step. How many of the batch's certain tokens were predicted, and how many there are."""
    width = max(len(row.ids) for row in batch)
    ids = torch.tensor([row.ids + [pad] * (width - len(row.ids)) for row in batch])
    replies = torch.tensor([row.replies + [False] * (width - len(row.ids)) for row in batch])[:, 1:]
    odds = [odds for row in batch for odds, reply in zip(row.odds[1:], row.replies[1:], strict=True) if reply]
    certain = torch.tensor([len(ids) == 1 for ids in odds])
    # Causal attention and padding on the right: no reply sees the padding, so no attention mask is needed.
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
    logits, targets = model.lm_head(hidden[replies]), torch.zeros(len(odds), model.config.vocab_size)
    at = [(place, id) for place, ids in enumerate(odds) for id in ids]
    targets[tuple(zip(*at, strict=True))] = torch.tensor([share for ids in odds for share in ids.values()])
    optimizer.zero_grad()
    cross_entropy(logits, targets).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    hits = (logits.argmax(-1) == targets.argmax(-1))[certain]
    return int(hits.sum()), int(certain.sum())


def _save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, path: Path) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        with quiet():
            model.save_pretrained(fresh)
            tokenizer.save_pretrained(fresh)
        if not (path / "config.json").exists():  # another demo may have built the same model meanwhile
            fresh.rename(path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
