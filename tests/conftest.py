"""Settings every test shares."""

import os

from hypothesis import settings

# Read when torch is first imported: a thread that spins takes a core from the process it waits for.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Read when a kernel is defined: GPU kernels run on any machine then, one program after another.
os.environ.setdefault("TRITON_INTERPRET", "1")

# A property holds or it does not; how long an example takes on a busy machine is no part of it.
settings.register_profile("outrider", deadline=None)
settings.load_profile("outrider")
