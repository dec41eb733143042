"""Run as a module: vLLM's API server, whose processes look for garbage seldom: they import for seconds.

What they have imported is not looked through when vLLM asks for that, five times at its start. It returns the
log-probability of every token of the Responses API. On a CPU it looks at a model's class itself, and its engine
computes LoRAs by our functions, and is a fork of this process where that can be. A spawned engine imports this module
as its main one, so that the same holds there.
"""

import gc
import importlib.util
import runpy
import sys

from arttrace.system.processes import collect_garbage_seldom

collect_garbage_seldom()

if __name__ in ("__main__", "__mp_main__"):
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from trainer.gateway.engines.vllm.cpu_lora import multiply_by_adapter

        multiply_by_adapter()
        if __name__ == "__main__":
            from trainer.gateway.engines.vllm.cpu_fork import fork_engine
            from trainer.gateway.engines.vllm.cpu_models import look_at_models_here

            look_at_models_here()
            fork_engine(sys.argv[sys.argv.index("--uds") + 1])

if __name__ == "__main__":
    from trainer.gateway.engines.vllm.response_logprobs import put_beside_tokens

    put_beside_tokens()
    if importlib.util.find_spec("vllm.entrypoints.launchers"):
        from vllm.entrypoints.launchers.api_server.entry import main

        gc.freeze()
        main()  # type: ignore[no-untyped-call]
    else:  # vLLM 0.24, the last for torch 2.11: a module to be run
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
