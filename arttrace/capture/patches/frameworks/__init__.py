"""Tools and agents as other libraries run them, recorded as `@tool` and `@agent` would: one small file per library.

Each file hooks the place where its library executes a tool (`patches/hooks.py` says when); `runs.py` is what they
share. A tool that passes through several of them, or is decorated with `@tool` as well, is one execution and one span:
the outermost's.
"""
