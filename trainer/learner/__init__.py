"""Token sequences in, adapter out: batches, loss, and one optimisation step at a time."""

import os

# Read when torch is first loaded. Threads that spin while they wait make a step ten times slower on a machine whose
# cores are shared with a serving engine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
