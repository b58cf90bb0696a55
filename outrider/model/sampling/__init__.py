"""Choosing tokens: from logits to output tokens, exactly, whatever the batch and the drafts."""

from outrider.model.sampling.choose import choose, noised_scores
from outrider.model.sampling.grammar import GrammarCompiler, GrammarError, GrammarState
from outrider.model.sampling.logprobs import Logprobs
from outrider.model.sampling.philox import gumbel_noise, philox4x32_10
from outrider.model.sampling.processors import Chain
from outrider.model.sampling.state import SamplingState
from outrider.model.sampling.verify import NoToken, Output, verify

__all__ = [
    "Chain", "GrammarCompiler", "GrammarError", "GrammarState", "Logprobs", "NoToken", "Output",
    "SamplingState", "choose", "gumbel_noise", "noised_scores", "philox4x32_10", "verify",
]  # fmt: skip
