"""Run as a module: vLLM's API server, whose processes look for garbage seldom: they import for seconds.

vLLM spawns its engine's process. That imports this module as its main one, so the same holds there.
"""

from arttrace.system.processes import collect_garbage_seldom

collect_garbage_seldom()

if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server.entry import main

    main()  # type: ignore[no-untyped-call]
