"""What a grammar may cost, wherever one is compiled: arguments of llguidance's LLParserLimits.

They bound work, not time, so what passes on one machine passes on all. Compiling takes some 0.1 s at most, a
token some 5 ms: the step of a whole batch waits for either.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

MAX_NUM_CHARACTERS = 1 << 18
GRAMMAR_LIMITS: Mapping[str, Any] = MappingProxyType(
    {
        # A schema of 30 tools with 12 parameters each takes at most a fifth of these two.
        "initial_lexer_fuel": 100_000,
        "max_grammar_size": 50_000,
        "step_lexer_fuel": 50_000,
        "step_max_items": 10_000,
        # One to two kilobytes each.
        "max_lexer_states": 20_000,
    }
)
