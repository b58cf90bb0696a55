"""The parts of outrider that are written in C++, one module for each."""
