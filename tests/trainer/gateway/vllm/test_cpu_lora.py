"""LoRAs on a CPU are computed as vLLM computes them, but for rows of no adapter, which stay as they are."""

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.gateway.engines.vllm import cpu_lora

RANK, WIDTH, ADAPTERS = 4, 6, 3
ONE_AFTER_THE_OTHER, AMONG_BASE_ROWS = [0, 0, 0, 0, 0], [2, -1, 0, 2, -1]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def expected(inputs: torch.Tensor, weights: torch.Tensor, indices: list[int]) -> torch.Tensor:
    """Row by row."""
    matrices = weights.reshape(ADAPTERS, *weights.shape[-2:])
    nothing = torch.zeros(matrices.shape[1])
    rows = zip(inputs, indices, strict=True)
    found = [nothing if index < 0 else matrices[index] @ row for row, index in rows]
    return torch.stack(found) if found else torch.zeros(0, matrices.shape[1])


@pytest.mark.parametrize("indices", [ONE_AFTER_THE_OTHER, AMONG_BASE_ROWS, [-1] * 5, [1], []])
@pytest.mark.parametrize("stacked", [(ADAPTERS,), (ADAPTERS, 1)], ids=["3 dimensions", "4 dimensions"])
def test_each_row_is_multiplied_by_its_adapter(stacked: tuple[int, ...], indices: list[int]) -> None:
    count, named = len(indices), torch.tensor(indices, dtype=torch.long)
    a, b = random(*stacked, RANK, WIDTH), random(*stacked, WIDTH, RANK)
    inputs, low = random(count, WIDTH), random(count, RANK)

    shrunk = torch.full((count, RANK + 1), 7.0)
    cpu_lora.shrink(inputs, a, shrunk, named, 0.5)
    torch.testing.assert_close(shrunk[:, :RANK], 0.5 * expected(inputs, a, indices))
    assert (shrunk[:, RANK] == 7.0).all()

    output = random(count, 2 * WIDTH)
    wanted = output.clone()
    wanted[:, 3 : 3 + WIDTH] += expected(low, b, indices)
    cpu_lora.expand_slice(low, b, output, named, 3, WIDTH)
    torch.testing.assert_close(output, wanted)
    cpu_lora.expand_slice(low, b, output, named, 0, WIDTH, add_inputs=False)
    torch.testing.assert_close(output[:, :WIDTH], expected(low, b, indices))
    torch.testing.assert_close(output[:, WIDTH + 3 :], wanted[:, WIDTH + 3 :])

    for columns in (WIDTH - 1, WIDTH + 1):  # adapter and model may pad the output differently
        common = min(columns, WIDTH)
        output = random(count, columns)
        wanted = output.clone()
        wanted[:, :common] += expected(low, b, indices)[:, :common]
        cpu_lora.expand(low, b, output, named)
        torch.testing.assert_close(output, wanted)


@pytest.fixture
def vllms() -> Any:
    """A copy of the module of vLLM's with its functions, without the seconds that importing vLLM takes."""
    if (vllm := importlib.util.find_spec("vllm")) is None:
        pytest.skip("vLLM is not installed")
    spec = importlib.util.spec_from_file_location(
        "copy_of_lora_ops", Path(str(vllm.origin)).parent / "lora" / "ops" / "torch_ops" / "lora_ops.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("indices", "rows"),
    [([2, 2, 1], [2, 2, 2]), ([2, -1, 1], [2, 1, 3]), ([1], [6]), ([-1], [6])],
    ids=["adapters", "and rows of the base model", "one adapter", "the base model"],
)
def test_vllm_calls_them_in_place_of_its_own(vllms: Any, indices: list[int], rows: list[int]) -> None:
    cpu_lora.replace_in(vllms)
    a, b = random(ADAPTERS, 1, RANK, WIDTH), random(ADAPTERS, 1, WIDTH, RANK)
    each = [index for index, count in zip(indices, rows, strict=True) for _ in range(count)]
    inputs, low, output = random(len(each), WIDTH), torch.zeros(len(each), RANK), torch.zeros(len(each), WIDTH)
    starts = torch.tensor([0, *rows[:-1]]).cumsum(0)
    requests = (starts, torch.tensor(rows), torch.tensor(indices), len(indices), max(rows), len(each))
    vllms.sgmv_shrink(inputs, a, low, *requests, 2.0)
    torch.testing.assert_close(low, 2.0 * expected(inputs, a, each))
    vllms.sgmv_expand_slice(low, b, output, *requests, 0, WIDTH, True)
    torch.testing.assert_close(output, expected(low, b, each))
    vllms.sgmv_expand(low, b, output, *requests, True)
    torch.testing.assert_close(output, 2 * expected(low, b, each))
    wrapper = Path(vllms.__file__).parents[2] / "punica_wrapper" / "punica_cpu.py"
    imported = [alias.name for node in ast.walk(ast.parse(wrapper.read_text())) for alias in getattr(node, "names", [])]
    replaced = {f"{kind}_{name}" for kind in ("bgmv", "sgmv") for name in ("shrink", "expand", "expand_slice")}
    assert replaced <= set(imported)
