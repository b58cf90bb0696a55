"""Generated from protos/outrider/v1; regenerate with `make protos`."""
