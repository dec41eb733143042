"""What the processes of the trainer print: lines of a log, and the silence of the libraries."""
