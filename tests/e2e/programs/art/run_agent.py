from openpipe_art import ArtClient, ruler_score_group
client = ArtClient(server_url="http://localhost:5000")
trajectory = client.run_agent(task="search_emails", prompt="Find unread emails from last week.")
judged_group = await ruler_score_group([trajectory], model="openai/o3")
client.train(iterations=100)
