"""The policy as a model: a base model from a directory with a LoRA on it, and the optimizer of the LoRA's weights."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from arttrace.system.errors import TrainingError
from arttrace.system.processes import signals_after_imports
from trainer.learner.config import LearnerConfig
from trainer.learner.machine.card import placed
from trainer.learner.machine.determinism import prepare_determinism
from trainer.learner.machine.families import not_causal, refuse_family
from trainer.learner.machine.fitting import fitted, refuse_experts
from trainer.learner.machine.fused import fuse_layers
from trainer.learner.machine.memory import is_out_of_memory
from trainer.learner.machine.needs import free_beside, read_shape

_REFERENCE = "reference"
_NOISE = re.compile("drop|jitter")
_MAKE_ROOM = (
    "Use --dtype bfloat16 or --load-in-4bit. Where vLLM has the rest of the card, start `arttrace serve` with "
    "--engine-memory-share 0.4 or less."
)


def load_policy(directory: Path, config: LearnerConfig, attention: str | None = None) -> Any:
    """A PEFT model in training, its LoRA drawn from `config.seed`; equal for every engine. `attention` names an
    implementation registered with transformers.

    Raises TrainingError when the directory holds no causal LM that can be loaded, it needs more memory than there is,
    or there is no such device.
    """
    if not (directory / "config.json").is_file():
        raise TrainingError(
            f"{directory} has no model: config.json is missing.", "Pass a Hugging Face model directory."
        )
    if config.runs_on == "cuda" and not torch.cuda.is_available():
        raise TrainingError(
            "Device 'cuda' was asked for, but torch finds no CUDA device.",
            "Use --device cpu, or see `arttrace doctor`: card, driver and torch's build have to fit.",
        )
    prepare_determinism(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        try:
            model = (_by_unsloth if config.loader == "unsloth" else _by_transformers)(directory, config)
        except (OSError, ValueError, ImportError, NotImplementedError, SafetensorError) as error:
            raise TrainingError(f"The base model in {directory} cannot be loaded: {error}") from error
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                f"The base model in {directory} needs more memory than there is: {error}", _MAKE_ROOM
            ) from error
    if attention is not None:
        model.get_base_model().set_attn_implementation(attention)
    fuse_layers(model.get_base_model(), config)
    if config.kl_weight and config.kl_reference is not None:
        try:
            model.load_adapter(config.kl_reference, adapter_name=_REFERENCE, is_trainable=False)
        except (OSError, ValueError, RuntimeError) as error:
            raise TrainingError(
                f"The reference adapter in {config.kl_reference} cannot be loaded: {error}",
                "Name a directory that holds adapter_config.json of the same base model, such as a policy's version.",
            ) from error
        model.set_adapter("default")
    _without_noise(model)
    return model


def _by_transformers(directory: Path, config: LearnerConfig) -> Any:
    with signals_after_imports():
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    dtype = getattr(torch, config.computes_in)
    quantised = (
        BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
        if config.load_in_4bit
        else None
    )
    try:
        base = AutoModelForCausalLM.from_pretrained(
            str(directory), dtype=dtype, local_files_only=True, quantization_config=quantised, device_map=config.runs_on
        )
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        raise not_causal(read_shape(directory)) from error
    if getattr(base.config.get_text_config(), "attn_logit_softcapping", None):
        base.set_attn_implementation("eager")  # the usual one leaves the cap out
    return get_peft_model(
        base,
        LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            target_modules=_targets(base, config),
            exclude_modules=_beside_text(base),
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
        ),
    )


def _by_unsloth(directory: Path, config: LearnerConfig) -> Any:
    with signals_after_imports():
        from unsloth import FastLanguageModel

    length = json.loads((directory / "config.json").read_text()).get("max_position_embeddings", 4096)
    with contextlib.redirect_stdout(io.StringIO()):  # it greets
        base, _ = FastLanguageModel.from_pretrained(
            str(directory),
            max_seq_length=length,
            dtype=getattr(torch, config.computes_in),
            load_in_4bit=config.load_in_4bit,
            local_files_only=True,
        )
        return FastLanguageModel.get_peft_model(
            base,
            r=config.rank,
            lora_alpha=config.alpha,
            target_modules=_targets(base, config),
            lora_dropout=0.0,
            bias="none",
            use_gradient_checkpointing="unsloth" if config.gradient_checkpointing else False,
            random_state=config.seed,
        )


def _without_noise(model: Any) -> None:
    """Let nothing be drawn while the model is in training: with dropout, its log-probabilities would be those of no
    policy. Models keep such rates in modules and in their config, and read either."""
    for owner in (*model.modules(), model.get_base_model().config.get_text_config()):
        for name, value in list(vars(owner).items()):
            if type(value) is float and _NOISE.search(name):
                setattr(owner, name, 0.0)
        if isinstance(owner, torch.nn.modules.dropout._DropoutNd):
            owner.p = 0.0


def _targets(base: torch.nn.Module, config: LearnerConfig) -> str | list[str]:
    """The LoRA's targets as PEFT takes them, which passes over a name that does not exist beside one that does."""
    if config.lora_targets in (None, "all-linear"):
        return "all-linear"
    targets = [config.lora_targets] if isinstance(config.lora_targets, str) else list(config.lora_targets)
    linear = [f".{name}" for name, module in base.named_modules() if isinstance(module, torch.nn.Linear)]
    for target in targets:
        if not any(name.endswith(f".{target}") for name in linear):
            known = sorted({name.rpartition(".")[2] for name in linear})
            raise TrainingError(
                f"The base model has no linear module called {target!r} for the LoRA.",
                f'lora_targets takes "all-linear" or names among {", ".join(known)}.',
            )
    return targets


def _beside_text(base: Any) -> list[str] | None:
    """The linear modules of what sees or hears, beside the language model: text does not pass them, and an engine
    leaves out what a LoRA has for them."""
    text = set(base.get_decoder().modules()) | {base.get_output_embeddings()}
    return [name for name, one in base.named_modules() if isinstance(one, torch.nn.Linear) and one not in text] or None


def fitted_to_machine(config: LearnerConfig, directory: Path) -> LearnerConfig:
    """The config for a base model and this machine (fitting.py). Raises TrainingError for targets that cannot be
    served."""
    shape, config = read_shape(directory), placed(config)
    refuse_family(config, shape)
    refuse_experts(config, shape)
    return fitted(config, shape, free_beside(config, directory))


def checkpoint_layers(causal: Any) -> None:
    """Each layer is computed again in the backward pass."""
    # The second name goes with transformers 6, the first came with 5.23.
    enable = getattr(causal, "activation_checkpointing_enable", None) or causal.gradient_checkpointing_enable
    # Nothing is drawn in them (`_without_noise`): the states of random generators need not be kept and set again.
    enable({"use_reentrant": False, "preserve_rng_state": False})
    causal.enable_input_require_grads()


def in_its_precision(config: LearnerConfig) -> contextlib.AbstractContextManager[Any]:
    """Inside the block a LoRA in float32 is multiplied in its base model's 16 bits."""
    precision: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if config.dtype == "bfloat16":
        precision = torch.autocast(config.runs_on, dtype=torch.bfloat16)
    return precision


def take_inputs_as_they_are(model: Any) -> None:
    """Keep PEFT from casting the inputs of a LoRA to float32, which autocast then casts back: two passes over memory
    and a copy that is kept for the backward pass, at every linear module. For a model that only runs
    `in_its_precision`."""
    for module in model.modules():
        if hasattr(module, _CASTS):
            setattr(module, _CASTS, False)


_CASTS = "cast_input_dtype_enabled"


def trainable(model: Any) -> dict[str, torch.nn.Parameter]:
    """The LoRA's parameters by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@contextlib.contextmanager
def keeping_precision(model: Any) -> Iterator[None]:
    """Behind the block the LoRA is in float32, whatever was made of it inside. TRL's trainers put one beside a base
    model in 4 bits into bfloat16, which rounds away most of what the optimizer adds to a weight."""
    kept = [(parameter, parameter.data) for parameter in trainable(model).values()]
    yield
    for parameter, data in kept:
        parameter.data = data


def on_one_card(arguments: Any) -> Any:
    """The arguments of a trainer of transformers, which would share each batch out over all the cards that it sees:
    the model is on one."""
    _ = arguments.device  # counts them
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def make_optimizer(model: Any, config: LearnerConfig) -> torch.optim.AdamW:
    """AdamW over the LoRA's parameters."""
    return torch.optim.AdamW(trainable(model).values(), lr=config.learning_rate, **optimizer_settings(config))


def optimizer_settings(config: LearnerConfig) -> dict[str, Any]:
    """What AdamW receives besides the learning rate, which each step sets. On a card it is one kernel, which takes no
    memory: none can run out where the moments are new and the weights are not."""
    fused = config.runs_on == "cuda" or None
    return {"betas": config.adam_betas, "eps": config.adam_epsilon, "weight_decay": config.weight_decay, "fused": fused}


@contextlib.contextmanager
def as_reference(model: Any, config: LearnerConfig) -> Iterator[None]:
    """Inside the block the model is the KL term's reference, without gradients."""
    with torch.no_grad():
        if config.kl_reference is None:
            with model.disable_adapter():
                yield
            return
        model.set_adapter(_REFERENCE)
        try:
            yield
        finally:
            model.set_adapter("default")
