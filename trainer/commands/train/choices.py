"""What `train` chooses for this machine, with the reasons: for --print-config, and for the daemon's start."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from arttrace.commands.shared.json_output import print_json
from trainer.daemon.config import DaemonConfig, print_config, shown_config
from trainer.gateway.engines.vllm.cards import cards, first_is_free
from trainer.gateway.engines.vllm.memory import card_bytes, share_of_card
from trainer.learner import LearnerConfig
from trainer.learner.machine.card import placed
from trainer.learner.machine.fitting import FittedOption, choices, experts, lora_bytes
from trainer.learner.machine.needs import free_beside, learner_needs, read_shape

_UNKNOWN = "not known before the base model is: --base-model, or `arttrace serve`"


def machine_choices(config: DaemonConfig, base_model: Path | None) -> list[FittedOption]:
    """What is chosen where the config leaves it open, in the order of its fields, with its consequences."""
    learner = placed(config.learner)
    shape = read_shape(base_model) if base_model else {}
    free = free_beside(learner, base_model) if base_model else None
    found = choices(learner, shape, free)
    if config.learner.device is None:
        why = "a CUDA card, on which vLLM serves too" if learner.device == "cuda" else "torch finds no CUDA card"
        found.insert(0, FittedOption("device", learner.device, why))
    states = f"the newest {config.keep.states} versions can be trained on exactly" if config.keep.states else "all can"
    if shape and config.keep.states:
        share = 3 / 4 if learner.computes_in == "bfloat16" else 1 / 2  # both moments, and what the adapter has rounded
        size = share * lora_bytes(learner, shape) / (1 << 20)
        states += f", about {size:.1f} MiB each; older ones keep their weights"
    found.append(FittedOption("keep.states", config.keep.states, states))
    found.append(_engine_share(learner, base_model))
    if note := routing_note(base_model):
        found.append(FittedOption("routed_experts", "not replayed", note))
    return found


def routing_note(base_model: Path | None) -> str:
    """What is missing in the training of a mixture of experts; "" for a dense model."""
    many = experts(read_shape(base_model)) if base_model else 0
    if not many:
        return ""
    return f"{many} experts: which of them the engine chose is not recorded, the learner routes each token anew"


def _engine_share(learner: LearnerConfig, base_model: Path | None) -> FittedOption:
    name = "engine_memory_share"
    if learner.runs_on != "cuda":
        return FittedOption(name, None, "a CPU: `arttrace serve` sizes vLLM's KV cache by the model")
    if base_model is None:
        return FittedOption(name, None, _UNKNOWN)
    found = cards(os.environ)
    share = share_of_card(
        card_bytes(found[0] if found else None),
        learner_needs(base_model, learner),
        sleeps=False,
        alone=first_is_free(found, 1, 1),
    )
    return FittedOption(name, share.value, share.reason)


def describe(choice: FittedOption) -> str:
    """One line."""
    value = "its default" if choice.value is None else msgspec.json.encode(choice.value).decode()
    return f"{choice.name} = {value}: {choice.reason}"


def show_config(config: DaemonConfig, base_model: Path | None, *, as_json: bool) -> None:
    """Print the configuration as a TOML file that means the same, and as comments what is chosen; or both as JSON."""
    chosen = machine_choices(config, base_model)
    if as_json:
        document = {
            "config": shown_config(config),
            "base_model": str(base_model) if base_model else None,
            "chosen": {one.name: {"value": one.value, "reason": one.reason} for one in chosen},
        }
        print_json(document)
        return
    click.echo(print_config(config))
    click.echo(
        f"# What is left open is chosen for this machine and {base_model.name if base_model else 'the base model'}:"
    )
    for one in chosen:
        click.echo(f"# {describe(one)}")
