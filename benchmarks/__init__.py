"""What is measured; never part of the tests."""

import os

# Read when torch is first imported: threads that spin would take the cores from the services beside them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
