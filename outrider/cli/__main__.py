"""Runs the command as `python -m outrider.cli`."""

import sys

from outrider.cli import main

sys.exit(main())
