"""The calls of one agent as a trie of messages: which call continues which, what answers a tool call, and the graph."""
