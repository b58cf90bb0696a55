"""Drafts by a draft model: any checkpoint with the target's vocabulary that outrider can run."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Self

import torch

from outrider.kernels import DRAFTING
from outrider.model.config import read_json
from outrider.model.errors import ModelError
from outrider.model.transformer import Transformer
from outrider.rpc.config import ConfigError
from services.drafter.draft_model import DraftModel
from services.drafter.guess import Guess
from services.drafter.sampled import Text
from services.drafter.sequence import RunningSequence
from services.drafter.source import Question


class ModelSource:
    """Asks a draft model in the one thread that computes; a text is read when it is first asked about."""

    name = "model"

    def __init__(self, model: DraftModel, executor: Executor) -> None:
        self._model = model
        self._executor = executor

    @classmethod
    def load(
        cls, model_dir: Path, target_dir: Path, *, kv_cache_bytes: int, num_threads: int, executor: Executor
    ) -> Self:
        """Loads the checkpoint in the executor's thread and waits for it.

        Raises ConfigError naming the setting that is wrong.
        """
        return cls(
            executor.submit(_load, model_dir, target_dir, kv_cache_bytes, num_threads).result(), executor
        )

    def open(self, sequence: RunningSequence) -> None:
        """Needs nothing yet."""

    def extend(self, sequence: RunningSequence, num_tokens: int) -> None:
        """Needs nothing: the tokens are read when the sequence is next asked about."""

    async def guess(self, questions: Sequence[Question]) -> list[Guess]:
        """Answers questions in one batch; where a long text is not read yet, by an empty guess."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._draft, questions)

    def _draft(self, questions: Sequence[Question]) -> list[Guess]:
        # Long texts take long to copy: the event loop has others to serve.
        return self._model.draft([Text.of(question) for question in questions])

    async def close(self, sequence: RunningSequence, *, finished: bool) -> None:
        """Lets go of a sequence; there is nothing to learn from it."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._model.forget, sequence)


def _load(model_dir: Path, target_dir: Path, kv_cache_bytes: int, num_threads: int) -> DraftModel:
    # A setting of the calling thread.
    torch.set_num_threads(num_threads)
    target_size = _vocab_size("OUTRIDER_DRAFTER_TARGET_DIR", target_dir)
    vocab_size = _vocab_size("OUTRIDER_DRAFTER_MODEL_DIR", model_dir)
    if vocab_size != target_size:
        raise ConfigError(
            f"OUTRIDER_DRAFTER_MODEL_DIR: {model_dir} has a vocabulary of {vocab_size} tokens, "
            f"and the served model one of {target_size}"
        )
    try:
        model = DraftModel(Transformer.load(model_dir, backend=DRAFTING), kv_cache_bytes)
    except ModelError as error:
        raise ConfigError(f"OUTRIDER_DRAFTER_MODEL_DIR: {error}") from None
    model.warm_up()
    return model


def _vocab_size(variable: str, directory: Path) -> int:
    """Reads the one field: the served model may be one that the drafter itself could not load."""
    try:
        fields = read_json(directory / "config.json")
        return (fields.section("text_config") if fields.has("text_config") else fields).integer("vocab_size")
    except ModelError as error:
        raise ConfigError(f"{variable}: {error}") from None
