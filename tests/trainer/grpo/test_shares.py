"""Which groups a step of `arttrace train` takes, beside those of other models in the same store."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_runs import recorded_group

from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.grpo.batch import make_batch
from trainer.grpo.shares import build, choose_groups, share_out
from trainer.grpo.trainer import NothingToTrain, require_trainable
from trainer.policies.checkpoints import Checkpoints


def test_groups_that_another_model_answered_are_no_part_of_any_step(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    with Store.open(data, create=True) as store:
        for key, policy in (("a", "other"), ("b", "policy"), ("c", "other"), ("d", "policy")):
            store.append(recorded_group(key, (0.0, 1.0), policy=f"{policy}@0"))
        choice = choose_groups(store, Checkpoints(data.policies, "policy"), None, ())
        assert choice.left_out == {"no tokens of this policy": 4}
        shares, _ = share_out(choice.groups, 2, None)
        assert [[group.key for group in share] for share in shares] == [["b"], ["d"]]


def test_where_there_are_no_others_they_say_why_there_is_nothing_to_train_on(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    with Store.open(data, create=True) as store:
        store.append(recorded_group("a", (0.0, 1.0), policy="other@0"))
        choice = choose_groups(store, Checkpoints(data.policies, "policy"), None, ())
        batch = make_batch(build(store, choice.groups), policy="policy")
    with pytest.raises(NothingToTrain, match="sampled by another policy") as shown:
        require_trainable(batch)
    assert "What is trained on was sampled by the policy itself" in (shown.value.hint or "")
