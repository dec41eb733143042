"""LoRAs in vLLM on a CPU: each adapter's rows in one product of matrices.

vLLM's own functions for CPUs copy an adapter's whole matrix once for every token, which takes most of a step's time.
And those of vLLM 0.32 give a row without an adapter, whose index is -1, the adapter in the last place.
"""

from __future__ import annotations

import logging
from types import ModuleType

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
    for name, function in (("bgmv_shrink", shrink), ("bgmv_expand", expand), ("bgmv_expand_slice", expand_slice)):
        setattr(module, name, function)


def shrink(
    inputs: torch.Tensor, weights: torch.Tensor, output: torch.Tensor, indices: torch.Tensor, scaling: float = 1.0
) -> None:
    """`output` becomes the inputs times the matrix A of each row's adapter, scaled; its further columns stay."""
    product = _product(inputs, weights, indices, output.dtype)
    output[:, : product.shape[1]] = scaling * product


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
    """Each row times the transposed matrix that its index names among `weights`; nothing where it is negative."""
    inputs = inputs.to(dtype)
    matrices = weights.squeeze(1) if weights.dim() == 4 else weights
    first = int(indices[0]) if len(indices) else -1
    if first >= 0 and bool((indices == first).all()):
        return linear(inputs, matrices[first].to(dtype))
    product = inputs.new_zeros(len(inputs), matrices.shape[1])
    for index in indices.unique().tolist():
        if index >= 0:
            rows = (indices == index).nonzero().squeeze(1)
            product[rows] = linear(inputs[rows], matrices[index].to(dtype))
    return product
