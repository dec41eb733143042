"""`python -m arttrace`: the command line, where its script is not on PATH or another environment's is."""

from arttrace.commands import main

if __name__ == "__main__":
    main("arttrace")
