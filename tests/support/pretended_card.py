"""A pretended H100, for a PyTorch without CUDA: tensors on it are fake, and Inductor makes and compiles Triton's
kernels for it as on a machine that has one. None is launched. `pretend` comes before torch is imported.

PyTorch asks a device for its properties and streams in C++ and in Python; here both answer. A C++ compiler makes the
first part, Triton brings its own compilers for the kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SHARED_MEMORY = 232_448
"""Bytes that a block of threads may use on an H100 and an H200."""
GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
namespace {
constexpr auto CUDA = c10::DeviceType::CUDA;
const c10::Stream the_stream() { return c10::Stream(c10::Stream::DEFAULT, {CUDA, 0}); }
struct Guard : public c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = CUDA;
  Guard() {}
  c10::DeviceType type() const override { return CUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return {CUDA, 0}; }
  c10::Device getDevice() const override { return {CUDA, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return the_stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return the_stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return the_stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
struct CUDAHooks : public at::CUDAHooksInterface {
  CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);
}
"""
_PROPERTIES = SimpleNamespace(
    name="NVIDIA H100",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65_536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=80 << 30,
    shared_memory_per_block=49_152,
    shared_memory_per_block_optin=SHARED_MEMORY,
    shared_memory_per_multiprocessor=233_472,
    gcnArchName="",
    L2_cache_size=50 << 20,
)


def pretend(scratch: Path) -> list[tuple[str, int]]:
    """From now on there is the card. Returns the kernels that are loaded to it as they come: name, bytes of shared
    memory; one that takes more than there is, is Triton's error."""
    load(GUARD, scratch)
    loaded: list[tuple[str, int]] = []
    _properties()
    _inductor()
    _driver(loaded)
    return loaded


def load(source: str, scratch: Path) -> None:
    """Compile C++ against PyTorch and load it, before PyTorch asks what devices there are."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    written, library, home = scratch / "card.cpp", scratch / "card.so", Path(found.origin).parent
    written.write_text(source)
    command = ["g++", "-std=c++20", "-O0", "-fPIC", "-shared", f"-I{home}/include", str(written), "-o", str(library)]
    command += [f"-I{home}/include/torch/csrc/api/include", f"-L{home}/lib", "-lc10", "-ltorch_cpu"]
    subprocess.run([*command, f"-Wl,-rpath,{home}/lib"], check=True, timeout=300)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def _properties() -> None:
    import torch
    from torch._dynamo.device_interface import CudaInterface

    for where in (CudaInterface, CudaInterface.Worker):
        where.get_device_properties = staticmethod(lambda _=None: _PROPERTIES)
        where.current_device = staticmethod(lambda: 0)
    # Each a function of its own: Dynamo knows these by what they are.
    torch.cuda.get_device_properties = lambda _=None: _PROPERTIES
    torch.cuda.current_device = lambda: 0
    answers: dict[str, Any] = {
        "device_count": lambda: 1,
        "is_available": lambda: True,
        "is_triton_capable": lambda _=None: True,
        "raise_if_triton_unavailable": lambda _=None: None,
        "get_compute_capability": lambda _=None: 90,
        "is_bf16_supported": lambda *_, **__: True,
        "get_raw_stream": lambda _: 0,
        "synchronize": lambda _=None: None,
        "exchange_device": lambda _: 0,
        "maybe_exchange_device": lambda _: 0,
    }
    for name, answer in answers.items():
        setattr(CudaInterface, name, staticmethod(answer))
    nothing: Any = lambda *_, **__: contextlib.nullcontext()  # noqa: E731
    CudaInterface.device = torch.cuda.device = nothing
    torch.cuda.get_device_capability = lambda _=None: (9, 0)
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_name = lambda _=None: _PROPERTIES.name
    torch.cuda.set_device = lambda _: None
    torch.cuda.synchronize = lambda _=None: None
    torch.cuda._exchange_device = lambda _: 0
    torch.cuda._maybe_exchange_device = lambda _: 0
    torch._C._cuda_getCurrentRawStream = lambda _: 0
    torch._C._dynamo.guards._empty_strided_cuda = lambda size, stride, dtype: torch.empty_strided(
        size, stride, dtype=dtype, device="cuda"
    )


def _inductor() -> None:
    import torch._inductor.config as settings
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch.utils import _triton

    settings.use_static_cuda_launcher, settings.compile_threads, settings.force_disable_caches = False, 1, True
    _triton.has_triton = lambda: True
    triton_helpers.set_driver_to_gpu = lambda: None
    triton_helpers.get_backend_options = dict
    CachingAutotuner.autotune_to_one_config = lambda self, *_, **__: setattr(self, "launchers", self.launchers[:1])


def _driver(loaded: list[tuple[str, int]]) -> None:
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    def load_binary(name: str, _binary: bytes, shared: int, *_: Any) -> tuple[int, ...]:
        loaded.append((name, shared))
        return 1, 1, 128, 0, 1024

    card = {"max_shared_mem": SHARED_MEMORY, "multiprocessor_count": 132, "max_num_regs": 65_536, "warpSize": 32}
    driver.set_active(
        SimpleNamespace(
            utils=SimpleNamespace(
                get_device_properties=lambda _: card, load_binary=load_binary, unload_module=lambda _: None
            ),
            launcher_cls=lambda _source, _metadata: lambda *_, **__: None,
            binary_ext="cubin",
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_current_device=lambda: 0,
            set_current_device=lambda _: None,
            get_current_stream=lambda _=None: 0,
            get_active_torch_device=lambda: torch.device("cuda", 0),
            get_device_interface=lambda: torch.cuda,
        )
    )
