"""The drafter remembers texts and guesses the tokens that follow; a bad guess costs time, never tokens."""
