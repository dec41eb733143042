"""The vLLM process: how it is called, when it is ready, and what its log says when it dies."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import math
import os
import re
import secrets
import sys
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from arttrace.system.addresses import without_login
from arttrace.system.cpu import missing_for_vllm
from arttrace.system.errors import ServingError
from arttrace.system.exit_status import how_ended
from arttrace.wire.sampling_fields import NEUTRAL
from trainer.gateway.engines.vllm.cards import VISIBLE
from trainer.gateway.engines.vllm.model import ModelShape, kv_cache_blocks, kv_cache_gib
from trainer.gateway.engines.vllm.process import GuardedProcess
from trainer.learner.machine.card import has_driver
from trainer.learner.machine.fitting import ATTENTION

_INSTALL = "Install the whole stack: pip install --no-deps -r requirements/cpu.txt (on a GPU: requirements/cuda.txt)."
_COMPILER = "Install a C++ compiler (Debian and Ubuntu: apt-get install g++) and start again."
_CPU_MAX_LEN, _CUDA_MAX_LEN = 4096, 32768
_CPU_BLOCK = 32  # tokens of one block of the KV cache
_CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"
_MAX_SOCKET_PATH = 100  # bytes; Linux takes 107, macOS 103


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to serve one base model. `extra` goes to vLLM's command line last, so that it wins; `tool_call_parser` None
    means the one of the model's family.

    With `sleep` the engine can give its card to a trainer. `memory_share` is how much of a card it takes (None: 92 %,
    and 60 % where it sleeps).
    """

    base_model: Path
    shape: ModelShape
    max_model_len: int | None = None
    tool_call_parser: str | None = None
    sleep: bool = False
    memory_share: float | None = None
    extra: tuple[str, ...] = ()
    cards: tuple[str, ...] | None = None
    """The CUDA cards that it sees; None: all that we do."""


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine listens and the key it asks for (None for an engine that is not ours).

    `url` is http://..., or unix:PATH for a socket in the file system: so do our own, whose directory only this user may
    enter. vLLM asks for its key at /v1 alone; its other routes do whatever they are asked by whoever reaches them.
    """

    url: str = field(repr=False)
    key: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """Its URL for logs, errors and who asks for the gateway's status: without a login."""
        return without_login(self.url)


def serves_on_cpu() -> bool:
    """Whether the installed vLLM is a CPU build or the machine has no CUDA device. Loads neither torch nor vllm."""
    if _installed("vllm-cpu") or "cpu" in _installed("vllm"):  # vLLM's own builds are X+cpu
        return True
    return not has_driver()


def _installed(package: str) -> str:
    """Its version; empty where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def engine_command(
    options: EngineOptions, socket: Path, marker: str, *, cpu: bool, cache_is_given: bool = False
) -> list[str]:
    """vLLM's command line. The model is served under its directory's name and under `marker`, which only we know.
    `cache_is_given` where the environment says how much memory the KV cache takes on a CPU."""
    shape = options.shape
    command = [sys.executable, "-m", "trainer.gateway.engines.vllm.serve"]
    command += ["--model", str(options.base_model), "--served-model-name", shape.name, marker]
    command += ["--uds", str(socket), "--max-model-len", str(_context(options, cpu))]
    command += ["--enable-lora", "--max-loras", "4", "--max-cpu-loras", "8", "--max-lora-rank", str(_MAX_LORA_RANK)]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", options.tool_call_parser or tool_call_parser(shape)]
    if shape.experts:
        # Else vLLM keeps room for adapters of all its experts.
        command += ["--lora-target-modules", *ATTENTION]
    listed = (options.base_model / "model.safetensors.index.json").is_file()
    if listed and any(options.base_model.glob("consolidated*.safetensors")):
        # The same weights in Mistral's form: vLLM would take those, with Mistral's tokenizer and no chat template. By
        # the list it knows the files of the other form; without one it would load both.
        command += ["--config-format", "hf", "--load-format", "hf", "--tokenizer-mode", "hf"]
    # A model directory may carry sampling defaults (top_p, top_k): they would bias the importance ratios unseen.
    command += ["--override-generation-config", _NEUTRAL_SAMPLING]
    # Of the distribution that a token was sampled from, temperature included: what an importance ratio starts from.
    command += ["--logprobs-mode", "processed_logprobs"]
    command += ["--disable-uvicorn-access-log"]
    if options.sleep:
        command += ["--enable-sleep-mode"]
    memory_share = options.memory_share or (0.6 if options.sleep else None)
    if memory_share is not None and not cpu:
        command += ["--gpu-memory-utilization", f"{memory_share:g}"]
    if shape.dtype == "float16" and not cpu:
        command += ["--dtype", "bfloat16"]  # as the learner computes; vLLM would take it as it is stored
    if cpu:
        command += ["--dtype", "float32", "--block-size", str(_CPU_BLOCK), "--distributed-executor-backend", "uni"]
        blocks = kv_cache_blocks(shape, _context(options, cpu), _CPU_BLOCK)
        if blocks is not None and not cache_is_given:
            # A CPU's cache is whole GiB, all of which vLLM writes zeros to: a tiny model needs a small part of one.
            command += ["--num-gpu-blocks-override", str(blocks)]
    return command + list(options.extra)


_MAX_LORA_RANK = 32

_NEUTRAL_SAMPLING = msgspec.json.encode(NEUTRAL).decode()

GRAMMAR_PARSERS = ("glm45", "glm47", "beam")
"""Parsers that let a grammar choose among the tokens of every tool call, unless vLLM is set not to."""

_NO_GRAMMAR = {"VLLM_ENFORCE_STRICT_TOOL_CALLING": "0", "VLLM_BEAM_ALWAYS_CONSTRAIN_OUTPUT": "0"}


def tool_call_parser(shape: ModelShape) -> str:
    """vLLM's parser for the tool calls of a model of this family."""
    return "openai" if shape.family == "gpt_oss" else "hermes"


_SPREAD = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--prefill-context-parallel-size", "-pcp"),
    ("--data-parallel-size", "-dp"),
)


def cards_of_engine(options: EngineOptions) -> int:
    """How many cards one engine takes: as many as its model is spread over by what it is given on the command line."""
    return max(1, math.prod(_last_number(options, 1, *names) for names in _SPREAD))


def max_lora_rank(options: EngineOptions) -> int:
    """The largest rank of an adapter that one engine loads."""
    return _last_number(options, _MAX_LORA_RANK, "--max-lora-rank")


def _last_number(options: EngineOptions, usual: int, *names: str) -> int:
    """The number that an argument of these names is given on the command line last."""
    return [usual, *(int(value) for value in _given(options, *names) if value.isdecimal())][-1]


def _given(options: EngineOptions, *names: str) -> list[str]:
    """What these arguments are given on the command line, in order; vLLM takes underscores for dashes."""
    words = [part for word in options.extra for part in word.split("=", 1)]
    return [value for name, value in itertools.pairwise(words) if name.replace("_", "-") in names]


def told_precision(options: EngineOptions) -> str:
    """The precision that vLLM is told on the command line, "" without one; by "auto" it takes the one that the model is
    stored in, and 16 bits for 32."""
    told = ["", *_given(options, "--dtype")][-1]
    if told == "auto":
        return "bfloat16" if options.shape.dtype == "float32" else options.shape.dtype
    return {"half": "float16", "float": "float32"}.get(told, told)


def engine_environment(options: EngineOptions, base: Mapping[str, str], key: str, *, cpu: bool) -> dict[str, str]:
    """vLLM's environment: offline, silent about usage, adapters loadable at run time by whoever has `key`."""
    environment = {
        **base,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_API_KEY": key,
        "PYTHONSAFEPATH": "1",  # a directory named vllm in the working directory must not be taken for the package
        "PYTHONUNBUFFERED": "1",
    }
    if [options.tool_call_parser, *_given(options, "--tool-call-parser")][-1] in GRAMMAR_PARSERS:
        environment = {**_NO_GRAMMAR, **environment}
    if options.sleep:
        environment["VLLM_SERVER_DEV_MODE"] = "1"  # else there is no /sleep
    if options.cards is not None:
        environment[VISIBLE] = ",".join(options.cards)
    if cpu:
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        space = kv_cache_gib(options.shape, _context(options, cpu))
        environment.setdefault(_CPU_CACHE, str(space))
        # With adapters vLLM leaves the model itself uncompiled on a CPU. What it would compile is one function of the
        # sampler, the ranks of log-probabilities: a C++ compiler's work of ten seconds, for milliseconds of a step.
        environment.setdefault("TORCHDYNAMO_DISABLE", "1")
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) // 2)))
    return environment


class VllmProcess:
    """One run of vLLM. Raises ServingError at once when vLLM is missing."""

    def __init__(self, options: EngineOptions, log: Path) -> None:
        cpu = serves_on_cpu()
        if importlib.util.find_spec("vllm") is None:
            raise ServingError("vLLM is not installed in this environment", _INSTALL)
        if cpu and options.sleep:
            raise ServingError(
                "sleeping gives a CUDA card's memory back, and this vLLM runs on the CPU",
                "Leave --sleep-while-training out: learner and engine share the machine's memory anyway.",
            )
        if cpu and options.shape.experts:
            raise ServingError(
                f"vLLM cannot serve {options.shape.name} ({options.shape.family or 'a mixture of experts'}, "
                f"{options.shape.experts} experts) with adapters on a CPU: where adapters are loaded it computes "
                "experts by Triton's kernels alone",
                "Serve it on a CUDA card, or choose a dense model.",
            )
        if cpu and (missing := missing_for_vllm()):
            raise ServingError(
                f"vLLM's CPU build needs {missing}, which this machine's CPU does not have",
                "Serve on another machine, or name an engine of yours: --vllm-url URL.",
            )
        directory = _private_directory()
        socket = directory / "engine.sock"
        key = secrets.token_urlsafe(24)
        self.marker = f"arttrace-{secrets.token_hex(8)}"
        self.address = EngineAddress(f"unix:{socket}", key)
        self._process = GuardedProcess(
            engine_command(options, socket, self.marker, cpu=cpu, cache_is_given=_CPU_CACHE in os.environ),
            log=log,
            scratch=directory,
            # The sockets by which its processes speak among themselves lie beside its own, and go with it.
            env={**engine_environment(options, os.environ, key, cpu=cpu), "VLLM_RPC_BASE_PATH": str(directory)},
        )

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.returncode is None

    @property
    def pid(self) -> int:
        """The id of its process group."""
        return self._process.pid

    def failure(self) -> ServingError:
        """Why it died, from its exit code and its log."""
        return explain_death(self._process.returncode, self._process.log_text(), self._process.log)

    def stop(self) -> None:
        """End it and everything it started."""
        self._process.stop()


_CAUSES: tuple[tuple[str, str, str], ...] = (
    (r"No module named '?vllm'?(?![\w.])", "vLLM is not installed in this environment", _INSTALL),
    (
        r"driver on your system is too old|CUDA driver version is insufficient|Error 803|forward compatibility was",
        "the driver of the card is older than what torch and vLLM are built for",
        "Install the driver of CUDA 13 (580 or newer), or an older set of torch and vLLM.",
    ),
    (
        r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device",
        "vLLM is built for cards, and finds none",
        "`nvidia-smi` shows the cards, CUDA_VISIBLE_DEVICES hides them, a container has to be given them (docker run "
        "--gpus all). On a machine without one install requirements/cpu.txt.",
    ),
    (
        r"InvalidCxxCompiler|No working C\+\+ compiler|g\+\+: (?:command )?not found|No such file.*'g\+\+'",
        "vLLM could not compile: no working C++ compiler (g++) was found",
        _COMPILER,
    ),
    (
        r"less than desired GPU memory",
        "other programs hold what vLLM was to take of the card",
        "End those that `nvidia-smi` shows, or give vLLM a smaller share: --engine-memory-share.",
    ),
    (
        r"No available memory for the cache blocks|larger than the (?:available|maximum).*KV cache|"
        r"CUDA out of memory|OutOfMemoryError|Cannot allocate memory|MemoryError",
        "vLLM ran out of memory",
        "Give it less to hold: a smaller --max-model-len, or a smaller model. Its share of a card is "
        "--engine-memory-share.",
    ),
    (
        r"Unsupported CPU attention configuration.*",
        "vLLM's CPU build has no attention for heads of this size",
        "Choose a base model whose head_dim is 32, 64, 96, 128 or 256, or serve it on a CUDA card.",
    ),
    (
        r"does not support LoRA|LoRA is not supported for|architectures? .*not supported|Unsupported model",
        "vLLM cannot serve this model with LoRA adapters",
        "Choose a causal language model that vLLM lists with LoRA support (Qwen, Llama, Mistral and others).",
    ),
    (
        r"no module or parameter named",
        "the model's files hold weights under other names than vLLM knows",
        "Save the model again with a version of transformers that names them as this vLLM expects, or choose another.",
    ),
    (
        r"User-specified max_model_len .* is greater than",
        "--max-model-len is longer than the model's context",
        "Choose a smaller --max-model-len.",
    ),
    (r"invalid tool call parser", "vLLM does not know this --tool-call-parser", "The line above names the known ones."),
    (r"unrecognized arguments|invalid choice|expected one argument", "vLLM refused an argument", "Check --vllm-arg."),
    (
        r"(?:ImportError|OSError): .*(?:cannot open shared object file|undefined symbol).*|"
        r"operator torchvision::\w+ does not exist",
        "vLLM or torch cannot be imported: a library is missing, or is of another build",
        "Install both again as pinned together: requirements/cpu.txt, or requirements/cuda.txt for a card.",
    ),
)  # fmt: skip


def explain_death(returncode: int | None, log_text: str, log: Path) -> ServingError:
    """The cause of vLLM's death with its hint, and the log lines that show it."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log_text)
    for pattern, cause, hint in _CAUSES:
        if matches := list(re.finditer(pattern, text, re.IGNORECASE)):
            match = matches[-1]  # a traceback shows the line of code that raised before what it said
            start = text.rfind("\n", 0, match.start()) + 1
            line = text[start : (text.find("\n", match.end()) + 1 or len(text) + 1) - 1]
            return ServingError(f"{cause}\n  {line.strip()[:500]}", f"{hint}\nThe whole log: {log}")
    lines = [line for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\bERROR\b|Error:|error:", line)] or lines
    shown = "\n".join(f"  {line[:300]}" for line in telling[-5:])
    memory = "Free memory or choose a smaller --max-model-len.\n" if returncode in (137, -9) else ""
    return ServingError(
        f"vLLM ended with {how_ended(returncode)}\n{shown}",
        f"{memory}The whole log: {log}",
    )


def _context(options: EngineOptions, cpu: bool) -> int:
    return options.max_model_len or min(options.shape.max_positions, _CPU_MAX_LEN if cpu else _CUDA_MAX_LEN)


def shortened_context(options: EngineOptions, *, cpu: bool) -> str:
    """Words about a context that is shorter than the model's though nobody asked for it; empty without one."""
    context, models = _context(options, cpu), options.shape.max_positions
    if options.max_model_len is not None or context >= models or _given(options, "--max-model-len"):
        return ""
    return f"contexts of at most {context} tokens, of {models} that the model takes: --max-model-len"


def _private_directory() -> Path:
    """A new directory that only this user may enter, its path short enough for vLLM's sockets (named by UUIDs)."""
    made = Path(tempfile.mkdtemp(prefix="arttrace-"))
    if len(os.fsencode(made)) > _MAX_SOCKET_PATH - len(f"/{uuid.UUID(int=0)}"):
        made.rmdir()
        made = Path(tempfile.mkdtemp(prefix="arttrace-", dir="/tmp"))
    return made
