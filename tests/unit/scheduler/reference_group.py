"""The worker's contract as a pure function: what a group must answer, with a checked cache.

The slot of a token in the cache holds the hash of all tokens up to it; a step that builds on a slot holding
something else (a wrong block table, a stale block, a rejected draft left behind) fails.
"""

import struct
from dataclasses import dataclass, field

from outrider import token_hash
from outrider.v1 import features_pb2, sampling_pb2
from outrider.v1 import worker_pb2 as pb


def choose(content: int, seed: int, vocab_size: int) -> int:
    """Returns the token that follows the tokens with hash `content`."""
    return (content ^ (content >> 17) ^ (seed * 0x9E3779B1)) % vocab_size


def alone(
    token_ids: list[int], seed: int, *, num_tokens: int, stop: frozenset[int], vocab_size: int
) -> list[int]:
    """Returns all tokens of a sequence that has the group for itself and ends at `num_tokens`."""
    token_ids = list(token_ids)
    content = token_hash.extend(token_hash.EMPTY, token_ids)
    while len(token_ids) < num_tokens:
        token_ids.append(choose(content, seed, vocab_size))
        content = token_hash.extend(content, token_ids[-1:])
        if token_ids[-1] in stop:
            break
    return token_ids


@dataclass
class Known:
    """What a group knows of one sequence."""

    token_ids: list[int]
    seed: int
    stop: frozenset[int]
    blocks: list[int] = field(default_factory=list)


class ReferenceGroup:
    """Answers steps and raises AssertionError for a batch that breaks the contract."""

    def __init__(
        self, *, num_blocks: int = 32, block_size: int = 4, vocab_size: int = 11,
        max_num_batched_tokens: int = 16, max_model_len: int = 1000, forces_tokens: bool = False,
        feature_size: int = 0,
    ) -> None:  # fmt: skip
        self.opened = pb.SessionOpened(
            model="reference", numerics_id="reference-1", max_model_len=max_model_len, vocab_size=vocab_size,
            num_blocks=num_blocks, block_size=block_size, max_num_batched_tokens=max_num_batched_tokens,
            feature_size=feature_size,
        )  # fmt: skip
        self.forces_tokens = forces_tokens
        self.num_rows = 0
        self.num_logprobs = 0
        self.void()

    def void(self) -> None:
        """Loses everything, as a new epoch or session does."""
        self.slots: list[int | None] = [None] * (self.opened.num_blocks * self.opened.block_size)
        self.known: dict[int, Known] = {}

    def step(self, batch: pb.Batch) -> pb.BatchOutput:
        """Runs one step."""
        for sequence_id in batch.released_sequence_ids:
            del self.known[sequence_id]
        rows = sum(step.num_new_tokens + len(step.draft_token_ids) for step in batch.sequences)
        assert rows > 0 or batch.released_sequence_ids
        assert rows <= self.opened.max_num_batched_tokens
        self.num_rows += rows
        for step in batch.sequences:
            self._take(step)
        self._check_writers(batch)
        # All rows are written before any token is chosen, as in one forward pass.
        answers = [self._compute(step) for step in batch.sequences]
        features = [
            self._features(step, answer)
            for step, answer in zip(batch.sequences, answers, strict=True)
            if step.wants_features
        ]
        outputs = [answer for answer in answers if answer]
        return pb.BatchOutput(step_id=batch.step_id, outputs=outputs, features=features)

    def _features(
        self, step: pb.SequenceStep, answer: pb.SequenceOutput | None
    ) -> features_pb2.SequenceFeatures:
        """Returns a vector for each token that was computed and is kept: its position and its id."""
        assert self.opened.feature_size == 2
        first, num_accepted = step.num_computed_tokens, answer.tokens.num_accepted_tokens if answer else 0
        token_ids = self.known[step.sequence_id].token_ids[first:][: step.num_new_tokens + num_accepted]
        rows = b"".join(
            struct.pack("<HH", position, token_id) for position, token_id in enumerate(token_ids, first)
        )
        return features_pb2.SequenceFeatures(sequence_id=step.sequence_id, offset=first, rows=rows)

    def _take(self, step: pb.SequenceStep) -> None:
        assert step.HasField("start") == (step.sequence_id not in self.known)
        if step.HasField("start"):
            params = step.start.params
            self.known[step.sequence_id] = Known(
                list(step.start.token_ids), params.seed, frozenset(params.sampling.stop_token_ids)
            )
        known = self.known[step.sequence_id]
        known.blocks.extend(step.new_block_ids)
        end = step.num_computed_tokens + step.num_new_tokens
        assert step.num_new_tokens >= 1
        assert end <= len(known.token_ids)
        assert not step.draft_token_ids or end == len(known.token_ids)
        assert end + len(step.draft_token_ids) <= len(known.blocks) * self.opened.block_size
        assert end + len(step.draft_token_ids) <= self.opened.max_model_len

    def _check_writers(self, batch: pb.Batch) -> None:
        written: set[int] = set()
        for step in batch.sequences:
            known = self.known[step.sequence_id]
            first = step.num_computed_tokens
            for position in range(first, first + step.num_new_tokens + len(step.draft_token_ids)):
                slot = self._slot(known, position)
                assert slot not in written, "two sequences write one slot"
                written.add(slot)

    def _slot(self, known: Known, position: int) -> int:
        block, offset = divmod(position, self.opened.block_size)
        return known.blocks[block] * self.opened.block_size + offset

    def _compute(self, step: pb.SequenceStep) -> pb.SequenceOutput | None:
        known, first = self.known[step.sequence_id], step.num_computed_tokens
        content = token_hash.EMPTY
        for position in range(first):
            content = token_hash.extend(content, known.token_ids[position : position + 1])
            assert self.slots[self._slot(known, position)] == content, "a slot holds something else"
        rows = [*known.token_ids[first : first + step.num_new_tokens], *step.draft_token_ids]
        contents = []
        for position, token_id in enumerate(rows, first):
            content = token_hash.extend(content, [token_id])
            self.slots[self._slot(known, position)] = content
            contents.append(content)
        if first + step.num_new_tokens < len(known.token_ids):
            return None
        return self._verify(step, known, contents[step.num_new_tokens - 1 :])

    def _verify(self, step: pb.SequenceStep, known: Known, contents: list[int]) -> pb.SequenceOutput:
        chosen: list[int] = []
        num_accepted = 0
        for content, drafted in zip(contents, [*step.draft_token_ids, None], strict=True):
            chosen.append(choose(content, known.seed, self.opened.vocab_size))
            num_accepted += chosen[-1] == drafted
            if chosen[-1] != drafted or chosen[-1] in known.stop:
                break
        known.token_ids.extend(chosen)
        top = [sampling_pb2.TopLogprob(token_id=n, logprob=-1.0) for n in range(self.num_logprobs)]
        forced = [chosen[-1]] * 2 if self.forces_tokens and known.seed % 2 else []
        tokens = pb.OutputTokens(token_ids=chosen, num_accepted_tokens=num_accepted, forced_token_ids=forced)
        if top:
            tokens.logprobs.extend(sampling_pb2.TokenLogprobs(logprob=-1.0, top=top) for _ in chosen)
        return pb.SequenceOutput(sequence_id=step.sequence_id, tokens=tokens)
