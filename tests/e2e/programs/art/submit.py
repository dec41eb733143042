import art  # filled in

client = art.Client(base_url="http://gpu-box:8000/v1")  # filled in
messages = [{"role": "user", "content": "c"}]  # filled in
trajectory_group = []  # filled in
for number in range(8):  # filled in
    tid, score = f"run-c-{number}", float(number % 2)  # filled in
    response = client.chat.completions.create(model="lora:latest", messages=[...], extra_body={"art": {"trajectory_id": tid}})
    trajectory = art.Trajectory([*messages, response.choices[0]], id=tid, metadata={"number": number})  # filled in
    trajectory.reward = score
    trajectory_group.append(trajectory)  # filled in
await client.submit_trajectories([trajectory_group])   # the server blocks new inference, trains, saves to ./checkpoints, swaps the LoRA, resumes
client.close()  # filled in
