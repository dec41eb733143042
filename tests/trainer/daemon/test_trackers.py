"""What the daemon tells trackers: every step, its example and its adapter, and after a restart in the same run."""

from __future__ import annotations

import pytest
from daemon_site import Site
from wandb_file import when_written

from trainer.step.reporters import open_reporters


@pytest.mark.usefixtures("offline_wandb")
def test_wandb_gets_every_step_of_two_starts_in_one_run(site: Site) -> None:
    folder = site.checkpoints.directory
    for n in range(4):
        site.group(f"g{n}", 0.0, 1.0, at=n * 2000)
    for steps in (2, 4):
        if steps == 4:
            (folder / "wandb").rename(folder / "before")  # W&B names folders by the second
        daemon = site.daemon(max_steps=steps)
        daemon._reporters = open_reporters(["wandb"], folder, "policy", {}, site.said.append)
        daemon.run()
    assert site.said == []
    assert daemon.state.reported == {"wandb": 4}
    [first], [second] = (list((folder / name).glob("offline-run-*/*.wandb")) for name in ("before", "wandb"))
    assert first.name == second.name, "one run"
    steps_of = []
    for file in (first, second):
        told, artifacts = when_written(file, 2, 4)
        steps_of.append(told)
        assert len(artifacts) == 4, "of each step its adapter and its table"
    assert steps_of == [[1, 2], [3, 4]]
