"""Erases what is kept of a tenant: python -m services.drafter.forget TENANT.

A drafter that runs on the folder forgets the tenant when it next saves.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from services.drafter.config import PREFIX
from services.drafter.snapshot import file_name

VARIABLE = f"{PREFIX}_SNAPSHOT_DIR"


def main(arguments: Sequence[str] | None = None) -> int:
    """Removes the tenant's snapshot; returns 1 if there is none."""
    parser = argparse.ArgumentParser(prog="python -m services.drafter.forget", description="Erases a tenant.")
    parser.add_argument("tenant")
    parser.add_argument("--snapshot-dir", type=Path, default=os.environ.get(VARIABLE), help=VARIABLE)
    options = parser.parse_args(arguments)
    if options.snapshot_dir is None:
        parser.error(f"--snapshot-dir or {VARIABLE} must say where snapshots are")
    path = Path(options.snapshot_dir) / file_name(options.tenant, is_shared=False)
    try:
        path.unlink()
    except FileNotFoundError:
        sys.stderr.write(f"nothing is kept of {options.tenant!r} in {options.snapshot_dir}\n")
        return 1
    sys.stdout.write(f"erased {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
