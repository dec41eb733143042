from argparse import Namespace  # filled in

import art  # filled in
from art import TrainableModel  # filled in

Scenario = Namespace  # filled in
train_scenarios = [Scenario(id="a", question="Which mail is from Ann?"), Scenario(id="b", question="Who is Ann?")]  # filled in
validation_scenarios = [Scenario(id="c", question="Which mail is the newest?")]  # filled in
backend = art.LocalBackend()  # filled in
model = art.TrainableModel(name="agent-001", project="my-agentic-task", base_model="Qwen/Qwen2.5-14B-Instruct")  # filled in
await model.register(backend)  # filled in
args = Namespace(groups_per_step=2, rollouts_per_group=4, judge_model="openai/gpt-5.4", learning_rate=1e-5)  # filled in
args.num_epochs = await model.get_step() + 1  # filled in

def should_validate(step):  # filled in
    return True  # filled in

from art.rewards import ruler_score_group
from art.utils.iterate_dataset import iterate_dataset


async def rollout(model: TrainableModel, scenario: Scenario) -> art.Trajectory:
    ...
    said = [{"role": "user", "content": scenario.question}]  # filled in
    answered = await model.openai_client().chat.completions.create(model=model.name, messages=said)  # filled in
    return art.Trajectory(messages_and_choices=[*said, answered.choices[0]])  # filled in


for batch in iterate_dataset(
    train_scenarios,
    groups_per_step=args.groups_per_step,
    num_epochs=args.num_epochs,
    initial_step=await model.get_step(),
):
    train_groups = await art.gather_trajectory_groups(
        [
            art.TrajectoryGroup(
                (rollout(model, scenario) for _ in range(args.rollouts_per_group)),
                metadata={"scenario_id": scenario.id},
            )
            for scenario in batch.items
        ],
        after_each=lambda group: ruler_score_group(
            group,
            judge_model=args.judge_model,
        ),
        max_exceptions=args.rollouts_per_group * len(batch.items),
    )

    train_result = await backend.train(
        model,
        train_groups,
        learning_rate=args.learning_rate,
    )

    await model.log(
        train_groups,
        metrics=train_result.metrics,
        step=train_result.step,
        split="train",
    )

    if should_validate(train_result.step):
        val_groups = await art.gather_trajectory_groups(
            [
                art.TrajectoryGroup(
                    (rollout(model, scenario) for _ in range(args.rollouts_per_group)),
                    metadata={"scenario_id": scenario.id},
                )
                for scenario in validation_scenarios
            ],
            after_each=lambda group: ruler_score_group(
                group,
                judge_model=args.judge_model,
            ),
            max_exceptions=args.rollouts_per_group * len(validation_scenarios),
        )
        await model.log(
            val_groups,
            metrics={"reward": ...},
            step=train_result.step,
            split="val",
        )
        await model.delete_checkpoints()

await backend.close()  # filled in
