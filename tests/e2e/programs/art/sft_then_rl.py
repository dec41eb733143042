from itertools import count  # filled in

even_and_odd = count()  # filled in

async def answer(model, scenario):  # filled in
    said = [{"role": "user", "content": scenario}]  # filled in
    answered = await model.openai_client().chat.completions.create(model=model.name, messages=said)  # filled in
    return art.Trajectory(messages_and_choices=[*said, answered.choices[0]], reward=next(even_and_odd) % 2)  # filled in

my_project = (answer, ["Which mail is from Ann?"])  # filled in

import art
from art.local import LocalBackend
# from art.serverless.backend import ServerlessBackend
from art.utils.sft import train_sft_from_file

async def main():
    backend = LocalBackend()
    # backend = ServerlessBackend()  # or use serverless for managed GPUs
    model = art.TrainableModel(
        name="warmup-then-rl",
        project="my-project",
        base_model="Qwen/Qwen3-30B-A3B-Instruct-2507",
    )
    await model.register(backend)

    # Phase 1: SFT warmup from a dataset
    await train_sft_from_file(
        model=model,
        file_path="data/train.jsonl",
        epochs=3,
    )

    # Phase 2: RL training picks up from the SFT checkpoint
    from my_project import rollout, scenarios
    for step in range(await model.get_step(), 50):
        train_groups = await art.gather_trajectory_groups(
            [
                art.TrajectoryGroup(rollout(model, scenario) for _ in range(8))
                for scenario in scenarios
            ]
        )
        result = await backend.train(model, train_groups)
        await model.log(train_groups, metrics=result.metrics, step=result.step, split="train")
        return result, train_groups, await backend.close()  # filled in

result, groups, _ = await main()  # filled in
