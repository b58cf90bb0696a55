"""Builds the vocabulary: every byte, the words of the task templates, and Kimi's special tokens by name.

A word is one token exactly if it is in the vocabulary; everything else falls to bytes, because the merge
list is empty and `ignore_merges` takes known words whole. So digits, and the letters of words to be spelt,
are tokens of their own.

    python -m training.tokenizer
"""

from __future__ import annotations

import json
from collections import Counter
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from training.chat import MODEL_DIR
from training.documents import SYSTEMS
from training.tasks import Problem, draw

PATTERN = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s"
# Kimi's order; the list's index is the distance from [BOS], unnamed ones are reserved.
SPECIAL_BLOCK = 32
SPECIALS = {
    0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>", 12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>", 15: "<|tool_call_end|>", 17: "<|im_middle|>", 18: "<|media_begin|>",
    19: "<|media_content|>", 20: "<|media_end|>", 21: "<|media_pad|>", 22: "<think>", 23: "</think>",
    30: "[UNK]", 31: "[PAD]",
}  # fmt: skip
# Decoding that skips special tokens keeps these: parsers of text look for them.
KEPT_IN_TEXT = {11, 12, 13, 14, 15, 22, 23}
NUM_DRAWN = 40_000
MIN_COUNT = 8
VOCAB_SIZE = 800


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Single digits, words and runs of punctuation with the space before them, then bytes."""
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def template_text(problem: Problem) -> str:
    """A problem's text without the word that it spells, which must stay bytes."""
    calls = " ".join(f"{call.thinking} functions.{call.name}: {call.arguments}" for call in problem.calls)
    tools = json.dumps(problem.tools) if problem.tools else ""
    text = f"{problem.question}\n{problem.thinking}\n{problem.answer}\n{calls}\n{tools}"
    if problem.task in ("counting", "reversing", "length", "talk"):
        spelt = problem.key.split(" ")[-1].lower()
        for form in (spelt, spelt[::-1], spelt.capitalize()):
            text = text.replace(form, "x") if form else text
    return text


def is_single(piece: str) -> bool:
    """Whether a piece is one byte, or one letter after a space: both are spelt in bytes."""
    return len(piece) == 1 or (len(piece) == 2 and piece[0] == "Ġ" and piece[1].isalpha())


def words() -> list[str]:
    """The pieces that templates use again and again, most frequent first; single letters stay bytes."""
    rng, splitter, counts = Random(0), pre_tokenizer(), Counter()
    for _ in range(NUM_DRAWN):
        counts.update(
            piece for piece, _ in splitter.pre_tokenize_str(template_text(draw(rng, held_out=False)))
        )
    for text in (*SYSTEMS, "user\nassistant\nsystem\ntool\ntool_declare\n## Return of"):
        counts.update({piece: NUM_DRAWN for piece, _ in splitter.pre_tokenize_str(text)})
    kept = [(piece, n) for piece, n in counts.items() if n >= MIN_COUNT and not is_single(piece)]
    return [piece for piece, _ in sorted(kept, key=lambda item: (-item[1], item[0]))]


def build() -> Tokenizer:
    """The tokenizer; its last 32 ids are the special tokens."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + words()
    assert len(pieces) >= VOCAB_SIZE - SPECIAL_BLOCK
    vocab = {piece: i for i, piece in enumerate(pieces[: VOCAB_SIZE - SPECIAL_BLOCK])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    first = len(vocab)
    for i in range(SPECIAL_BLOCK):
        name = SPECIALS.get(i, f"<|reserved_token_{first + i}|>")
        tokenizer.add_tokens([AddedToken(name, special=i not in KEPT_IN_TEXT, normalized=False)])
    return tokenizer


def config(tokenizer: Tokenizer) -> dict:
    """What transformers reads beside the vocabulary."""
    decoder = {
        str(tokenizer.token_to_id(token.content)): {
            "content": token.content,
            "special": token.special,
            "normalized": False,
        }
        for token in tokenizer.get_added_tokens_decoder().values()
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": decoder,
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "chat_template": (MODEL_DIR / "chat_template.jinja").read_text(),
    }


def main() -> None:
    """Writes tokenizer.json and tokenizer_config.json into the model's directory."""
    tokenizer = build()
    tokenizer.save(str(MODEL_DIR / "tokenizer.json"))
    (MODEL_DIR / "tokenizer_config.json").write_text(
        json.dumps(config(tokenizer), indent=2, ensure_ascii=False) + "\n"
    )
    print(f"{tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
