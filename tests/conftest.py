"""Settings every test shares."""

import os

from hypothesis import settings

# Read when torch is first imported: a thread that spins takes a core from the process it waits for.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A property holds or it does not; how long an example takes on a busy machine is no part of it.
settings.register_profile("outrider", deadline=None)
settings.load_profile("outrider")
