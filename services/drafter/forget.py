"""Erases what is kept of a tenant: python -m services.drafter.forget TENANT.

It leaves a mark, by which a drafter that runs on the folder forgets the tenant when it next saves; where none
runs, the next to start removes it. Sequences that still run are learnt from when they finish, as later ones.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from services.drafter import snapshot
from services.drafter.config import PREFIX
from services.drafter.memory import ALL_TENANTS

VARIABLE = f"{PREFIX}_SNAPSHOT_DIR"
CANNOT = 1
IS_SHARED = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Removes the tenant's files and leaves the mark; returns 1 if it cannot, 3 where all share a memory."""
    options = _parse(arguments)
    folder = Path(options.snapshot_dir)
    owner = ALL_TENANTS if options.shared else options.tenant
    path = folder / snapshot.file_name(owner, is_shared=options.shared)
    try:
        path.with_suffix(snapshot.ERASE).touch(mode=0o600)
        found = snapshot.erase(path)
    except OSError as error:
        sys.stderr.write(f"{owner} is not erased: {error.filename}: {error.strerror}\n")
        return CANNOT
    said = f"erased {', '.join(map(str, found))}" if found else f"{folder} held nothing of {owner!r}"
    sys.stdout.write(f"{said}; a drafter that runs there forgets it when it next saves\n")
    shared = folder / snapshot.file_name(ALL_TENANTS, is_shared=True)
    if not options.shared and shared.exists():
        sys.stderr.write(
            f"{folder} also holds the memory that all tenants share, of which one cannot be erased: "
            "--shared erases it whole\n"
        )
        return IS_SHARED
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m services.drafter.forget", description="Erases a tenant.")
    parser.add_argument("tenant", nargs="?", help="without keys everybody is default")
    parser.add_argument("--shared", action="store_true", help="erase the memory that all tenants share")
    parser.add_argument("--snapshot-dir", type=Path, default=os.environ.get(VARIABLE), help=VARIABLE)
    options = parser.parse_args(arguments)
    if options.snapshot_dir is None:
        parser.error(f"--snapshot-dir or {VARIABLE} must say where snapshots are")
    if options.shared == (options.tenant is not None):
        parser.error("either TENANT or --shared must be given")
    return options


if __name__ == "__main__":
    sys.exit(main())
