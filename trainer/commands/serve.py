"""`arttrace serve`: a base model and the newest version of a policy behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from dataclasses import replace

import click

from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import api_key_file_option, dir_option, json_option
from arttrace.system.addresses import is_loopback
from arttrace.system.errors import ServingError
from arttrace.system.paths import DataDir, require_policy_name
from arttrace.system.private_files import kept_key
from trainer.output.log import LogFormat, LoggingCommand, log_format_option, logging_to

SERVER_KEY = "server.key"
"""The key that a training server makes if others can reach it and no key was set."""


@click.command(cls=LoggingCommand)
@click.option(
    "--base-model",
    "--model",
    "base_model_given",
    required=True,
    metavar="DIR|NAME",
    type=click.UNPROCESSED,
    help="Directory of the base model, as save_pretrained writes it, or its name on the Hugging Face hub.",
)
@click.option("--policy", default="policy", show_default=True, help="Name of the policy, the model that is trained.")
@click.option(
    "--version",
    type=click.IntRange(0),
    help="Serve this version; 0 is the base model.  [default: the newest, or the one rolled back to]",
)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Any but the loopback needs a key.")
@api_key_file_option
@click.option(
    "--max-model-len",
    type=click.IntRange(1),
    help="Longest context in tokens.  [default: the model's, at most 32768, on a CPU 4096]",
)
@click.option(
    "--tool-call-parser", help="vLLM's parser for tool calls.  [default: openai for gpt-oss, hermes for all others]"
)
@click.option("--replicas", default=1, show_default=True, type=click.IntRange(1), help="vLLM processes to start.")
@click.option(
    "--vllm-url",
    "vllm_urls",
    multiple=True,
    help="Use a vLLM that already runs (http://... or unix:PATH) instead of starting one. Repeatable.",
)
@click.option(
    "--vllm-arg",
    "vllm_args",
    multiple=True,
    type=click.UNPROCESSED,
    help="Passed on to vLLM, as in --vllm-arg=--seed=1. Repeatable.",
)
@click.option(
    "--sampling",
    type=click.Choice(["request", "policy"]),
    default="request",
    show_default=True,
    help="With policy, what would change the policy's own sampling is left out of requests: all can be trained on.",
)
@click.option(
    "--train",
    "while_training",
    type=click.Choice(["block", "overlap"]),
    help="Take groups that clients submit and train on them; requests wait meanwhile (block), or are answered by the "
    "version before (overlap).",
)
@click.option("--gpu", is_flag=True, help="Fail where there is no CUDA card, instead of serving on the CPU.")
@click.option(
    "--sleep-while-training",
    is_flag=True,
    help="vLLM and the trainer share one CUDA card: vLLM sleeps during a step, requests wait.",
)
@click.option(
    "--engine-memory-share",
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of a card's memory for vLLM.  [default: what a learner on the same card leaves; 0.92 without one]",
)
@click.option(
    "--max-requests",
    default=1024,
    show_default=True,
    type=click.IntRange(1),
    help="Requests held at once; further ones get 503.",
)
@click.option(
    "--trajectory-idle-seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="End a trajectory of /r/NAME/v1 after this many seconds without a call.  [default: only /r/NAME/end ends it]",
)
@click.option(
    "--record-traceparent",
    is_flag=True,
    help="Record calls that carry a traceparent, in its trace. Not together with arttrace's capture in the agent.",
)
@log_format_option
@dir_option
@json_option
def command(
    base_model_given: str,
    policy: str,
    version: int | None,
    port: int,
    host: str,
    api_key: str | None,
    max_model_len: int | None,
    tool_call_parser: str | None,
    replicas: int,
    vllm_urls: tuple[str, ...],
    vllm_args: tuple[str, ...],
    sampling: str,
    while_training: str | None,
    gpu: bool,
    sleep_while_training: bool,
    engine_memory_share: float | None,
    max_requests: int,
    trajectory_idle_seconds: float | None,
    record_traceparent: bool,
    log_format: LogFormat,
    data: DataDir,
    as_json: bool,
) -> None:
    """Serve a base model and the newest version of its policy, until Ctrl-C.

    Starts vLLM and, in front of it, an endpoint that speaks OpenAI's API. The model name `policy:latest` always means
    the newest version; `arttrace train` swaps it without a failed request. Answers carry token ids and
    log-probabilities, so that captured runs can be trained on.

    Agents in other languages name their run in the base URL, /r/NAME/v1, and end it with a POST to /r/NAME/end: their
    calls are then recorded here.
    """
    require_policy_name(policy)
    # Checked before the import that takes a second.
    if gpu:
        _require_card()
    from trainer.gateway.engines.vllm.model import read_model
    from trainer.serving.hub import find_base_model

    base_model, name = find_base_model(base_model_given)
    shape = replace(read_model(base_model), name=name)

    from trainer.gateway.engines.vllm.engine import EngineOptions
    from trainer.gateway.policies import Policies
    from trainer.gateway.status import ServingFile
    from trainer.serving.server import ServeOptions, serve

    if while_training is not None and api_key is None and not is_loopback(host):
        file = data.root / SERVER_KEY
        api_key = kept_key(file)
        click.echo(f"Clients send this key, by ARTTRACE_API_KEY: {api_key} (stored in {file})", err=True)

    if not shape.has_chat_template:
        click.secho(
            f"note: {base_model} has no chat template, so chat completions will be refused", fg="yellow", err=True
        )

    def ready(record: ServingFile, policies: Policies) -> None:
        if as_json or log_format == "json":
            print_json(record)
            return
        click.echo(
            f"\nReady: {policies.current.name} at {record.url}/v1\n\n"
            f"  export OPENAI_BASE_URL={record.url}/v1\n"
            f"  export OPENAI_API_KEY={'<your key>' if api_key else 'arttrace'}\n\n"
            f"  models   {', '.join(policies.names())}\n"
            f"  status   {record.url}/arttrace/status\n"
            f"  log      {record.log}\n\n"
            "Ctrl-C stops it."
        )

    with logging_to("serve", data.root / "logs", log_format) as say:
        serve(
            ServeOptions(
                data=data,
                engine=EngineOptions(
                    base_model,
                    shape,
                    max_model_len,
                    tool_call_parser,
                    sleep=sleep_while_training,
                    memory_share=engine_memory_share,
                    extra=vllm_args,
                ),
                policy=policy,
                host=host,
                port=port,
                api_key=api_key,
                vllm_urls=vllm_urls,
                replicas=replicas,
                max_requests=max_requests,
                trajectory_idle_s=trajectory_idle_seconds,
                record_traceparent=record_traceparent,
                version=version,
                policy_sampling=sampling == "policy",
                trains=while_training is not None,
                overlaps=while_training == "overlap",
            ),
            say=say,
            ready=ready,
        )


def _require_card() -> None:
    """Raise ServingError where vLLM would serve on the CPU."""
    from trainer.gateway.engines.vllm.engine import serves_on_cpu

    if serves_on_cpu():
        raise ServingError(
            "there is no CUDA card for vLLM here, or its CPU build is installed",
            "Install requirements/cuda.txt on a machine with a card, or leave --gpu out to serve on the CPU.",
        )
