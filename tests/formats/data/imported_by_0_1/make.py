"""Made `store.duckdb.gz` of the files beside it with the code of version 0.1 (the parent of commit b1339dc1); kept to
show what is in it."""

import gzip
import sys
import tempfile
from pathlib import Path

from arttrace.commands import main

HERE = Path(__file__).parent

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        files = [str(HERE / name) for name in ("talks.jsonl", "pairs.jsonl", "export.json")]
        sys.argv = ["arttrace", "import", "--dir", folder, *files]
        main()
        (HERE / "store.duckdb.gz").write_bytes(gzip.compress(Path(folder, "store.duckdb").read_bytes(), mtime=0))
