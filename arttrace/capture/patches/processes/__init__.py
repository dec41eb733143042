"""What a trajectory starts in other processes is a part of it: programs, processes, jobs of pools."""
