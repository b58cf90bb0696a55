"""What can be wrong with a model on disk; every message is one line and names the file, tensor or field."""

from pathlib import Path


class ModelError(Exception):
    """A model cannot be loaded."""


class ConfigError(ModelError):
    """A field of config.json is missing, absurd or not supported."""

    def __init__(self, path: Path, field: str, problem: str) -> None:
        super().__init__(f"{path}: {field}: {problem}")
        self.path = path
        self.field = field


class CheckpointError(ModelError):
    """A weight file cannot be read, or its tensors are not those that the config demands."""
