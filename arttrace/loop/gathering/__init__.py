"""What `gather` needs: groups and their members, one run each, and the progress that it shows."""
