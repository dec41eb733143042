"""The process in which a rollout runs the user's entry point again, on recorded inputs."""
