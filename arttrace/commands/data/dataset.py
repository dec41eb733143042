"""`arttrace dataset`: stored runs as training data for other libraries, in a file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from arttrace.commands.shared.bars import show_no_bars
from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import file_or_standard_output, json_option, store_option
from arttrace.commands.shared.progress import CountedProgress
from arttrace.commands.shared.run_filters import run_filters
from arttrace.formats.datasets.forms import Form, Unsuitable
from arttrace.records.values.units import quantity
from arttrace.store import open_store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.views.datasets.files import DatasetFiles
from arttrace.views.datasets.selection import DatasetSelection, Written, selected_rows
from arttrace.views.run_filter import RunFilter


@click.command("dataset")
@click.option(
    "--format", "form", type=click.Choice([form.value for form in Form]), required=True, help="Format of the file."
)
@click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    callback=file_or_standard_output,
    help="The file: JSON lines; for verl Parquet. - is standard output.",
)
@click.option("--best", is_flag=True, help="Only the best runs of each group whose rewards differ.")
@click.option(
    "--min-reward", type=float, metavar="R", help="Only runs with at least this reward; trl-unpaired: the good ones."
)
@click.option(
    "--min-gap",
    type=click.FloatRange(min=0),
    default=0.1,
    show_default=True,
    help="Least difference of a pair's rewards.",
)
@click.option(
    "--held-out",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    metavar="SHARE",
    help="Write this share of the groups to OUTPUT's name with .held-out in it.",
)
@run_filters
@json_option
@store_option
def command(
    form: str,
    output: Path | None,
    best: bool,
    min_reward: float | None,
    min_gap: float,
    held_out: float,
    as_json: bool,
    data: DataDir,
    wanted: RunFilter,
) -> None:
    """Write stored runs as training data for another library.

    \b
    trl-sft                TRL, conversations: messages, tools
    trl-prompt-completion  TRL, one row per answer: prompt, completion, tools
    trl-preference         TRL, pairs of a group: prompt, chosen, rejected, tools
    trl-unpaired           TRL, one row per answer of a rewarded run, with a label
    openai-sft             OpenAI's fine-tuning: messages, tools; answers that are context have weight 0
    openai-dpo             OpenAI's preference fine-tuning: pairs that differ in their last answer
    sharegpt               ShareGPT: conversations, system, tools
    verl-sft               verl's supervised fine-tuning, Parquet: messages, tools
    verl-rl                verl's reinforcement learning, Parquet: one row per group, with what its runs begin with
    atif                   ATIF 1.7 (Harbor): one document per run, with tokens, rewards and sub-agents
    art                    OpenPipe's ART: one trajectory group per line, with token ids and log-probabilities

    Complete runs are written, sub-agents' conversations too; pairs and --best compare the rewards of a group.
    --held-out never splits a group or a scenario. Whatever a format cannot represent is counted and named, never cut.
    """
    try:
        selection = DatasetSelection(
            form=Form(form), best=best, min_reward=min_reward, min_gap=min_gap, held_out=held_out, wanted=wanted
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if output is None and (held_out or as_json):
        raise click.UsageError(f"{'--held-out' if held_out else '--json'} needs a file beside: name one with -o")
    if output is None and sys.stdout.isatty():
        show_no_bars()
    written = Written()
    bar = CountedProgress(0, "runs", tells_short=False)
    with (
        open_store(data) as store,
        DatasetFiles(output, selection.form, held_out=bool(held_out)) as files,
    ):
        for row, is_held_out in selected_rows(store, selection, written, bar.of):
            try:
                files.write(row, held_out=is_held_out)
            except Unsuitable as error:
                written.leave_out(str(error))
                continue
            written.rows += not is_held_out
            written.held_out_rows += is_held_out
        if not written.rows + written.held_out_rows:  # inside, so that no file takes the place of one that is there
            name = output or "standard output"
            why = "; ".join(written.said()) or "no run matches"
            raise ArttraceError(f"There is no row to write to {name}: {why}.", "`arttrace ls` shows what is stored.")
    if as_json:
        print_json(written)
    else:
        _show(written, output, held_out)


def _show(written: Written, output: Path | None, held_out: float) -> None:
    more = f", {written.held_out_rows} of other groups held out" if held_out else ""
    where = "" if output is None else f" in {output}"
    said = f"{quantity(written.rows, 'row')} of {quantity(written.runs, 'run')}{where}{more}"
    click.echo(said, err=output is None)
    for line in written.said():
        click.secho(f"  {line}", fg="yellow", err=True)
