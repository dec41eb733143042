"""Pools of processes whose jobs know nothing of arttrace."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_server import ChatServer
from joined_program import one_trajectory, run


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_a_job_of_a_module_that_does_not_know_arttrace_is_captured(
    how: str, tmp_path: Path, server: ChatServer
) -> None:
    """From Python 3.14 on processes of a pool are not forked unless they are asked to be."""
    run(
        """
        import multiprocessing, sys
        from concurrent.futures import ProcessPoolExecutor
        from asking import ask
        if __name__ == "__main__":
            import arttrace
            arttrace.init(dir=sys.argv[3], project="shop")
            context = multiprocessing.get_context(sys.argv[1])
            with arttrace.trajectory(name="outer"):
                with ProcessPoolExecutor(1, mp_context=context) as executor:
                    executor.submit(ask, sys.argv[2], "of the executor").result()
                with context.Pool(1) as pool:
                    pool.starmap(ask, [(sys.argv[2], "of the pool")])
                process = context.Process(target=ask, args=(sys.argv[2], "of the process"))
                process.start(); process.join()
                assert process.exitcode == 0
        """,
        tmp_path,
        how,
        server.url,
        str(tmp_path / "d"),
        ARTTRACE_DIR=str(tmp_path / "another"),
    )
    assert not (tmp_path / "another").exists()
    assert len(one_trajectory(tmp_path).calls) == 3


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_what_a_job_recorded_is_there_when_its_result_is(how: str, tmp_path: Path, server: ChatServer) -> None:
    """Whoever has the results of all jobs may read the run, and train on it."""
    run(
        """
        import multiprocessing, sys, time
        from concurrent.futures import ProcessPoolExecutor
        from asking import ask
        import arttrace

        def slow_to_write():
            from arttrace.capture.export.spool import SpoolWriter
            write = SpoolWriter.write

            def slowly(self, payloads):
                time.sleep(0.6 * any(b"of the executor" in one for one in payloads))
                return write(self, payloads)

            SpoolWriter.write = slowly

        if __name__ == "__main__":
            from pathlib import Path
            from arttrace.store import open_store
            from arttrace.system.paths import DataDir
            arttrace.init(dir=sys.argv[3])
            context = multiprocessing.get_context(sys.argv[1])
            with ProcessPoolExecutor(1, mp_context=context) as executor:
                with arttrace.trajectory(name="outer") as outer:
                    executor.submit(slow_to_write).result()
                    executor.submit(ask, sys.argv[2], "of the executor").result()
                arttrace.flush()
                with open_store(DataDir(Path(sys.argv[3]))) as store:
                    [found] = store.trajectories(ids=[outer.id])
                    assert len(found.calls) == 1, "the call was not written yet"
        """,
        tmp_path,
        how,
        server.url,
        str(tmp_path / "d"),
    )
