"""Runs an example's agent with a script in its model's place: `python examples/stand_in.py 2048 7 4` is as
`python examples/2048/agent.py 7 4`, played by the function `stand_in` of examples/2048/rollout.py."""

from __future__ import annotations

import os
import subprocess
import sys

from train import EXAMPLES, load

from trainer.demo.scripted import Scripted

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    example, *arguments = sys.argv[1:]
    with Scripted(load(example).stand_in).served() as url:
        env = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "unused", "ARTTRACE_DISABLED": "1"}
        sys.exit(subprocess.run([sys.executable, EXAMPLES / example / "agent.py", *arguments], env=env).returncode)
