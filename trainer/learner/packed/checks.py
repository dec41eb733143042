"""Whether a model can be trained as a forest: tried on a few tokens when it is loaded, whoever loaded it.

What a library puts in the place of a model's own code (attention that asks nobody, positions counted anew) gives other
numbers than the model's, and no error. So the numbers are compared. On CUDA there are tokens enough for the kernel of
the steps to come: one that cannot be compiled there, or computes something else, is known before anything waits for it.
"""

from __future__ import annotations

from typing import Any

import torch

from arttrace.system.errors import TrainingError
from trainer.learner.machine.fitting import experts
from trainer.learner.packed.attention import Kernel, visiting
from trainer.learner.packed.head import Head
from trainer.learner.packed.kernels.flex import LEAST_TOKENS
from trainer.learner.packed.layout import Block, Layout, single_row

_COMMON, _OWN = 3, 5
_OWN_OF_KERNEL = LEAST_TOKENS // 2
"""Enough for two rows together to be worth FlexAttention's kernel, and for each alone not to be: they are compared."""
_BOUND = {torch.bfloat16: 0.05, torch.float16: 0.05}
"""Of the difference, relative to what a row gives alone; 1e-3 in full precision. Positions that are counted anew make
0.17 of it in a random Qwen3 of 8 layers, two kernels in bfloat16 0.012 in one of 28. Twice the bound in a mixture of
experts, whose router may choose another one for a token."""
_OTHERWISE = "Train with --engine trl."


def check_model(causal: Any, head: Head, device: str, kernel: Kernel) -> None:
    """Raises TrainingError when the model computes something that this engine would leave out."""
    config, name = causal.config.get_text_config(), type(causal).__name__
    own = _OWN_OF_KERNEL if kernel == "flex" else _OWN
    places = torch.arange(_COMMON + 2 * own, device=device)
    ids, layout = places % config.vocab_size, _two_branches(places, own)
    second = torch.cat([places[:_COMMON], places[_COMMON + own :]])
    with torch.no_grad():
        with visiting(layout, kernel) as visit:
            together = _hidden(causal, ids, layout.positions)
        if visit.layers != config.num_hidden_layers:
            raise TrainingError(
                f"The packed engine cannot train {name}: {_who_attends(causal, config.num_hidden_layers)}",
                "Use --loader transformers, with --load-in-4bit where memory is short; or --engine trl."
                if _by_unsloth(causal)
                else _OTHERWISE,
            )
        with visiting(single_row(len(second), device), kernel):
            alone = _hidden(causal, ids[second], places[: len(second)])
            logits = causal(
                input_ids=ids[second][None], position_ids=places[None, : len(second)], use_cache=False
            ).logits
        if not head.gives(logits, alone[None]):
            raise TrainingError(
                f"The packed engine cannot train {name}: it changes its logits after its output head.", _OTHERWISE
            )
    apart = float((together[second] - alone).float().norm() / alone.float().norm().clamp(min=1e-12))
    # The coarser of the two: a last norm in float32 says nothing of the products before it.
    bound = max(_BOUND.get(dtype, 1e-3) for dtype in (alone.dtype, logits.dtype))
    if not apart <= (2 * bound if experts(config.to_dict()) else bound):
        raise TrainingError(
            f"The packed engine cannot train {name}: rows that share a beginning come out otherwise than alone, by "
            f"{apart:.0%}.",
            "It does not follow the positions that it is given, or mixes tokens outside of attention. " + _OTHERWISE,
        )


def _two_branches(places: torch.Tensor, own: int) -> Layout:
    """Two rows with a common beginning, each with `own` tokens behind it."""
    end, last = _COMMON + own, len(places) - 1
    exits = torch.full_like(places, last)
    exits[_COMMON:end] = end - 1
    positions = torch.cat([places[:end], places[_COMMON:end]])
    return Layout((Block(0, end, places[:0]), Block(end, last + 1, places[:_COMMON])), positions, exits)


def _hidden(causal: Any, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = causal.get_decoder()(
        input_ids=ids[None], position_ids=positions[None], use_cache=False
    ).last_hidden_state[0]
    return found


def _by_unsloth(causal: Any) -> list[str]:
    """The attention modules of the model whose code is Unsloth's, by the name of their class."""
    own = {
        type(part) for name, part in causal.named_modules() if name.rpartition(".")[2].endswith(("attn", "attention"))
    }
    return sorted(one.__name__ for one in own if str(one.forward.__module__).startswith("unsloth"))


def _who_attends(causal: Any, layers: int) -> str:
    if replaced := _by_unsloth(causal):
        return f"Unsloth has put its own attention in the place of {', '.join(replaced)}, which knows no forest."
    return f"not all of its {layers} layers use the attention that transformers lets one choose."
