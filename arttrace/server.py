"""`python -m arttrace.server` and `art-server`: `arttrace serve --train` with the defaults of those who come from ART.

The model may be named by $MODEL and the policy by $POLICY; runs, versions and key are kept in ./checkpoints, from which
the next start goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from arttrace.__main__ import main as command_line

CHECKPOINTS = "checkpoints"
_MODEL = ("--model", "--base-model")
_USAGE = 2


def serve_arguments(given: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command line of `arttrace serve` for one of `art-server`: the defaults, then what is given, which counts.

    Args:
        given: Options of `arttrace serve`.
        environment: MODEL, POLICY and ARTTRACE_DIR are read.

    Returns:
        The arguments of `arttrace`.
    """
    named = {"--model": environment.get("MODEL"), "--policy": environment.get("POLICY")}
    defaults = [word for option, value in named.items() if value for word in (option, value)]
    if not environment.get("ARTTRACE_DIR"):
        defaults += ["--dir", CHECKPOINTS]
    return ["serve", "--train", "block", *defaults, *given]


def main() -> None:
    """Serve until Ctrl-C, which saves the step under way first."""
    sys.argv[1:] = serve_arguments(sys.argv[1:], os.environ)
    try:
        command_line()  # whose help names commands: there is no `art-server serve`
    except SystemExit as ended:
        if ended.code == _USAGE and not any(word.partition("=")[0] in _MODEL for word in sys.argv):
            print(
                "Name the model with --model, or by MODEL in the environment: docker run -e MODEL=...", file=sys.stderr
            )
        raise


if __name__ == "__main__":
    main()
