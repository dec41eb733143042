"""Files that hold one session: what is read of a line is kept until the file ends."""
