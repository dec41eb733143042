"""TRL's own tree row: its packing and its attention over gathered keys, on the learner's model, with its head and loss.

Both are one file of TRL 1.16, loaded by its path: the trainer around it samples by servers of its own. Its kernel comes
from a hub; in its place is PyTorch's attention of many lengths, on a CPU the formula of it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

FILE = Path("trl/experimental/async_grpo/packing.py")


def file() -> Path | None:
    """Where the file is; None where no TRL on the path has it."""
    return next((found for folder in sys.path if (found := Path(folder) / FILE).is_file()), None)


class TreeRows:
    """Samples as TRL packs them."""

    def __init__(self, rows: Sequence[Any], budget: int) -> None:
        """`rows` are a planned step's, `budget` TRL's: distinct tokens of a row, and tokens trained in it."""
        self._packing = load()
        self._rows = rows
        self._packed: list[tuple[dict[str, torch.Tensor], list[int]]] = []
        open_row, members = self._packing.TreeRow(), list[int]()
        for number, row in enumerate(rows):
            sample = _sample(row)
            if members and not open_row.fits(sample, budget):
                self._packed.append((open_row.pack(), members))
                open_row, members = self._packing.TreeRow(), []
            open_row.add(sample)
            members.append(number)
        self._packed.append((open_row.pack(), members))

    def work(self) -> dict[str, int]:
        """Tokens that go through the model, pairs of a token and one it attends to, and predictions."""
        packed = [one for one, _ in self._packed]
        return {
            "tokens": sum(one["input_ids"].numel() for one in packed),
            "pairs": sum(int((one["position_ids"] + 1).sum()) for one in packed),
            "predictions": sum(int((one["shift_labels"] >= 0).sum()) for one in packed),
        }

    def step(self, learner: Any, normaliser: float) -> float:
        """One optimisation step; returns the loss."""
        learner.model.get_base_model().set_attn_implementation(self._packing.TREE_ATTENTION)
        loss = 0.0
        for packed, members in self._packed:
            loss += self._accumulate(learner, packed, members, normaliser)
        learner.optimizer.step()
        learner.optimizer.zero_grad(set_to_none=True)
        return loss

    def _accumulate(
        self, learner: Any, packed: dict[str, torch.Tensor], members: list[int], normaliser: float
    ) -> float:
        from trainer.learner.packed.head import log_probabilities
        from trainer.learner.packed.losses import Before, loss_terms
        from trainer.learner.policy_model import in_its_precision

        given = {name: tensor.to(learner.config.device) for name, tensor in packed.items()}
        longest, path = packed["tree_max_seqlens"].tolist()
        learner.layers.choose(given["input_ids"].numel())
        with in_its_precision(learner.config):
            hidden = learner._decoder(
                input_ids=given["input_ids"][None],
                position_ids=given["position_ids"][None],
                use_cache=False,
                tree_kv_index=given["tree_kv_index"],
                tree_cu_seqlens_q=given["tree_cu_seqlens_q"],
                tree_cu_seqlens_k=given["tree_cu_seqlens_k"],
                tree_max_seqlen_q=longest,
                tree_max_seqlen_k=path,
            ).last_hidden_state[0]
        labelled = (given["shift_labels"] >= 0).nonzero().squeeze(1)
        ones = torch.ones(labelled.numel(), device=hidden.device)
        found, _ = log_probabilities(learner._head, hidden[labelled], given["shift_labels"][labelled], ones)
        logps = found.new_zeros(given["input_ids"].numel()).index_put((labelled,), found)[given["token_index"]]
        captured = given["old_log_probs"]
        weights = torch.tensor([self._rows[one].weight for one in members], device=hidden.device)
        terms = loss_terms(learner.config, logps, given["advantages"], Before(sampled=captured, old=captured))
        part = (weights[given["segment_id"]] * terms.loss).sum() / normaliser
        part.backward()
        return float(part.detach())


def _sample(row: Any) -> dict[str, Any]:
    return {
        "input_ids": torch.tensor(row.token_ids),
        "completion_mask": torch.tensor(row.targets),
        "old_log_probs": torch.tensor(row.logprobs),
        "advantage": row.advantage,
        "group_id": 0,
    }


def load() -> Any:
    """The file as a module. Raises FileNotFoundError where no TRL on the path has it."""
    found = file()
    if found is None:
        raise FileNotFoundError(f"{FILE}: no TRL on the path has it")
    spec = importlib.util.spec_from_file_location("trl_tree_packing", found)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=_attend)
    module.register_tree_attention()
    return module


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_starts: torch.Tensor,
    key_starts: torch.Tensor,
    most_queries: int,
    most_keys: int,
    *,
    softmax_scale: float,
    **_: Any,
) -> torch.Tensor:
    """As FlashAttention's function of many lengths is asked, with gradients."""
    lengths = (query_starts, key_starts, most_queries, most_keys)
    if query.device.type == "cpu":
        sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))
        from stand_in_varlen import stand_in_varlen_attn

        return stand_in_varlen_attn(query, key, value, *lengths, scale=softmax_scale, window_size=(-1, 0))
    from trainer.learner.packed.kernels.kind import Kind
    from trainer.learner.packed.kernels.varlen import attend

    kind = Kind(scale=softmax_scale, window=None, softcap=None, sinks=None)
    return attend(query.contiguous(), key, value, *lengths, kind)
