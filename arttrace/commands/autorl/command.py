"""`arttrace autorl`: the command line, and the model that is served and trained meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from arttrace.capture.api import init
from arttrace.commands.autorl import stand_in
from arttrace.commands.autorl.report import markdown, summary
from arttrace.commands.autorl.stages import AutoRL, write_scenarios
from arttrace.commands.autorl.state import Plan, State, StateFile, policy_name
from arttrace.commands.scoring.judge_options import judge_base_url_option, judge_params, rubric_option
from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import dir_option, json_option
from arttrace.commands.shared.progress import say
from arttrace.loop.backend import LocalBackend
from arttrace.loop.model import TrainableModel
from arttrace.mcp import Offer, connect, read_offer
from arttrace.records.values.units import quantity
from arttrace.rewards.judge_calls import require_key
from arttrace.rewards.judge_errors import JudgeUnavailable
from arttrace.system.errors import JudgeError
from arttrace.system.files import replace_file
from arttrace.system.paths import DataDir, require_policy_name

_Count = click.IntRange(min=1)


@click.command("autorl")
@click.argument("task")
@click.option(
    "--base-model",
    required=True,
    metavar="MODEL",
    type=click.UNPROCESSED,
    help="A model's directory, or its name on the hub.",
)
@click.option("--policy", help="Name of the policy to train.  [default: made of the task's first words]")
@click.option(
    "--mcp",
    metavar="SERVER",
    type=click.UNPROCESSED,
    help="URL or command line of an MCP server whose tools the agent has.",
)
@click.option("--judge", default="openai/o3", show_default=True, metavar="MODEL", help="Judge, by its litellm name.")
@click.option("--writer", metavar="MODEL", help="Writes the scenarios, by its litellm name.  [default: the judge]")
@click.option(
    "--stand-in",
    "use_stand_in",
    is_flag=True,
    help="Scripts in place of judge and writer: needs no key, and the scores mean nothing.",
)
@judge_base_url_option
@rubric_option
@click.option("--scenarios", type=_Count, default=40, show_default=True, help="Scenarios to write.")
@click.option(
    "--held-out", type=_Count, default=10, show_default=True, help="Scenarios of these that are not trained on."
)
@click.option("--group-size", type=click.IntRange(min=2), default=8, show_default=True, help="Runs of one scenario.")
@click.option("--groups", type=_Count, default=4, show_default=True, help="Scenarios per step.")
@click.option(
    "--steps", type=_Count, default=10, show_default=True, help="Training steps; a later start may ask for more."
)
@click.option("--learning-rate", type=float, help="As in `arttrace train`.")
@click.option("--report-to", metavar="NAMES", help="As in `arttrace train`: wandb, tensorboard, trackio, mlflow.")
@click.option(
    "--max-turns",
    type=_Count,
    default=10,
    show_default=True,
    help="Largest number of the model's answers per run, with --mcp.",
)
@click.option("--max-tokens", type=_Count, default=1024, show_default=True, help="Tokens per answer.")
@dir_option
@json_option
def command(
    task: str,
    base_model: str,
    policy: str | None,
    mcp: str | None,
    judge: str,
    writer: str | None,
    use_stand_in: bool,
    judge_base_url: str | None,
    rubric: str,
    scenarios: int,
    held_out: int,
    group_size: int,
    groups: int,
    steps: int,
    learning_rate: float | None,
    report_to: str | None,
    max_turns: int,
    max_tokens: int,
    data: DataDir,
    as_json: bool,
) -> None:
    """Train a model on TASK, described in words as a system prompt would describe it.

    A model writes scenarios, the policy is run on them, a judge compares the runs, and a LoRA is trained step by step.
    Held-out scenarios are run before and after, and the judge compares the two. Stopped at any point, the same command
    continues where it was.
    """
    if held_out >= scenarios:
        raise click.BadParameter(f"{held_out} of {scenarios} scenarios leave none to train on", param_hint="--held-out")
    if not task.strip():
        raise click.BadParameter("it is empty", param_hint="TASK")
    if policy is not None:
        require_policy_name(policy)
    if use_stand_in:
        judge = writer = stand_in.MODEL
    plan = Plan(
        task=task,
        base_model=base_model,
        policy=policy or policy_name(task),
        mcp=mcp,
        writer=writer or judge,
        judge=judge,
        rubric=rubric,
        scenarios=scenarios,
        held_out=held_out,
        group_size=group_size,
        groups=groups,
        steps=steps,
        max_turns=max_turns,
        max_tokens=max_tokens,
    )
    params = judge_params(judge, judge_base_url)
    if use_stand_in:
        click.secho(f"note: {stand_in.NOTE}", fg="yellow", err=True)
        stand_in.install()
    asked = {"learning_rate": learning_rate, "report_to": report_to}
    settings = {name: value for name, value in asked.items() if value is not None}
    init(dir=data.root)
    file = StateFile(data.root / "autorl" / plan.policy)
    try:
        with file.held():
            state = asyncio.run(_run(file.load(plan), file, data, params, settings))
    except JudgeUnavailable as error:
        hint = f"{error.hint} To see it run without any: --stand-in."
        raise JudgeError(error.message, hint) from error
    report = file.directory / "report.md"
    replace_file(report, markdown(state, stand_in.NOTE if use_stand_in else "").encode())
    if as_json:
        print_json(state)
    else:
        click.echo(f"{summary(state.comparisons)}\nreport: {report}")


async def _run(state: State, file: StateFile, data: DataDir, params: dict[str, Any], settings: dict[str, Any]) -> State:
    plan = state.plan
    if len(state.scenarios) < plan.scenarios:
        for asked in dict.fromkeys((plan.writer, plan.judge)):
            require_key(asked, params)
    offer = await _offer(plan.mcp) if plan.mcp is not None else None
    async with LocalBackend(data.root) as backend:
        model = TrainableModel(plan.policy, plan.base_model)
        await model.register(backend)  # a model that is missing is reported before the writer costs anything
        if len(state.scenarios) < plan.scenarios:
            say(f"{plan.writer} writes scenarios")
            await write_scenarios(state, file, offer, params)
        scenarios = quantity(len(state.scenarios), "scenario")
        say(f"{scenarios}, {plan.held_out} of them held out: {file.directory / 'state.json'}")
        await AutoRL(state, file, model, backend, params, settings, say).train()
    return state


async def _offer(server: str) -> Offer:
    async with connect(server) as client:
        return await read_offer(client)
