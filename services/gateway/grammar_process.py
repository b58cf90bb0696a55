"""The process that compiles grammars: in comes a line of JSON, [[language, text], ...].

Out goes a line {"error"} for each, up to the first that has one.
"""

import json
import resource
import sys

from llguidance import LLMatcher, LLParserLimits

from outrider.grammar_limits import GRAMMAR_LIMITS

_MAX_ADDRESS_SPACE = 4 << 30
_MAX_ERROR_LENGTH = 800
# Those of the worker, so that it takes what passes here.
_LIMITS = LLParserLimits(**GRAMMAR_LIMITS)


def compile_error(language: str, text: str) -> str:
    """Returns why a grammar does not compile; nothing if it does."""
    make = {
        "json_schema": LLMatcher.grammar_from_json_schema,
        "regex": LLMatcher.grammar_from_regex,
        "lark": LLMatcher.grammar_from_lark,
    }[language]
    try:
        # A grammar that accepts nothing would be an empty string.
        return LLMatcher.validate_grammar(make(text), limits=_LIMITS) if text.strip() else "is empty"
    except ValueError as error:
        return str(error)


def main() -> None:
    """Answers until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_ADDRESS_SPACE, _MAX_ADDRESS_SPACE))
    for line in sys.stdin.buffer:
        for language, text in json.loads(line):
            error = compile_error(language, text)[:_MAX_ERROR_LENGTH]
            sys.stdout.write(json.dumps({"error": error}) + "\n")
            sys.stdout.flush()
            if error:
                break


if __name__ == "__main__":
    main()
