"""A stand-in for a CUDA card whose memory is the machine's own and whose kernels are the CPU's: what is sent to it is
computed. `put_in` comes before torch is imported.

PyTorch takes it for a card in all that it decides by the device: which tensors may meet, what autocast casts, where
gradients go. So a tensor that was left on the CPU is the error that it is on a card, and precisions are a card's.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pretended_card import GUARD, load

_MEMORY = 8 << 30
_CARD = """
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>
#include <cstdlib>
#include <cstring>
namespace {
struct Memory final : public c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* at = n ? std::aligned_alloc(64, (n + 63) / 64 * 64) : nullptr;
    return {at, at, &std::free, c10::Device(CUDA, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }
};
Memory memory;
REGISTER_ALLOCATOR(CUDA, &memory)
constexpr c10::DispatchKeySet KEYS(c10::DispatchKey::CUDA);
using Sizes = c10::SymIntArrayRef;
template <typename T> using Maybe = std::optional<T>;
at::IntArrayRef ints(Sizes sizes) { return C10_AS_INTARRAYREF_SLOW(sizes); }
int64_t whole(const c10::SymInt& number) { return number.guard_int(__FILE__, __LINE__); }

at::Tensor on_host(const at::Tensor& t) {
  if (t.device().type() != CUDA) return t;
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), at::TensorOptions().dtype(t.dtype()));
}
at::Tensor empty(
    Sizes size, Maybe<c10::ScalarType> dtype, Maybe<c10::Layout>, Maybe<c10::Device>, Maybe<bool>,
    Maybe<c10::MemoryFormat> format) {
  return at::detail::empty_generic(ints(size), &memory, KEYS, c10::dtype_or_default(dtype), format);
}
at::Tensor empty_strided(
    Sizes size, Sizes stride, Maybe<c10::ScalarType> dtype, Maybe<c10::Layout>, Maybe<c10::Device>, Maybe<bool>) {
  return at::detail::empty_strided_generic(ints(size), ints(stride), &memory, KEYS, c10::dtype_or_default(dtype));
}
at::Tensor as_strided(const at::Tensor& t, Sizes size, Sizes stride, Maybe<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      t, ints(size), ints(stride), offset ? Maybe<int64_t>(whole(*offset)) : std::nullopt);
}
at::Tensor view(const at::Tensor& t, Sizes size) { return at::native::view(t, ints(size)); }
at::Tensor reshape_alias(const at::Tensor& t, Sizes size, Sizes stride) {
  return at::native::_reshape_alias(t, ints(size), ints(stride));
}
at::Tensor unfold(const at::Tensor& t, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(t, dim, size, step);
}
const at::Tensor& resize_(const at::Tensor& t, Sizes size, Maybe<c10::MemoryFormat> format) {
  return at::native::resize_(t, ints(size), format);
}
at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool) {
  auto held = on_host(to);
  held.copy_(on_host(from));
  return to;
}
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  auto held = on_host(to);
  held.copy_(on_host(from));
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}
c10::Scalar number(const at::Tensor& t) { return on_host(t).item(); }
at::Tensor& set_part(at::Tensor& t, c10::Storage of, c10::SymInt offset, Sizes size, Sizes stride) {
  return at::native::set_storage_cpu_(t, of, whole(offset), ints(size), ints(stride));
}
at::Tensor& set_whole(at::Tensor& t, c10::Storage of) {
  return at::native::set_storage_cpu_(t, of, 0, {static_cast<int64_t>(of.nbytes() / t.dtype().itemsize())}, {});
}
void by_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // Tensors with dimensions all lie on the card; indices alone may lie elsewhere.
  auto check = [&](const at::Tensor& t) {
    TORCH_CHECK(!t.defined() || t.device().type() == CUDA || t.dim() == 0,
        "Expected all tensors to be on the same device, but found cuda:0 and cpu in ", op.schema().operator_name());
  };
  for (const auto& given : torch::jit::last(stack, op.schema().arguments().size())) {
    if (given.isTensor()) check(given.toTensor());
    if (given.isTensorList()) for (const at::Tensor& t : given.toTensorList()) check(t);
  }
  at::native::cpu_fallback(op, stack, false);
}
TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("unfold", &unfold);
  library.impl("resize_", &resize_);
  library.impl("copy_", &copy_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &number);
  library.impl("set_.source_Storage_storage_offset", &set_part);
  library.impl("set_.source_Storage", &set_whole);
}
}
"""


def put_in(scratch: Path) -> None:
    """From now on there is the card."""
    load(GUARD + _CARD, scratch)
    _answers()
    _storages()


def _answers() -> None:
    import torch

    properties = SimpleNamespace(name="a card of the host's", major=9, minor=0, total_memory=_MEMORY)
    answers: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "is_bf16_supported": True, "device_count": 1, "current_device": 0,
        "is_current_stream_capturing": False, "get_device_properties": properties, "get_device_capability": (9, 0),
        "get_device_name": properties.name, "mem_get_info": (_MEMORY, _MEMORY), "synchronize": None,
        "empty_cache": None, "set_device": None, "manual_seed_all": None, "_lazy_init": None, "set_rng_state": None,
        "_exchange_device": 0, "_maybe_exchange_device": 0, "memory_reserved": 0, "memory_allocated": 0,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()

    class Device(contextlib.nullcontext[None]):
        pass

    torch.cuda.device = Device
    counted = torch.histc  # of whole numbers on a card alone
    torch.histc = lambda given, *rest, **more: counted(given.float(), *rest, **more).to(given.dtype)


def _storages() -> None:
    """PyTorch without CUDA makes none on a card but those of tensors."""
    import torch

    def made(storage: Any, device: Any) -> Any:
        held = torch.empty(storage.nbytes(), dtype=torch.uint8, device=device)
        return held.untyped_storage().copy_(storage)

    def to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
        return storage if torch.device(device) == storage.device else made(storage, device)

    torch.UntypedStorage.clone = lambda storage: made(storage, storage.device)
    torch.UntypedStorage.to = to
    torch.UntypedStorage.cuda = lambda storage, *_, **__: made(storage, "cuda")
