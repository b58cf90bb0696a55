"""Choosing tokens: from logits to output tokens, exactly, whatever the batch and the drafts."""

from outrider.model.sampling.choose import choose, noised_scores
from outrider.model.sampling.grammar import GrammarCompiler, GrammarError, GrammarState
from outrider.model.sampling.logprobs import Logprobs
from outrider.model.sampling.processors import Chain
from outrider.model.sampling.state import SamplingState
from outrider.model.sampling.verify import NoToken, Output, outputs

__all__ = [
    "Chain", "GrammarCompiler", "GrammarError", "GrammarState", "Logprobs", "NoToken", "Output",
    "SamplingState", "choose", "noised_scores", "outputs",
]  # fmt: skip
