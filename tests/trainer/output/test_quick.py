"""transformers imported beside the trainer: what it finds out is the same, with each file looked at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from arttrace.system.processes import python_path

MANY = "".join(f"pack/sub{n}/m{n}.py,,\n" for n in range(2000))
FILES = {
    "declared-1.dist-info": {"METADATA": "Name: declared\n\nName: no\n", "top_level.txt": "one\ntwo\n"},
    "inferred_by_path-1.dist-info": {
        "METADATA": "Metadata-Version: 2.1\nName: inferred.by-path\n\nName: of the README\n",
        "RECORD": f"{MANY}single.py,,\nother/data.txt,,\nlib/a.so,,\nbare,,\nbin.so,,\n../../bin/run,,\na.b/c.py,,\n",
    },
    "quoted-1.dist-info": {"METADATA": "Name: quoted\n", "RECORD": '"odd, named/m.py",,\nplain/n.py,,\n'},
    "old-1.egg-info": {"PKG-INFO": "Name: old\n", "SOURCES.txt": "setup.py\nancient/__init__.py\n"},
    "nothing-1.dist-info": {"METADATA": "Name: nothing\n"},
    "another-1.dist-info": {"METADATA": "Name: another\n", "top_level.txt": "two\n"},
}
PROGRAM = """
import collections, importlib.metadata, json, sys

class Counted(importlib.metadata.PackagePath):
    made = 0
    def __new__(cls, *parts):
        Counted.made += 1
        return super().__new__(cls, *parts)

importlib.metadata.PackagePath = Counted
found = importlib.metadata.packages_distributions()
paths, Counted.made = Counted.made, 0
import trainer
read = collections.Counter()
sys.addaudithook(lambda event, of: read.update([str(of[0])]) if event == "open" else None)
import transformers, transformers.models
from transformers.utils import import_utils as utils
fewer = Counted.made < paths / 4
models = transformers.__path__[0] + "/models"
twice = [path for path, times in read.items() if path.startswith(models) and path.endswith(".py") and times > 1]
print(json.dumps([fewer, twice, utils.PACKAGE_DISTRIBUTION_MAPPING == found, found["two"], found["pack"]]))
"""


def test_transformers_looks_at_each_installed_file_once(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python" / "site"
    for folder, files in FILES.items():
        (site / folder).mkdir(parents=True)
        for name, text in files.items():
            (site / folder / name).write_text(text)
            for line in text.splitlines() if name == "RECORD" else ():  # from Python 3.12 on only files that are there
                file = site / line.removesuffix(",,").strip('"')
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
    env = {**os.environ, "PYTHONPATH": python_path(str(site))}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, [], True, ["declared", "another"], ["inferred.by-path"]]
