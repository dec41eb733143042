"""What options of other trainers are called here, for whoever tries their names with `arttrace train`."""

from __future__ import annotations

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
_BOTH_BOUNDS: Final = "--epsilon-low and --epsilon-high"
OPTIONS: Final = {
    "adv-estimator": "--advantages",
    "batch-size": _BATCH,
    "beta": _KL,
    "clip-eps": _BOTH_BOUNDS,
    "clip-ratio": _BOTH_BOUNDS,
    "epsilon": _BOTH_BOUNDS,
    "gradient-accumulation-steps": _BATCH,
    "kl-coef": _KL,
    "kl-loss-coef": _KL,
    "kl-penalty-coef": _KL,
    "lora-r": "--lora-rank",
    "loss-fn": "--loss",
    "loss-type": "--loss",
    "lr": "--learning-rate",
    "max-completion-length": _CALLS,
    "max-grad-norm": "no option: gradients are clipped at a norm of 1",
    "max-tokens": _CALLS,
    "model": _MODEL,
    "model-name": _MODEL,
    "model-name-or-path": _MODEL,
    "n-samples-per-prompt": _RUNS,
    "num-generations": _RUNS,
    "num-iterations": "--epochs",
    "per-device-train-batch-size": _BATCH,
    "ppo-epochs": "--epochs",
    "reward-funcs": "`arttrace score --reward module:function`, before the training",
    "rollout-n": _RUNS,
    "rollouts-per-example": _RUNS,
    "scale-rewards": "--advantages: none, std (`group` in TRL) or batch",
    "temperature": _CALLS,
    "train-batch-size": _BATCH,
    "use-vllm": "`arttrace serve`, which runs vLLM",
    "vllm-importance-sampling-mode": "--importance",
}
"""By their names in TRL, verl, ART, Tinker, OpenRLHF and verifiers, with dashes."""


class TrainCommand(LoggingCommand):
    """A command that says what an option of another trainer is here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does. Raises click.UsageError for an option that there is not."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            here = OPTIONS.get(error.option_name.lstrip("-").replace("_", "-"))
            if here is None:
                raise
            raise click.UsageError(f"No such option {error.option_name!r}; here it is {here}", ctx) from error
