"""`arttrace demo`: the whole loop, on a machine with no GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from arttrace.system.paths import DataDir


@click.command()
@click.option(
    "--seed",
    type=click.IntRange(0, 4294967295),
    default=1,
    show_default=True,
    help="Seed of the base model, the scenarios and the sampling.",
)
@click.option("--steps", type=click.IntRange(min=1), help="Optimisation steps.  [default: as many as the task needs]")
@click.option(
    "--judge", metavar="MODEL", help="A real judge by its litellm name, such as openai/o3.  [default: a stand-in]"
)
@click.option(
    "--base-model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Train this model instead of the tiny one built on the spot.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the store, adapters and report.  [default: ./arttrace-demo/seed-SEED]",
)
def command(seed: int, steps: int | None, judge: str | None, base_model: Path | None, directory: Path | None) -> None:
    """Capture an agent, judge its runs, train a LoRA on them, serve it, and watch it get better.

    Everything is real except the model's size and what the screen calls a stand-in. Takes some minutes on two CPU
    cores. Ctrl-C stops it cleanly, and a crash loses at most the running step: start the same command again to
    continue.
    """
    from arttrace.rewards.judge_calls import require_key
    from trainer.demo.pipeline import DemoSettings, run_demo
    from trainer.demo.screen import Screen
    from trainer.gateway.engines.vllm.model import read_model

    if base_model is not None:
        read_model(base_model)
    if judge is not None:
        require_key(judge, {})
    data = DataDir.resolve(directory or Path("arttrace-demo") / f"seed-{seed}")
    try:
        run_demo(DemoSettings(data, seed, steps, judge, base_model), Screen())
    except KeyboardInterrupt:
        click.echo(f"\nStopped; everything so far is saved in {data.root}. Run the same command to continue.", err=True)
        sys.exit(130)
