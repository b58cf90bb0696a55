"""Where the local stack keeps what it has learnt: below one directory that only its owner may read."""

import fcntl
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from services.local.child import StartError


def default_state(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the directory that the XDG base directory specification names for it."""
    below = environ.get("XDG_STATE_HOME", "")
    # The specification has relative paths ignored.
    if not Path(below).is_absolute():
        home = environ.get("HOME")
        if not home:
            raise StartError("--state: HOME is not set; name a directory, or none")
        below = str(Path(home, ".local", "state"))
    return Path(below, "outrider")


def make_private(directory: Path) -> None:
    """Creates a directory for its owner alone; raises StartError naming the option if it is not.

    One that is there is left as it is: it may be somewhere that others are meant to use.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = stat.S_IMODE(directory.stat().st_mode)
    except OSError as error:
        raise StartError(f"--state {directory}: {error.strerror}") from None
    if mode & 0o077:
        raise StartError(
            f"--state {directory}: others may use it (mode {mode:04o}); chmod 700 it, or name another"
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StartError(f"--state {directory}: Permission denied")


class Lock:
    """Holds a state directory for one stack, until it is released or the process ends."""

    def __init__(self, directory: Path) -> None:
        """Raises StartError naming the option if another stack holds it."""
        self._file = (directory / "lock").open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise StartError(
                f"--state {directory}: another stack keeps what it learns there; name another, or none"
            ) from None

    def release(self) -> None:
        """Lets another stack have it."""
        self._file.close()
