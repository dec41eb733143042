"""The engines behind the gateway: connections, what is asked of each, who answers, and their sleep."""
