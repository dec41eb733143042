"""What all of arttrace builds on: errors, the data directory, the journal, files and processes of the system."""
