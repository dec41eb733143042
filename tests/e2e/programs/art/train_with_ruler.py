import art
from art.rewards import ruler_score_group

Scenario = str  # filled in
scenarios = ["Which mail is from Ann?", "Which mail is the newest?"]  # filled in
model = art.TrainableModel(name="agent-001", project="my-agentic-task", base_model="Qwen/Qwen2.5-14B-Instruct")
backend = art.ServerBackend("http://gpu-box:8000")  # filled in
await model.register(backend)  # filled in

async def rollout(model: art.Model, scenario: Scenario) -> art.Trajectory:
    openai_client = model.openai_client()
    trajectory = art.Trajectory(messages_and_choices=[{"role": "system", "content": "..."}, {"role": "user", "content": "..."}])
    # agent logic: calls openai_client, appends choices
    system, user = trajectory.messages_and_choices  # filled in
    system["content"], user["content"] = "You are an email assistant.", scenario  # filled in
    for _ in range(2):  # filled in
        asked = trajectory.messages()  # filled in
        completion = await openai_client.chat.completions.create(model=model.name, messages=asked)  # filled in
        trajectory.messages_and_choices.append(completion.choices[0])  # filled in
        trajectory.messages_and_choices.append({"role": "user", "content": "Are you sure?"})  # filled in
    return trajectory

groups = await art.gather_trajectory_groups(
    (art.TrajectoryGroup(rollout(model, scenario) for _ in range(8)) for scenario in scenarios),
    after_each=lambda group: ruler_score_group(group, "openai/o3", swallow_exceptions=True),
)
await model.train(groups)
