"""`arttrace rollout`: recorded runs of the user's own entry point, run again under the current policy."""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import click
import msgspec

from arttrace.commands.recorded_program import PolicyGateway, end_interrupted, policy_gateway
from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import dir_option, json_option
from arttrace.commands.shared.progress import BESIDE_LINES_S, Progress, say, with_reading_progress
from arttrace.records.rollout import RolloutJob, RolloutResult
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.units import quantity
from arttrace.rewards.selection import is_held_out
from arttrace.store import AnyStore, open_store
from arttrace.store.access.summary_pages import summary_pages
from arttrace.store.bounded_parts import batched
from arttrace.store.sql_text import quoted
from arttrace.system.addresses import is_http
from arttrace.system.errors import ArttraceError, RolloutError
from arttrace.system.evaluations import add_evaluation
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import replayed
from arttrace.views.labels import short_id
from arttrace.views.run_filter import group_keys
from arttrace.wire.content.secrets import NO_KEY
from trainer.policies.checkpoints import Checkpoints
from trainer.rollouts.admission import Admission
from trainer.rollouts.command_inputs import command_inputs, with_start
from trainer.rollouts.input_file import read_inputs
from trainer.rollouts.replay import OnMissing, RecordedInput, ReplayPlan, plan_replay, same_entry
from trainer.rollouts.report import Outcome, Report, report_of
from trainer.rollouts.workers import RolloutWorkers
from trainer.serving import GatewayClient, find_serving

_AT_ONCE = 50
_ENDED_HERE = "the rollout was ended"


@click.command()
@dir_option
@click.option("--entry", metavar="MODULE:FUNCTION", help="What to run.  [default: the recorded entry point]")
@click.option("--trajectory", "ids", multiple=True, metavar="ID", help="This recorded run. May be given several times.")
@click.option("--group", metavar="KEY", help="The recorded runs of this group, as `ls` shows it.")
@click.option("--scenario", metavar="NAME", help="The recorded runs of this scenario.")
@click.option("--from-store", is_flag=True, help="The newest recorded runs; the default if nothing is named.")
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="At most this many inputs.")
@click.option(
    "--input",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the inputs from this file: a JSON object of arguments by name on each line.",
)
@click.option("-n", "--runs", type=click.IntRange(min=1), default=8, show_default=True, help="Runs of each input.")
@click.option("--concurrency", type=click.IntRange(min=1), default=4, show_default=True, help="Runs at once.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=600.0, show_default=True, help="Seconds for a run.")
@click.option(
    "--policy",
    metavar="URL|NAME",
    help="Send every model call to this policy.  [default: policy:latest of the running `arttrace serve`]",
)
@click.option(
    "--route", "routes", multiple=True, metavar="MODEL=POLICY[@URL]", help="Send only the calls of this model to it."
)
@click.option(
    "--tools",
    type=click.Choice(["live", "recorded"]),
    default="live",
    show_default=True,
    help="Run the tools, or answer them with their results in the recorded run.",
)
@click.option(
    "--on-missing",
    type=click.Choice(["live", "error"]),
    default="error",
    show_default=True,
    help="With --tools recorded, what to do with a tool call that is not in the record: run it, or fail.",
)
@click.option(
    "--held-out",
    is_flag=True,
    help="Measure the policy: tag the runs held-out, so that none is trained on, and record their mean reward.",
)
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Run the command in a fresh copy of this directory each time.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@click.option("--with-original", is_flag=True, hidden=True, expose_value=False)  # always so since 0.2
@click.option("--dry-run", is_flag=True, help="Print what would be run, what not, and why.")
@json_option
@with_reading_progress
def command(
    data: DataDir,
    entry: str | None,
    ids: tuple[str, ...],
    group: str | None,
    scenario: str | None,
    from_store: bool,
    limit: int,
    file: Path | None,
    runs: int,
    concurrency: int,
    timeout: float,
    policy: str | None,
    routes: tuple[str, ...],
    tools: Literal["live", "recorded"],
    on_missing: OnMissing,
    held_out: bool,
    workspace: Path | None,
    program: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run your own entry point again on recorded inputs, under the policy being trained.

    \b
    arttrace rollout                                  the newest inputs in the store, 8 runs of each
    arttrace rollout --trajectory 2f1c9a -n 16        this one
    arttrace rollout --entry agent.py:answer --input questions.jsonl
    arttrace rollout --input tasks.jsonl --workspace repo -- claude -p "{task}"
    arttrace rollout --held-out --entry agent.py:answer --input exam.jsonl    measure the policy, train on nothing

    The runs of an input join the group of the recorded run, ready for `arttrace score` and `arttrace train`. The code
    runs unchanged, in processes of its own; its model calls are sent to the policy. A run that failed is kept, with its
    error. A run that took too long, whose process died, or that the policy did not answer, is kept as incomplete: it
    says nothing about the policy, and is neither scored nor trained on.

    A command after -- may be in any language. It is started as `arttrace run --policy` starts one, with the fields of
    an input of --input in the place of their {names}, and rewards its run itself. With --workspace each run works in a
    copy of that directory without the data directory, which is removed afterwards.

    Runs with the tag held-out are never trained on. Those made with --held-out have it, and those of the input of a run
    that has it. Their mean reward is recorded for the version that answered: `arttrace policies` and the viewer show
    it. Where nothing is named, --held-out takes the newest inputs of held-out runs, and a rollout without it those of
    the others.

    While a daemon with --max-staleness trains the policy and has more groups ready than it can train on in time, no
    further inputs are started.

    Exit code 1: some runs are incomplete for such a reason, or no call reached a policy that gives token ids. 130:
    interrupted; finished runs are kept.
    """
    if program and (file is None or entry or routes):
        raise click.UsageError("a command takes its inputs from --input, and neither --entry nor --route")
    if workspace is not None and not program:
        raise click.UsageError("--workspace needs a command: --input FILE --workspace DIR -- PROGRAM {FIELD}")
    if file is not None:
        if ids or group or scenario or from_store or tools == "recorded":
            raise click.UsageError("--input takes the place of recorded runs: leave out what chooses among them")
        if not (entry or program):
            raise click.UsageError("--input needs --entry, or a command: -- PROGRAM {FIELD}")
        fields = read_inputs(file)
        if program:
            inputs = command_inputs(program, fields, workspace=workspace, held_out=held_out)
        else:
            inputs = [RecordedInput(str(entry), one, held_out=held_out) for one in fields]
        plan = ReplayPlan(tuple(inputs))
    else:
        with open_store(data) as store:
            plan = plan_replay(
                _recorded(store, ids, group, scenario, entry, held_out),
                entry=entry,
                limit=None if ids else limit,
                tools=on_missing if tools == "recorded" else None,
                held_out=held_out,
            )
    entry = plan.entry
    if dry_run:
        _show_plan(plan, entry, runs, as_json)
        return
    environment = _environment(data, policy, routes)
    for reason, count in sorted(plan.refused.items()):
        click.echo(f"left out: {quantity(count, 'recorded run')} ({reason})", err=True)
    with TemporaryDirectory(prefix="arttrace-", ignore_cleanup_errors=True) as copies:
        gateway = _gateway_of_commands(environment) if program else None
        if gateway is not None:
            plan = with_start(plan, _starter(data, gateway), copies)
            environment["ARTTRACE_POLICY_URL"] = f"{gateway.server}/v1"
        jobs = [(one, one.job(secrets.token_hex(16))) for one in plan.scenarios for _ in range(runs)]
        report = _run(data, entry, jobs, environment, min(concurrency, len(jobs)), timeout, gateway)
    for policy, step, numbers in report.evaluations():
        add_evaluation(data, policy, step, {f"held-out/{name}": number for name, number in numbers.items()})
    if as_json:
        print_json(report.document(entry, plan.refused))
    else:
        click.echo(report.text())
    if report.interrupted:
        sys.exit(130)
    report.check(data)


def _recorded(
    store: AnyStore, ids: Sequence[str], group: str | None, scenario: str | None, entry: str | None, held_out: bool
) -> Iterator[tuple[Trajectory, Sequence[SpanRow]]]:
    """The chosen runs, newest first, or in the order in which they were named."""
    found: Iterable[Trajectory]
    if ids:
        found = [store.trajectory(id) for id in ids]
    elif group is not None:
        found = store.trajectories(groups=group_keys(store, group))[::-1]
    else:
        found = _newest(store, scenario, entry, None if scenario is not None else held_out)
    for trajectory in found:
        if scenario is None or trajectory.scenario == scenario:
            yield trajectory, store.spans(trajectory.id)


def _newest(store: AnyStore, scenario: str | None, entry: str | None, held_out: bool | None) -> Iterator[Trajectory]:
    """All recorded runs of an entry point, of which are held out or not (None: both), newest first, read as far as they
    are asked for: however often they were run again since. Those runs are left out."""
    of_scenario: list[str] | None = None
    if scenario is not None:
        query = f"""SELECT trajectory_id FROM span_records WHERE scenario = {quoted(scenario)}
            AND trajectory_id IS NOT NULL GROUP BY 1 ORDER BY max(start_ns) DESC"""  # noqa: S608
        of_scenario = [id for (id,) in store.sql(query)[1]]
    entries: set[str] = set()
    seen: set[str] = set()  # a run may come twice
    found = False
    for page in summary_pages(store, of_scenario):
        entries |= {one.entry for one in page}
        page = [one for one in page if one.id not in seen and (entry is None or same_entry(one.entry, entry))]
        seen |= {one.id for one in page}
        recorded = [one for one in page if replayed(one.metadata) is None and held_out in (None, is_held_out(one))]
        found |= bool(recorded)
        for part in batched(sorted(recorded, key=lambda one: (one.start_ns, one.id), reverse=True), _AT_ONCE):
            yield from store.trajectories(ids=[one.id for one in part])[::-1]
    if entries and not seen:
        known = ", ".join(sorted(entries - {""})[:5]) or "none"
        raise RolloutError(f"no recorded run is one of {entry}", f"Recorded were: {known}.")
    if held_out and not found:
        raise RolloutError(
            "no recorded run of the kind is held out",
            "Name what to run with --input FILE, --trajectory, --group or --scenario: its runs will be.",
        )


def _environment(data: DataDir, policy: str | None, routes: Sequence[str]) -> dict[str, str]:
    """The environment that sends the model calls of the runs to the policy."""
    wanted = [f"*={policy or 'policy:latest'}"] if policy or not routes else []
    if policy and is_http(policy):
        wanted = [f"*=policy:latest@{policy}"]
    wanted += routes
    unplaced = [route for route in wanted if not _names_server(route)]
    if any("=" not in route for route in routes):
        raise click.BadParameter("write MODEL=POLICY, such as gpt-4o=policy:latest", param_hint="--route")
    if unplaced:
        serving = find_serving(data)
        if serving is None:
            raise RolloutError(
                f"no policy is being served from {data.root}",
                "Start it with: arttrace serve --base-model DIR. Or name the server: --policy http://HOST:PORT/v1",
            )
        with closing(GatewayClient(serving.url)) as gateway:
            gateway.status()
        wanted = [route if _names_server(route) else f"{route}@{serving.url}/v1" for route in wanted]
    environment = {"ARTTRACE_ROUTE": ",".join(wanted)}
    # A model client wants a key before it asks anything; the policy's server gets its own, or none.
    environment["OPENAI_API_KEY"] = os.environ.get("OPENAI_API_KEY") or NO_KEY
    key = os.environ.get("ARTTRACE_POLICY_API_KEY") or os.environ.get("ARTTRACE_API_KEY")
    return environment if key is None else {**environment, "ARTTRACE_POLICY_API_KEY": key}


def _gateway_of_commands(environment: dict[str, str]) -> PolicyGateway:
    """The gateway to which the environment leads. Raises RolloutError where nobody answers there."""
    found = re.fullmatch(r"\*=(.+?)@(https?://.+)", environment["ARTTRACE_ROUTE"], re.IGNORECASE)
    assert found is not None
    gateway = policy_gateway(found[1], found[2], environment)
    if (problem := gateway.problem()) is not None and not problem.answers:
        raise RolloutError(f"no policy answers at {gateway.host}: {problem.cause}", problem.remedy)
    return gateway


def _starter(data: DataDir, gateway: PolicyGateway) -> list[str]:
    """The words that start a command under the policy of a gateway."""
    start = [sys.executable, "-c", "from arttrace.commands import main; main()", "run"]
    return [*start, "--dir", str(data.root.absolute()), "--policy", gateway.model, "--"]


def _names_server(route: str) -> bool:
    return re.search("@https?://", route, re.IGNORECASE) is not None


def _admission(data: DataDir, environment: dict[str, str]) -> Admission | None:
    """Holds back runs that the daemon of their policy could not train on in time."""
    serving = find_serving(data)
    if serving is None or f"@{serving.url}/" not in environment["ARTTRACE_ROUTE"]:
        return None
    checkpoints = Checkpoints(data.policies, serving.policy)
    return Admission(checkpoints.directory, checkpoints.writer, say)


def _run(
    data: DataDir,
    entry: str,
    jobs: Sequence[tuple[RecordedInput, RolloutJob]],
    environment: dict[str, str],
    concurrency: int,
    timeout_s: float,
    gateway: PolicyGateway | None,
) -> Report:
    """Run the jobs, each alone in its process, and read from the store what became of them. Of commands, which their
    gateway records, it ends those that were ended before they could say so."""
    results: list[RolloutResult] = []
    scenarios = {job.trajectory_id: scenario for scenario, job in jobs}
    bar = Progress(len(jobs), "runs", every_s=BESIDE_LINES_S, tells_short=False)

    def on_result(result: RolloutResult) -> None:
        results.append(result)
        how = f"{'lost' if result.lost else 'failed'}: {result.error}" if result.error else "done"
        click.echo(f"[{len(results)}/{len(jobs)}] {how} ({result.seconds:.1f} s)", err=True)
        bar(len(results))

    feeds_training = not all(scenario.held_out for scenario, _ in jobs)
    admission = _admission(data, environment) if feeds_training else None
    began, interrupted = time.monotonic(), False
    workers = RolloutWorkers(
        entry, data, env=environment, workers=concurrency, concurrency=1, timeout_s=timeout_s, say=say
    )
    stopped: ArttraceError | None = None
    try:
        with workers:
            click.echo(
                f"{quantity(len(jobs), 'run')} of {entry}, {concurrency} at once; output in {workers.log}", err=True
            )
            workers.run([job for _, job in jobs], on_result=on_result, admits=admission)
    except KeyboardInterrupt:
        interrupted = True
    except RolloutError as error:
        if not results:
            raise
        stopped = error
    if gateway is not None:
        why = {result.trajectory_id: result.error if result.lost else None for result in results}
        end_interrupted(gateway, [(job, why.get(job.trajectory_id, _ENDED_HERE)) for _, job in jobs])
    with open_store(data, create=True) as store:
        kept = {one.id: one for one in store.trajectories(ids=[result.trajectory_id for result in results])}
    outcomes = [Outcome.of(scenarios[one.trajectory_id], one, kept.get(one.trajectory_id)) for one in results]
    return report_of(outcomes, len(jobs), time.monotonic() - began, interrupted, stopped)


def _show_plan(plan: ReplayPlan, entry: str, runs: int, as_json: bool) -> None:
    document = {
        "entry": entry,
        "runs_each": runs,
        "scenarios": [
            {
                "group": one.group,
                "replay_of": one.replay_of,
                "arguments": one.arguments,
                "recorded_tools": None if one.tools is None else len(one.tools.tools),
            }
            for one in plan.scenarios
        ],
        "refused": plan.refused,
        "same_input": plan.same,
    }
    if as_json:
        print_json(document)
        return
    times = quantity(len(plan.scenarios) * runs, "time")
    click.echo(f"{entry} would be run {times}: {runs} x {quantity(len(plan.scenarios), 'input')}.")
    for one in plan.scenarios:
        arguments = msgspec.json.encode(one.arguments).decode()
        shown = arguments if len(arguments) <= 100 else arguments[:97] + "..."
        tools = "" if one.tools is None else f", {len(one.tools.tools)} tool calls in the record"
        click.echo(f"  {short_id(one.replay_of or 'input')}  {shown}{tools}")
    if plan.same:
        click.echo(f"  left out: {quantity(plan.same, 'recorded run')} (the same input again)")
    for reason, count in sorted(plan.refused.items()):
        click.echo(f"  left out: {quantity(count, 'recorded run')} ({reason})")
