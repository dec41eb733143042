"""The operating system, as all of arttrace uses it: native threads, private files, exit statuses."""
