"""A folder that `arttrace run` puts on PYTHONPATH, so that Python starts capture before the user's program."""
