"""A linear module with a LoRA: the numbers of PEFT, without its passes over memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from trainer.learner.packed.layers.lora import _Sum, add_within_products

RANK, WIDE, NARROW, TOKENS = 4, 48, 32, 10


class Passes(TorchDispatchMode):
    """Counts what goes over tensors as large as a module's input or output, products aside."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.shape[-1:] in ((WIDE,), (NARROW,)) and out.numel() >= TOKENS * NARROW:
            self.seen[str(function.overloadpacket.__name__)] += 1
        return out


def adapted(*, bias: bool = True, dtype: torch.dtype = torch.float64, alpha: int = 10) -> Any:
    """A PEFT model of one linear module whose LoRA says something; its adapter stays in float32 beside 16 bits."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(5)
    base = torch.nn.Sequential(torch.nn.Linear(NARROW, WIDE, bias=bias, dtype=dtype))
    model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=alpha, target_modules=["0"]))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def computed(model: Any, x: torch.Tensor, wanted: torch.Tensor) -> dict[str, torch.Tensor]:
    """The output and every gradient, for one input and one gradient of the output."""
    x = x.clone().requires_grad_()
    out = model(x)
    out.backward(wanted)
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return {"out": out.detach(), "x": x.grad, **found}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(TOKENS, NARROW), (2, 5, NARROW)])
def test_output_and_gradients_are_those_of_peft(bias: bool, shape: tuple[int, ...]) -> None:
    model = adapted(bias=bias)
    x = torch.randn(shape, dtype=torch.float64)
    gradient = torch.randn((*shape[:-1], WIDE), dtype=torch.float64)
    before = computed(model, x, gradient)
    add_within_products(model)
    after = computed(model, x, gradient)
    assert len(after) == 4
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert after[name].shape == value.shape
        assert torch.allclose(after[name], value, rtol=1e-12, atol=1e-12), name


@pytest.mark.parametrize("recorded", [True, False])
def test_output_is_no_view_of_another_shape(recorded: bool) -> None:
    model = adapted(dtype=torch.float32)
    x = torch.randn(2, 5, NARROW)
    add_within_products(model)
    with torch.set_grad_enabled(recorded):
        within, plain = model(x), torch.nn.functional.linear(x, torch.randn(WIDE, NARROW))
    assert plain._base is None
    assert within._base is None, "what is compiled has a guard on what a view is of, and is compiled again for each"


def test_sixteen_bits_are_no_further_from_the_truth_than_by_peft() -> None:
    exact = adapted(alpha=2 * RANK)
    x, gradient = torch.randn(40 * TOKENS, NARROW), torch.randn(40 * TOKENS, WIDE)
    half = adapted(dtype=torch.bfloat16, alpha=2 * RANK)
    half.load_state_dict(exact.state_dict())
    exact.load_state_dict({name: value.double() for name, value in half.state_dict().items()})
    true = computed(exact, x.bfloat16().double(), gradient.bfloat16().double())

    def off() -> dict[str, float]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = computed(half, x.bfloat16(), gradient.bfloat16())
        assert found["out"].dtype == torch.bfloat16
        return {name: float((value.double() - true[name]).norm() / true[name].norm()) for name, value in found.items()}

    by_peft = off()
    add_within_products(half)
    ours = off()
    assert ours["out"] < by_peft["out"]
    assert ours["x"] < by_peft["x"]
    assert max(ours.values()) < 2**-8, ours  # half a unit in the last of bfloat16's places


@pytest.mark.parametrize("bias", [True, False])
def test_sixteen_bits_are_rounded_where_the_engine_rounds_them(bias: bool) -> None:
    """The LoRA is added to a product that is rounded already: what is small beside it is lost here as it is there."""
    half = adapted(bias=bias, dtype=torch.bfloat16)
    half.base_model.model[0].lora_B["default"].weight.data *= 1e-3
    x = torch.randn(40 * TOKENS, NARROW).bfloat16()
    add_within_products(half)
    ours = half(x)
    layer = half.base_model.model[0]
    down = layer.lora_A["default"].weight.bfloat16()
    up = layer.lora_B["default"].weight.bfloat16() * layer.scaling["default"]  # as vLLM holds it
    base = layer.base_layer(x)
    assert torch.equal(ours, (base.float() + (x @ down.t()).float() @ up.float().t()).bfloat16())
    assert 0.1 < float((ours == base).float().mean()) < 0.9


def test_nothing_but_products_goes_over_inputs_and_outputs() -> None:
    model = adapted(bias=False, dtype=torch.float32)
    add_within_products(model)
    x = torch.randn(TOKENS, NARROW, requires_grad=True)
    gradient = torch.randn(TOKENS, WIDE)
    with Passes() as passes:
        model(x).backward(gradient)
    moved = passes.seen - Counter({"view": 99, "t": 99, "detach": 99, "expand": 99, "_unsafe_view": 99})
    assert moved == Counter({"mm": 2, "addmm_": 2}), passes.seen


def test_a_layer_computed_again_leaves_out_its_last_product() -> None:
    """The backward pass needs what goes into it; PyTorch ends there if nothing is kept of later operations."""
    model = adapted()
    add_within_products(model)
    x = torch.randn(TOKENS, NARROW, dtype=torch.float64, requires_grad=True)
    wanted = computed(model, x.detach(), torch.ones(TOKENS, WIDE, dtype=torch.float64))
    x.grad = None
    with Passes() as passes:
        out = checkpoint(lambda x: torch.sin(torch.sin(x)) + model(x).sum(), x, use_reentrant=False)
        forward, passes.seen = passes.seen, Counter()
        out.sum().backward()
    assert forward["addmm_"] == 1
    assert passes.seen["addmm_"] == 1, "of the input's gradient; the module's own product is not computed again"
    assert passes.seen["mm"] == 1
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, TOKENS * NARROW * wanted[name], rtol=1e-10, atol=1e-10)


def test_an_input_without_a_gradient_is_given_none() -> None:
    model = adapted(bias=False)
    add_within_products(model)
    with Passes() as passes:
        model(torch.randn(TOKENS, NARROW, dtype=torch.float64)).sum().backward()
    assert passes.seen["mm"] == 1, "no product with the frozen weights backwards"
    assert all(p.grad is not None for name, p in model.named_parameters() if "lora_" in name)


def test_it_stands_aside_for_what_it_does_not_compute(tmp_path: Path) -> None:
    model = adapted()
    x = torch.randn(TOKENS, NARROW, dtype=torch.float64)
    add_within_products(model)
    adapted_out = model(x)
    model.save_pretrained(tmp_path)
    model.load_adapter(str(tmp_path), adapter_name="second")
    with model.disable_adapter():
        assert torch.equal(model(x), model.base_model.model[0].base_layer(x))
    model.base_model.set_adapter(["default", "second"])
    both = model(x)
    base = model.base_model.model[0].base_layer(x)
    assert torch.allclose(both - base, 2 * (adapted_out - base))
    model.set_adapter("second")
    assert torch.allclose(model(x), adapted_out, rtol=1e-6)
    model.merge_adapter()
    assert torch.allclose(model(x), adapted_out, rtol=1e-6)


def test_what_has_a_gradient_is_used_in_the_forward_pass() -> None:
    """PyTorch 2.11 gave none to what its compiler found unused: those of a compiled feed-forward part were all 0."""

    def forward(place: Any, x: Any, low: Any, up: Any, weight: Any) -> Any:
        return _Sum.forward(None, place, x, low, up, weight, None)

    [place, *_] = torch.fx.symbolic_trace(forward).graph.nodes
    assert place.users
