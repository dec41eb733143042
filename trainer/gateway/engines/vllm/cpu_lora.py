"""LoRAs in vLLM on a CPU: each adapter's rows in one product of matrices.

vLLM's own functions for CPUs copy an adapter's whole matrix once for every token, which takes most of a step's time.
And those of vLLM 0.32 give a row without an adapter, whose index is -1, the adapter in the last place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import linear


def multiply_by_adapter() -> None:
    """Put these functions in the place of vLLM's in this process."""
    try:
        from vllm.lora.ops.torch_ops import lora_ops
        from vllm.lora.punica_wrapper import punica_cpu
    except ImportError as error:
        logging.getLogger("vllm").warning(
            "LoRAs are computed slowly: this vLLM keeps its functions elsewhere: %s", error
        )
        return
    replace_in(lora_ops)
    replace_in(punica_cpu)


def replace_in(module: ModuleType) -> None:
    """Give `module` these functions under the names by which vLLM calls its own."""
    for name, function in (("shrink", shrink), ("expand", expand), ("expand_slice", expand_slice)):
        setattr(module, f"bgmv_{name}", function)
        setattr(module, f"sgmv_{name}", for_runs(function))


def for_runs(function: Callable[..., None]) -> Callable[..., None]:
    """`function` as vLLM calls it with runs of rows of one adapter each: `adapters` and `lengths` have one of each run.

    Mostly all rows have the newest version's adapter: then there is one run, and nothing has to be found out by row.
    """

    def computed(
        inputs: torch.Tensor,
        weights: torch.Tensor,
        output: torch.Tensor,
        starts: torch.Tensor,
        lengths: torch.Tensor,
        adapters: torch.Tensor,
        runs: int,
        longest: int,
        tokens: int,
        *further: Any,
    ) -> None:
        indices = adapters if runs == 1 else torch.repeat_interleave(adapters, lengths)
        function(inputs, weights, output, indices, *further)

    return computed


def shrink(
    inputs: torch.Tensor, weights: torch.Tensor, output: torch.Tensor, indices: torch.Tensor, scaling: float = 1.0
) -> None:
    """`output` becomes the inputs times the matrix A of each row's adapter, scaled; its further columns stay."""
    product = _product(inputs, weights, indices, output.dtype)
    torch.mul(product, scaling, out=output[:, : product.shape[1]])


def expand(
    inputs: torch.Tensor, weights: torch.Tensor, output: torch.Tensor, indices: torch.Tensor, add_inputs: bool = True
) -> None:
    """Add to `output`, or put there, the inputs times the matrix B of each row's adapter."""
    width = min(weights.shape[-2], output.shape[1])
    expand_slice(inputs, weights[..., :width, :], output, indices, 0, width, add_inputs)


def expand_slice(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    indices: torch.Tensor,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = True,
) -> None:
    """The same for some columns of `output`."""
    product = _product(inputs, weights, indices, output.dtype)
    columns = output[: len(product), slice_offset : slice_offset + slice_size]
    if add_inputs:
        columns += product
    else:
        columns.copy_(product)


def _product(inputs: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Each row times the transposed matrix that its index names among `weights`; nothing where it is negative. A single
    index is that of all rows."""
    inputs = inputs.to(dtype)
    matrices = weights.squeeze(1) if weights.dim() == 4 else weights
    first = int(indices[0]) if len(indices) else -1
    if first >= 0 and (len(indices) == 1 or bool((indices == first).all())):
        return linear(inputs, matrices[first].to(dtype))
    product = inputs.new_zeros(len(inputs), matrices.shape[1])
    for index in indices.unique().tolist():
        if index >= 0:
            rows = (indices == index).nonzero().squeeze(1)
            product[rows] = linear(inputs[rows], matrices[index].to(dtype))
    return product
