"""Compiles launches ahead of time, for a GPU that need not be there, and looks at what came out."""
