"""`arttrace doctor`: checks the installation, the data directory and the servers."""
