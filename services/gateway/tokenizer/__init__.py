"""Text to token ids and back, by the files of the model's directory; code in the directory is never run."""

from pathlib import Path
from typing import Protocol

from outrider.rpc.config import ConfigError


class Tokenizer(Protocol):
    """What the gateway asks of a tokenizer."""

    vocab_size: int
    # Added tokens that structure a prompt, as spelled: special ones, and those with bars as in `<|...|>`.
    spellings: frozenset[str]

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Tokenizes; special tokens written out are recognised, surrounding ones added if asked for."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of text that a token stands for; none for special and for unknown tokens."""
        ...

    def added_token_id(self, content: str) -> int | None:
        """Returns the id of an added token such as `<|im_end|>`, or None if there is none."""
        ...


def load_tokenizer(directory: Path) -> Tokenizer:
    """Loads tokenizer.json, else tiktoken.model. Raises ConfigError naming what is missing or wrong."""
    # Imported here: each kind needs its own library only.
    if (path := directory / "tokenizer.json").exists():
        from services.gateway.tokenizer.hugging_face import HuggingFaceTokenizer

        return HuggingFaceTokenizer.load(path)
    if (path := directory / "tiktoken.model").exists():
        from services.gateway.tokenizer.rank_file import RankFileTokenizer

        return RankFileTokenizer.load(path)
    raise ConfigError(f"{directory}: neither tokenizer.json nor tiktoken.model is there")
