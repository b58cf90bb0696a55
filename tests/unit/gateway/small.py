"""A small byte-level tokenizer with Kimi's structuring tokens, and ways to run tokens through the parser."""

from dataclasses import dataclass, field

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from services.gateway.output.marks import Mark
from services.gateway.output.parser import OutputFormat, OutputParser, Stop
from services.gateway.output.piece import Piece, join

WORDS = ("he", "hel", "lo", "wor", "ld", "fun", "functions", ".f", "{}", ":0", "\n\n")
# Tokens that begin or end inside a character.
HALVES = (b"a\xe2", b"\x82\xac", b"\xe2\x82", b"\xacb", b"\xf0\x9f", b"\x98\x80")


def byte_level_name(data: bytes) -> str:
    """Returns bytes as a byte-level vocabulary spells them."""
    spelled = pre_tokenizers.ByteLevel.alphabet()
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    names = {byte: chr(byte) for byte in visible} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    assert set(names.values()) == set(spelled)
    return "".join(names[byte] for byte in data)


def build_tokenizer() -> Tokenizer:
    """Builds it: 256 bytes, some words, halves of characters, a special token and the marks."""
    pieces = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS] + list(HALVES)
    vocabulary = {byte_level_name(piece): i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("h", "e"), ("he", "l"), ("l", "o")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken(mark.value, special=False, normalized=False) for mark in Mark])
    return tokenizer


@dataclass(kw_only=True)
class Parsed:
    """What a whole output came to."""

    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    stop: Stop | None = None
    anomalies: list[str] = field(default_factory=list)
    num_tokens: int = 0
    num_reasoning_tokens: int = 0


class Reading:
    """Runs token ids through a parser in chunks, and puts what comes out together as a client does."""

    def __init__(self, output_format: OutputFormat) -> None:
        self.format = output_format

    def deltas(self, token_ids, cuts=(), *, num_sent=0, finish=True) -> tuple[list[Piece], OutputParser]:
        """Pushes all tokens, taking what there is after each position in `cuts` and at the end."""
        parser = OutputParser(self.format, num_sent=num_sent)
        deltas = []
        for i, token_id in enumerate(token_ids):
            if parser.stop is None:
                parser.push(token_id)
            if i + 1 in cuts:
                deltas.append((parser.take(), parser.num_completed))
        if finish:
            parser.finish()
        deltas.append((parser.take(), parser.num_completed))
        self.boundaries = [completed for _, completed in deltas]
        return [delta for delta, _ in deltas], parser

    def whole(self, token_ids, cuts=(), *, before: tuple[Piece, ...] = (), num_sent=0) -> Parsed:
        """Returns what all deltas come to, after those received `before`."""
        deltas, parser = self.deltas(token_ids, cuts, num_sent=num_sent)
        everything = join([*before, *deltas])
        calls: dict[int, dict[str, str]] = {}
        for piece in everything.tool_calls:
            call = calls.setdefault(piece.index, {"id": piece.id, "name": piece.name, "arguments": ""})
            call["arguments"] += piece.arguments
        return Parsed(
            text=everything.text,
            reasoning=everything.reasoning,
            calls=list(calls.values()),
            stop=parser.stop,
            anomalies=parser.anomalies,
            num_tokens=parser.num_tokens,
            num_reasoning_tokens=parser.num_reasoning_tokens,
        )
