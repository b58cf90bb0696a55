"""Which linears of a checkpoint are stored in int4 or FP8, read from its quantization_config."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from outrider.model.fields import Fields

INT4_GROUP = 32
FP8_BLOCK = 128
# Multimodal checkpoints put it before the names of their language model, in tensors and patterns alike.
LANGUAGE_PREFIX = "language_model."


class Storage(StrEnum):
    """How the weight of a linear is stored."""

    PLAIN = "plain"
    INT4 = "int4"
    FP8 = "fp8"


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """The storage of those linears that are among the targets and not among the exceptions.

    Both hold names of modules, the class name "Linear", or, behind "re:", patterns of beginnings.
    """

    storage: Storage
    targets: tuple[str, ...]
    exceptions: tuple[str, ...]

    def storage_of(self, linear: str) -> Storage:
        """The storage of a linear by its canonical name."""
        covered = matches(linear, self.targets) and not matches(linear, self.exceptions)
        return self.storage if covered else Storage.PLAIN


def matches(linear: str, entries: Sequence[str]) -> bool:
    """Whether an entry names the linear, what it is in, or how its name begins."""
    return any(
        re.match(entry[3:], spelling) is not None
        if entry.startswith("re:")
        else entry == "Linear" or f".{entry}." in f".{spelling}."
        for spelling in (linear, LANGUAGE_PREFIX + linear)
        for entry in entries
    )


def parse_quantization(config: Fields) -> Quantization | None:
    """What a config.json says, at its top, in its text_config, or in both; None if nothing.

    Raises ConfigError for a form that is not read.
    """
    text = config.section("text_config") if config.has("text_config") else config
    owner = text if text.has("quantization_config") else config
    if not owner.has("quantization_config"):
        return None
    fields = owner.section("quantization_config")
    method = fields.text("quant_method")
    if method == "compressed-tensors":
        return parse_compressed_tensors(fields)
    if method == "fp8":
        return parse_fp8(fields)
    raise fields.error("quant_method", f"{method!r} is not supported, only compressed-tensors and fp8")


def parse_compressed_tensors(fields: Fields) -> Quantization:
    fields.must_state("format", "pack-quantized")
    fields.must_be("quantization_status", "compressed")
    fields.must_be("kv_cache_scheme", None)
    fields.must_be("sparsity_config", {})
    fields.must_be("transform_config", {})
    groups = fields.section("config_groups")
    if len(groups.values) != 1:
        raise fields.error("config_groups", f"{len(groups.values)} groups are not supported, only one")
    group = groups.section(next(iter(groups.values)))
    group.must_be("format", "pack-quantized")
    group.must_be("input_activations", None)
    group.must_be("output_activations", None)
    weights = group.section("weights")
    weights.must_state("num_bits", 4)
    weights.must_state("strategy", "group")
    weights.must_state("group_size", INT4_GROUP)
    weights.must_state("symmetric", True)
    weights.must_be("type", "int")
    weights.must_be("dynamic", False)
    weights.must_be("actorder", None)
    return Quantization(
        storage=Storage.INT4, targets=patterns(group, "targets"), exceptions=patterns(fields, "ignore")
    )


def parse_fp8(fields: Fields) -> Quantization:
    """DeepSeek's form. Its scale_fmt, if any, is a matter of activations: the weights' factors are fp32."""
    fields.must_state("weight_block_size", [FP8_BLOCK, FP8_BLOCK])
    fields.must_be("fmt", "e4m3")
    fields.must_be("activation_scheme", "dynamic")
    exceptions = patterns(fields, "modules_to_not_convert")
    return Quantization(storage=Storage.FP8, targets=("Linear",), exceptions=exceptions)


def patterns(fields: Fields, name: str) -> tuple[str, ...]:
    """The entries of a list, of which each pattern can be compiled."""
    entries = fields.texts(name)
    for entry in entries:
        try:
            re.compile(entry.removeprefix("re:") if entry.startswith("re:") else "")
        except re.error as error:
            raise fields.error(name, f"{entry!r} is not a pattern: {error}") from None
    return entries
