"""Edits of this repository's own files, recorded from its history: what a coding agent is asked and writes.

    python -m benchmarks.edits [--num-edits 64]    (writes benchmarks/data/edits.json anew)

The tiny model cannot write code. Where an edit is replayed its new text is the output whatever the model
would rather say (`forced`); all else is real: each token is chosen by the sampler from the model's logits
under a grammar, and drafts are guessed from what came before and verified like any others.
"""

import argparse
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from outrider.client import Options
from services.local.settings import DEFAULT_MODEL

PATH = Path(__file__).parent / "data" / "edits.json"
# Characters of either side: so that a conversation with two edits fits the tiny model's context.
MIN_LENGTH, MAX_LENGTH = 250, 620
# The byte that stands as every token's alternative: no recorded text holds it.
ESCAPE = "\x01"
_HUNK = re.compile(r"^@@ .*? @@.*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A passage of a file before and after a change, and what the change was for."""

    path: str
    purpose: str
    before: str
    after: str

    @property
    def request(self) -> str:
        """What the agent is asked, with the passage as it stands."""
        return f"{self.purpose}. Rewrite this passage of {self.path}:\n{self.before}"


@cache
def recorded() -> tuple[Edit, ...]:
    """Returns the recorded edits, oldest first."""
    return tuple(Edit(**item) for item in json.loads(PATH.read_text()))


@cache
def tokenizer() -> Tokenizer:
    """Returns the tiny model's tokenizer."""
    return Tokenizer.from_file(str(DEFAULT_MODEL / "tokenizer.json"))


def encode(text: str) -> list[int]:
    """Returns a text's tokens."""
    return tokenizer().encode(text, add_special_tokens=False).ids


def forced(text: str) -> Options:
    """Returns options under which `text`, in its usual tokens, is the output.

    A grammar of one text alone would force its bytes, and the worker would offer them all as drafts of source
    `grammar`. So each place allows a second token, which a bias keeps from being chosen: nothing is forced as
    far as the grammar knows, and what is drafted was guessed.
    """
    (escape,) = encode(ESCAPE)
    places = (f"<[{min(token_id, escape)},{max(token_id, escape)}]>" for token_id in encode(text))
    return {"lark": f"start: {' '.join(places)}\n", "logit_bias": {escape: -100.0}, "temperature": 0.0}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def _hunks(commit: str) -> Iterator[tuple[str, str, str]]:
    """Yields path, old and new text of every changed passage of a commit."""
    for part in _git("show", "--format=", "--unified=5", "--no-renames", commit, "--", "*.py").split(
        "diff --git "
    )[1:]:
        path = part.splitlines()[0].split(" b/")[-1]
        for body in _HUNK.split(part)[1:]:
            lines = body.strip("\n").splitlines()
            yield path, _side(lines, " -"), _side(lines, " +")


def _side(lines: Sequence[str], marks: str) -> str:
    return "".join(f"{line[1:]}\n" for line in lines if not line or line[0] in marks)


def record(num_edits: int) -> list[Edit]:
    """Collects the latest edits of fitting size from the history, oldest first."""
    edits: list[Edit] = []
    for line in _git("log", "--no-merges", "--format=%h %s").splitlines():
        commit, purpose = line.split(" ", 1)
        edits += [
            Edit(path=path, purpose=purpose, before=before, after=after)
            for path, before, after in _hunks(commit)
            if all(MIN_LENGTH <= len(side) <= MAX_LENGTH for side in (before, after))
        ]
    return edits[:num_edits][::-1]


def main() -> None:
    """Writes the recorded edits anew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-edits", type=int, default=64)
    arguments = parser.parse_args()
    edits = [asdict(edit) for edit in record(arguments.num_edits)]
    PATH.write_text(json.dumps(edits, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
