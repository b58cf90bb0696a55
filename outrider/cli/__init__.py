"""The `outrider` command."""

from outrider.cli.main import main

__all__ = ["main"]
