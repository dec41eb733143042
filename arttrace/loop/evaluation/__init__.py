"""What runs are worth: a judge's scores of a group, and the numbers that a model logs."""
