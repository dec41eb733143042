"""What is put in the place of other people's functions, and taken out again by `uninstrument`."""
