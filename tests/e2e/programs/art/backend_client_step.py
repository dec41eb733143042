from zlib import crc32  # filled in

import art  # filled in

model = art.TrainableModel(name="agent-001", base_model="Qwen/Qwen2.5-3B-Instruct")  # filled in
scenarios, scenario, NUM_STEPS, GROUP_SIZE = ["a", "b"], "a", 2, 4  # filled in
messages = [{"role": "user", "content": scenario}]  # filled in

def score(content, scenario):  # filled in
    return crc32(f"{scenario} {content}".encode()) / 2**32  # filled in

backend = art.LocalBackend()
await model.register(backend)
client = model.openai_client()
completion = await client.chat.completions.create(model=model.name, messages=messages)
choice = completion.choices[0]
traj = art.Trajectory(messages_and_choices=[], reward=0.0)
traj.messages_and_choices.append(choice)
traj.reward = score(choice.message.content, scenario)

async def rollout(model, scenario):  # filled in
    asked = [{"role": "user", "content": scenario}]  # filled in
    answered = await client.chat.completions.create(model=model.name, messages=asked)  # filled in
    reward = score(answered.choices[0].message.content, scenario)  # filled in
    return art.Trajectory(messages_and_choices=[*asked, answered.choices[0]], reward=reward)  # filled in

steps = []  # filled in
for step in range(NUM_STEPS):
    groups = await art.gather_trajectory_groups((art.TrajectoryGroup(rollout(model, s) for _ in range(GROUP_SIZE)) for s in scenarios))
    await model.train(groups, config=art.TrainConfig(learning_rate=1e-5))
    steps.append(model.get_step())  # filled in
model.get_step()
