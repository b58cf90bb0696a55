"""How far drafts keep what their chances promise, over the last few steps: quicker than any fit."""

# A step tells the more the more tokens it should have had accepted: of so many it counts for half.
_NUM_FOR_HALF = 8.0
# Back to good faith, by each step without drafts.
_RECOVERY = 1 / 512


class Surprise:
    """The ratio of accepted to expected tokens of late, at most 1.

    Fits remember thousands of tokens, so when the text of all sequences turns they go on promising for a
    while. What they promise is taken times this.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._num_expected = 0.0

    def expect(self, num_tokens: float) -> None:
        """Notes how many tokens of the coming step should be accepted."""
        self._num_expected = num_tokens

    def settle(self, num_accepted: int) -> None:
        """Hears how many were."""
        if self._num_expected:
            ratio = (num_accepted + 1) / (self._num_expected + 1)
            share = self._num_expected / (self._num_expected + _NUM_FOR_HALF)
            self.factor = min(1.0, self.factor + share * (ratio - self.factor))
            self._num_expected = 0.0
        else:
            self.factor += _RECOVERY * (1 - self.factor)
