"""What is shipped to an OTLP receiver: its encoding, one pass of delivery, and the thread that repeats it."""
