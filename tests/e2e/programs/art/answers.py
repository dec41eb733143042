from art import AsyncClient
client = AsyncClient(base_url="http://gpu-box:8000/v1")
async def rollout(question, number):  # filled in
    messages = [{"role": "user", "content": question}]  # filled in
    resp = await client.chat.completions.create(model="lora:latest", messages=messages)
    resp.trajectory.reward = float(number % 2)  # filled in
    return resp.trajectory   # already tagged with its id
