"""benchmarks/traffic.py at toy size: what its counts say of the packed engine's layers."""

from __future__ import annotations

from one_thread import one_thread as one_thread

from benchmarks.card.shapes import TOY
from benchmarks.traffic import step_of


def test_norms_take_a_kernel_each_way_and_rotations_fewer_passes(one_thread: None) -> None:
    plain, tokens = step_of(TOY, ["norm_in_one_kernel", "rotate_by_halves"])
    without_norms, _ = step_of(TOY, ["norm_in_one_kernel"])
    now, same = step_of(TOY, [])
    assert tokens == same > 500
    assert now.operations == plain.operations
    norms = 4 * TOY.layers + 1
    assert now.calls["rms_norm", "bfloat16"] == 2 * norms - 1, "once more for the backward pass, but the last"
    assert now.calls["rms_norm_backward", "bfloat16"] == norms
    assert plain.calls["pow", "float32"] > norms > now.calls["pow", "float32"]
    saved = without_norms.beside - now.beside
    width = 2 * (2 * TOY.hidden + (TOY.heads + TOY.key_heads) * TOY.head_size)
    assert saved > 40 * TOY.layers * tokens * width
    assert plain.beside > without_norms.beside
