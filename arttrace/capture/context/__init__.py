"""Who is calling: the run, its scopes, and how they are carried to other flows, threads, processes and servers."""
