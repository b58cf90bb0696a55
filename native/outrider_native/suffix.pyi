"""Guesses how texts go on from what followed their ends before."""

from array import array

Tokens = array[int] | memoryview
"""Unsigned 32-bit integers in a row; other types of this kind that offer their memory do as well."""

Guess = tuple[tuple[int, ...], tuple[float, ...], int, tuple[tuple[tuple[int, float], ...], ...]]
"""Tokens, the chance that each is right if those before it are, the length of the longest match, and for each
place of the draft and the one behind it up to three other tokens with their chances."""

MAX_MATCH_LENGTH: int
MAX_TEXT_LENGTH: int

class RunningText:
    """The index of one text, which grows and never forgets."""

    def __init__(self, seed: int) -> None: ...
    def __len__(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """The memory held."""

    def take_in(self, token_ids: Tokens, max_num_tokens: int) -> None:
        """Takes in more tokens of the text, of which it holds the first len(self)."""

    def guess(self, token_ids: Tokens, assumed: Tokens, max_num_tokens: int) -> Guess:
        """Guesses what follows the text and the tokens assumed behind it."""

    def check(self) -> None:
        """Raises RuntimeError if an invariant is broken; for tests."""

class StoredText:
    """A text as a snapshot keeps it. Raises ValueError for one that no memory stores."""

    def __init__(
        self,
        *,
        token_ids: Tokens,
        num_context_tokens: int,
        usefulness: float,
        used_at: int,
        num_repeats: bytes,
    ) -> None: ...
    @property
    def token_ids(self) -> bytes:
        """The tokens, four bytes each in the machine's order."""

    @property
    def num_context_tokens(self) -> int:
        """How many tokens at the beginning are there to lead to the rest."""

    @property
    def usefulness(self) -> float:
        """Tokens earned per token stored, faded with age."""

    @property
    def used_at(self) -> int:
        """When it was used last, in seconds."""

    @property
    def num_repeats(self) -> bytes:
        """How often outputs said each chunk again."""

class TextMemory:
    """Remembers texts, each part once, and forgets what is of least use.

    Where a text that is added follows a stored one for 32 tokens, nothing is stored from there on: the stored
    one becomes more useful. Usefulness is 1 for a new text, grows by one over the text's length for each
    token of a later text that the memory knew from it, and halves each time `half_life` tokens are stored.
    """

    def __init__(self, seed: int, half_life: float) -> None: ...
    def __len__(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """The memory held."""

    def add(self, token_ids: Tokens, *, is_output: bool, now: int) -> None:
        """Adds tokens to the text at the end; `now`: when the texts concerned were used, in seconds."""

    def end_text(self) -> None:
        """Ends the text; what is added next belongs to another."""

    def forget(self) -> int:
        """Forgets the least useful text and returns how many tokens it held; 0 if nothing is left."""

    def guess(self, token_ids: Tokens, assumed: Tokens, max_num_tokens: int) -> Guess:
        """Guesses what follows a text and the tokens assumed behind it."""

    def texts(self) -> tuple[int, ...]:
        """Names all texts that have ended, in the order in which they came."""

    def text(self, text_id: int) -> StoredText:
        """Returns a text. Raises ValueError if it has been forgotten."""

    def restore(self, text: StoredText) -> None:
        """Adds a text as it was."""

    def check(self) -> None:
        """Raises RuntimeError if an invariant is broken; for tests."""
