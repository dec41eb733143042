"""What `gather` needs: its members, one run each, and the progress that it shows."""
