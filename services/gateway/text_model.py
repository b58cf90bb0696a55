"""What the model's directory says about text: tokenizer, template, end tokens and default parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from outrider.rpc.config import ConfigError
from services.gateway.model_files import read_json
from services.gateway.output.marks import Mark, marks_of
from services.gateway.template import ChatTemplate
from services.gateway.tokenizer import Tokenizer, load_tokenizer

# Ends a turn of Kimi's format, whatever the configuration says.
_TURN_END = "<|im_end|>"


@dataclass(frozen=True, kw_only=True)
class TextModel:
    """A model as the gateway knows it."""

    name: str
    directory: Path
    tokenizer: Tokenizer
    template: ChatTemplate
    marks: Mapping[int, Mark]
    end_token_ids: tuple[int, ...]
    chat_end_token_ids: tuple[int, ...]
    # Whether workers can compile grammars for it.
    takes_grammars: bool
    # Sampling parameters that requests leave unset.
    defaults: Mapping[str, float]

    @classmethod
    def load(cls, directory: Path, *, name: str) -> Self:
        """Reads a directory; raises ConfigError naming the file that is missing or wrong."""
        if not directory.is_dir():
            raise ConfigError(f"{directory}: no such directory")
        generation, config = (
            read_json(directory / "generation_config.json"),
            read_json(directory / "config.json"),
        )
        tokenizer = load_tokenizer(directory)
        end_token_ids = _end_token_ids(generation, config.get("text_config", {}), config)
        turn_end = tokenizer.added_token_id(_TURN_END)
        return cls(
            name=name,
            directory=directory,
            tokenizer=tokenizer,
            template=ChatTemplate.load(directory),
            marks=marks_of(tokenizer),
            end_token_ids=end_token_ids,
            chat_end_token_ids=tuple(dict.fromkeys((*end_token_ids, turn_end)))
            if turn_end is not None
            else end_token_ids,
            takes_grammars=(directory / "tokenizer.json").exists(),
            defaults=_sampling_defaults(directory / "generation_config.json", generation),
        )


def _end_token_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns eos_token_id of the first file that has it: a number or a list."""
    found = next((c["eos_token_id"] for c in configs if c.get("eos_token_id") is not None), [])
    return tuple(found) if isinstance(found, list) else (int(found),)


def _sampling_defaults(path: Path, generation: Mapping[str, Any]) -> dict[str, float]:
    """Returns what generation_config.json sets; `do_sample: false` means the likeliest token."""
    kinds = {"temperature": float, "top_p": float, "top_k": int, "repetition_penalty": float}
    try:
        values = {
            name: kind(generation[name]) for name, kind in kinds.items() if generation.get(name) is not None
        }
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return values if generation.get("do_sample", True) else values | {"temperature": 0.0}
