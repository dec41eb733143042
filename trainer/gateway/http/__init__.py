"""HTTP as the gateway speaks it: the server's bounds, and which route a path is."""
