"""Drafts kept until their sequence has reached what they follow."""

from dataclasses import replace

from outrider import token_hash
from services.scheduler.sequence import Draft, Sequence

# Of one sequence: a draft per source and likely outcome of the step in flight.
MAX_NUM_KEPT = 64

Key = tuple[int, int, str]
"""Length and hash of the tokens that a draft follows, and its source."""


class KeptDrafts:
    """The drafts of each sequence, those made ahead for outcomes that may never come among them."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[Key, Draft]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def keep(self, sequence_id: int, base_hash: int, draft: Draft) -> None:
        """Keeps a draft; of too many the oldest goes."""
        kept = self._kept.setdefault(sequence_id, {})
        kept[draft.base_length, base_hash, draft.source] = draft
        if len(kept) > MAX_NUM_KEPT:
            del kept[next(iter(kept))]

    def fitting(self, sequence: Sequence) -> dict[str, Draft]:
        """Returns by source what follows the sequence as it is now, and drops what no longer can.

        Of several drafts of a source the one made for the longest text counts. Drafts stay: one that is
        verified in part may go on behind.
        """
        kept = self._kept.get(sequence.id)
        if not kept:
            return {}
        fitting: dict[str, Draft] = {}
        made_for: dict[str, int] = {}
        num_tokens, text_hash = len(sequence.token_ids), sequence.token_hash
        for key, draft in list(kept.items()):
            base_length, base_hash, source = key
            if base_length > num_tokens:
                continue
            rest = _rest(draft, base_hash, num_tokens, text_hash)
            if rest is None:
                del kept[key]
            elif base_length >= made_for.get(source, 0):
                fitting[source], made_for[source] = rest, base_length
        return fitting

    def forget(self, sequence_id: int) -> None:
        """Drops the drafts of a sequence."""
        self._kept.pop(sequence_id, None)

    def clear(self) -> None:
        """Drops all drafts."""
        self._kept.clear()


def _rest(draft: Draft, base_hash: int, num_tokens: int, text_hash: int) -> Draft | None:
    """Returns what of a draft follows a text of such length and hash; None if the text went another way.

    A draft that comes a step late is as good as ever in its later tokens, if the earlier ones were right: so
    a drafter slower than a step still helps, and nothing waits for it.
    """
    num_past = num_tokens - draft.base_length
    if not num_past:
        return draft if base_hash == text_hash else None
    if num_past >= len(draft.token_ids):
        return None
    if token_hash.extend(base_hash, draft.token_ids[:num_past]) != text_hash:
        return None
    return replace(
        draft,
        base_length=num_tokens,
        token_ids=draft.token_ids[num_past:],
        confidences=draft.confidences[num_past:],
    )
