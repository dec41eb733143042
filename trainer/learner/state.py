"""What a learner keeps on disk: the adapter as PEFT and vLLM load it, and beside it what is needed to go on exactly."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError

from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.errors import TrainingError
from trainer.learner.config import LearnerConfig
from trainer.learner.policy_model import optimizer_settings, trainable
from trainer.policies.files import DROPPED, STATE
from trainer.policies.tensor_file import write_tensors

_ADAPTER, _ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_COMPUTED_OTHERWISE = (
    "use_rslora",
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "alpha_pattern",
    "rank_pattern",
    "layers_to_transform",
    "layer_replication",
    "modules_to_save",
    "lora_bias",
    "alora_invocation_tokens",
)
"""PEFT's settings with which the same two matrices, or not only these, are another model than the learner's."""


def save_adapter(directory: Path, model: Any, config: LearnerConfig) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` into an existing directory, as PEFT names them: what
    an engine loads, in the base model's 16 bits where it has 16. Whoever waits for a new version waits for this."""
    from peft import get_peft_model_state_dict

    lora = model.peft_config["default"]
    training, lora.inference_mode = lora.inference_mode, True
    try:
        lora.save_pretrained(str(directory))
    finally:
        lora.inference_mode = training
    weights = get_peft_model_state_dict(model, adapter_name="default", save_embedding_layers=False)
    write_tensors(directory / _ADAPTER, weights, _rounded_to(config))


def _rounded_to(config: LearnerConfig) -> torch.dtype | None:
    """A LoRA in float32 beside a base model in bfloat16 is multiplied in bfloat16, by the learner as by the engine:
    what is written is what both multiply by. None: as it is."""
    return torch.bfloat16 if config.computes_in == "bfloat16" else None


SAMPLED = "policy gradient"
"""The loss of a step on what the policy sampled; the others have their methods' names."""
_LOSSES = {"grpo": SAMPLED, "distill": SAMPLED, "sft": "sft", "dpo": "dpo"}


class Loaded(NamedTuple):
    """The number of steps done, and a line where AdamW's moments were not taken ("" elsewhere)."""

    steps: int
    note: str = ""


def save_rest(
    directory: Path, model: Any, optimizer: torch.optim.Optimizer, steps: int, config: LearnerConfig, loss: str
) -> None:
    """Write beside the adapter what is needed to go on exactly: its weights too, where it has them rounded. `loss` is
    whose gradients the optimizer's moments are of."""
    state = {
        "loss": loss,
        "optimizer": optimizer.state_dict(),
        "steps": steps,
        "config": json.dumps(dataclasses.asdict(config)),
        "rng": torch.get_rng_state(),
    }
    if _rounded_to(config) is not None:
        state["weights"] = {_saved_as(name): p.detach() for name, p in trainable(model).items()}
    if config.runs_on == "cuda":
        state["cuda_rng"] = torch.cuda.get_rng_state()
    torch.save(state, directory / STATE)


def load_state(
    directory: Path, model: Any, optimizer: torch.optim.Optimizer, config: LearnerConfig, loss: str
) -> Loaded:
    """Go on from what `save_adapter` and `save_rest` wrote.

    A version that lost the optimizer's state to retention gives its weights, and the optimizer begins anew. So it does
    where the moments are of another loss than that which is trained next: the second ones, of a thousand steps, would
    scale its steps by gradients of another size. A changed learning rate leaves them, which do not depend on it.

    Raises TrainingError when it is missing, damaged or of another shape.
    """
    from safetensors.torch import load_file

    dropped = (directory / DROPPED).exists() and not (directory / STATE).exists()
    try:
        state = (
            _fresh(directory)
            if dropped
            else torch.load(directory / STATE, map_location=config.runs_on, weights_only=True)
        )
        saved = load_file(str(directory / _ADAPTER), device=config.runs_on)
        lora = json.loads((directory / _ADAPTER_CONFIG).read_bytes())
        rank, alpha = lora["r"], lora["lora_alpha"]
    except Exception as error:
        raise TrainingError(
            f"The trainer's state in {directory} cannot be read: {error}", "Continue from the version before it."
        ) from error
    if others := [name for name in _COMPUTED_OTHERWISE if lora.get(name) not in (None, False, {}, [])]:
        raise TrainingError(
            f"{directory / _ADAPTER_CONFIG} sets {', '.join(others)}: what is served and merged by it is another "
            "policy than the one that would be trained on.",
            "Take out what was changed in it, continue from the version before it, or begin a new policy.",
        )
    saved |= state.get("weights", {})
    weights = {_saved_as(name): p for name, p in trainable(model).items()}
    if rank != config.rank:
        raise TrainingError(
            f"The adapter in {directory} was trained with lora_rank {rank}, not {config.rank}.",
            f"Train on with --lora-rank {rank}, or begin a new policy.",
        )
    if weights.keys() != saved.keys() and (has := _targets(lora)) != (
        asked := _targets(vars(model.peft_config["default"]))
    ):
        raise TrainingError(
            f"The adapter in {directory} has the LoRA on {', '.join(has)}, and not on {', '.join(asked)}.",
            f"Train on with lora_targets = {json.dumps(has)}, or begin a new policy.",
        )
    if {name: p.shape for name, p in weights.items()} != {name: tensor.shape for name, tensor in saved.items()}:
        raise TrainingError(
            f"The adapter in {directory} does not fit: it was trained with another base model.",
            "Train on with the base model it was begun with, or begin a new policy.",
        )
    if alpha != config.alpha:  # the same weights times another number are another policy
        raise TrainingError(
            f"The adapter in {directory} was trained with lora_alpha {alpha}, not {config.alpha}: with that it "
            "would be another policy than the one that is served.",
            f"Train on with --lora-alpha {alpha}, or begin a new policy.",
        )
    with torch.no_grad():
        for name, parameter in weights.items():
            parameter.copy_(saved[name])
    if dropped:
        optimizer.state.clear()  # of a step that was made and could not be kept
        return Loaded(int(state["steps"]))
    before, note = state.get("loss") or _loss_of_version(directory), ""
    if before in (loss, ""):
        optimizer.load_state_dict(state["optimizer"])
        for group in optimizer.param_groups:  # its moments are loaded; what it does with them is the config's
            group.update(optimizer_settings(config))
    else:
        optimizer.state.clear()
        note = f"AdamW's moments begin anew: those of {directory.name} are of {before}"
    torch.set_rng_state(state["rng"].cpu())
    if config.runs_on == "cuda" and "cuda_rng" in state:
        torch.cuda.set_rng_state(state["cuda_rng"].cpu())
    return Loaded(state["steps"], note)


def _loss_of_version(directory: Path) -> str:
    """By its manifest, for states from before they said it; "" where that does not say it."""
    import msgspec  # which a machine that only measures the learner does not have

    from arttrace.records.policy import PolicyStep

    try:
        made = msgspec.json.decode((directory / "manifest.json").read_bytes(), type=PolicyStep)
    except (OSError, *UNREADABLE):
        return ""
    return _LOSSES.get(made.made_by, "")


def _fresh(directory: Path) -> dict[str, Any]:
    """The number of steps, which the version's manifest has too: one step makes one version."""
    return {"steps": int(json.loads((directory / "manifest.json").read_bytes())["step"])}


def _targets(lora: Mapping[str, Any]) -> list[str]:
    """The modules that a LoRA is on, by PEFT's config of it, which has the path of each where all linear ones are."""
    targets = lora["target_modules"]
    return [targets] if isinstance(targets, str) else sorted({name.rpartition(".")[2] for name in targets})


def _saved_as(name: str) -> str:
    """A parameter's name in an adapter's file."""
    return name.replace(".default.", ".")


class Weights:
    """The LoRA's weights as they are now."""

    def __init__(self, model: Any) -> None:
        self._parameters = trainable(model)
        self._weights = {name: p.detach().clone() for name, p in self._parameters.items()}

    @classmethod
    def of_version(cls, model: Any, directory: Path) -> Weights | None:
        """Those that a version's directory holds; None where it holds none that fit."""
        from safetensors.torch import load_file

        found = cls(model)
        try:
            saved = load_file(str(directory / _ADAPTER))
            found._weights = {
                name: saved[_saved_as(name)].to(tensor).reshape(tensor.shape) for name, tensor in found._weights.items()
            }
        except (OSError, KeyError, RuntimeError, SafetensorError):
            return None
        return found

    @classmethod
    def of_base_model(cls, model: Any) -> Weights:
        """Those with which the LoRA adds nothing: PEFT's second matrices are zero."""
        found = cls(model)
        for name, tensor in found._weights.items():
            if ".lora_B." in name:
                tensor.zero_()
        return found

    def restore(self) -> None:
        """Make them so again."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(self._weights[name])

    def go_towards(self, other: Weights, times: float) -> None:
        """Give the model those that are so many times the way from these to the other ones."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(torch.lerp(self._weights[name], other._weights[name], times))


class Snapshot:
    """Weights and optimizer as they are now, to come back to when a step turns out to be unsound."""

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.weights = Weights(model)
        self._state = copy.deepcopy(optimizer.state_dict())

    def restore(self) -> None:
        """Make them so again, as often as it is called: the optimizer changes in place what it is given."""
        self.weights.restore()
        self._optimizer.load_state_dict(copy.deepcopy(self._state))
