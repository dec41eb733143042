"""What runs are worth: a judge's scores of a group, and the numbers of runs that nothing is trained on."""
