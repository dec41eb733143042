"""What options of other trainers are called here, for whoever tries their names with `arttrace train`."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

import click

from trainer.output.log import LoggingCommand

_KL: Final = "--kl-weight"
_RUNS: Final = "`arttrace rollout -n 8`, and --group-size of --daemon"
_BATCH: Final = (
    "no option: a step trains on all ready groups (--min-groups of --daemon), in --minibatches optimizer steps;"
    " --micro-batch-tokens bounds the memory"
)
_CALLS: Final = "in the calls of the agent, as it asks for it; `arttrace serve --sampling` can overrule it"
_MODEL: Final = "--base-model"
_DIVIDED: Final = "--advantages: none, std (`group` in TRL) or batch"
_NORM: Final = "no option: gradients are clipped at a norm of 1"
_AGE: Final = "--max-staleness"
_PLAYED: Final = "your agent's function under @arttrace.trajectory, run by `arttrace rollout`"
_BOTH_BOUNDS: Final = "--epsilon-low and --epsilon-high"
OPTIONS: Final = {
    "adv-estimator": "--advantages",
    "advantage-estimator": "--advantages",
    "batch-size": _BATCH,
    "beta": _KL,
    "clip-eps": _BOTH_BOUNDS,
    "clip-ratio": _BOTH_BOUNDS,
    "clip-ratio-c": "--delta",
    "clip-ratio-high": "--epsilon-high",
    "clip-ratio-low": "--epsilon-low",
    "cliprange": _BOTH_BOUNDS,
    "eps-clip-high": "--epsilon-high",
    "eps-clip-low": "--epsilon-low",
    "epsilon": _BOTH_BOUNDS,
    "gradient-accumulation-steps": _BATCH,
    "groups-per-batch": _BATCH,
    "grpo-norm-by-std": _DIVIDED,
    "kl-coef": _KL,
    "kl-estimator-type": "--kl-estimator",
    "kl-loss-coef": _KL,
    "kl-loss-type": "--kl-estimator",
    "kl-penalty-coef": _KL,
    "kl-tau": _KL,
    "lora-dropout": "no option: an adapter is trained without dropout",
    "lora-r": "--lora-rank",
    "loss-fn": "--loss",
    "loss-type": "--loss",
    "lr": "--learning-rate",
    "max-completion-length": _CALLS,
    "max-completion-tokens": _CALLS,
    "max-generate-length": _CALLS,
    "max-grad-norm": _NORM,
    "max-norm": _NORM,
    "max-num-steps": "--steps, or --max-steps of --daemon",
    "max-off-policy-steps": _AGE,
    "max-response-length": _CALLS,
    "max-staleness-steps": _AGE,
    "max-steps-off-policy": _AGE,
    "max-tokens": _CALLS,
    "max-trajectory-age-steps": _AGE,
    "model": _MODEL,
    "model-name": _MODEL,
    "model-name-or-path": _MODEL,
    "n-samples-per-prompt": _RUNS,
    "norm-adv-by-std-in-grpo": _DIVIDED,
    "num-generations": _RUNS,
    "num-generations-per-prompt": _RUNS,
    "num-iterations": "--epochs",
    "num-prompts-per-step": _BATCH,
    "num-substeps": "--minibatches",
    "per-device-train-batch-size": _BATCH,
    "policy-loss-type": "--loss",
    "policy-mini-batch-size": _BATCH,
    "ppo-epochs": "--epochs",
    "ppo-mini-batch-size": _BATCH,
    "reference-kl-penalty": _KL,
    "reward-funcs": "`arttrace score --reward module:function`, before the training",
    "reward-weights": "no option: rewards of one run are added up; weigh them where the agent gives them",
    "rollout-func": _PLAYED,
    "rollout-n": _RUNS,
    "rollouts-per-example": _RUNS,
    "scale-rewards": _DIVIDED,
    "temperature": _CALLS,
    "train-batch-size": _BATCH,
    "train-dataset": "`arttrace rollout --input FILE`, one JSON object of the entry's arguments on a line",
    "use-kl-loss": _KL,
    "use-vllm": "`arttrace serve`, which runs vLLM",
    "vllm-importance-sampling-clip-max": "--importance-clip-max",
    "vllm-importance-sampling-clip-min": "--importance-clip-min",
    "vllm-importance-sampling-mode": "--importance",
}
"""By their names in TRL, verl, ART, Tinker, OpenRLHF, verifiers, prime-rl, SkyRL and NeMo RL, with dashes."""
_SETTING: Final = re.compile(r"\+{0,2}(\w+(?:\.\w+)*)=.*", re.DOTALL)
"""How Hydra and chz take a setting, with the sections that it is in."""


def here(given: str, own: Collection[str] = ()) -> str | None:
    """What an option (`--beta`, `--trainer.optim.lr`) or a setting (`algorithm.kl_loss_coef=0.1`) of another trainer
    is called here, of which `own` are the options; None for one that is not known."""
    written = _SETTING.fullmatch(given)
    name = (written[1] if written else given.lstrip("-")).rpartition(".")[2].replace("_", "-")
    return OPTIONS.get(name) or (f"--{name}" if f"--{name}" in own else None)


class TrainCommand(LoggingCommand):
    """A command that says what an option or a setting of another trainer is here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does. Raises click.UsageError for an option that there is not, and for an argument."""
        given = list(args)
        own = {option for parameter in self.params for option in parameter.opts}
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if (ours := here(error.option_name, own)) is None:
                raise
            raise click.UsageError(f"No such option {error.option_name!r}; here it is {ours}", ctx) from error
        except click.UsageError as error:
            known = [(one, ours) for one in given if _SETTING.fullmatch(one) and (ours := here(one, own))]
            if not known or "unexpected extra argument" not in error.message:
                raise
            said = "; ".join(f"{one} is {ours}" for one, ours in known)
            raise click.UsageError(f"Settings are options here: {said}", ctx) from error
