"""The shape of a draft head, read from the config.json of a directory in the published EAGLE-3 form."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider.model.config import LatentAttentionConfig, ModelConfig, parse_config, read_json
from outrider.model.errors import ConfigError
from outrider.model.fields import Fields
from outrider.model.weights import (
    Shape,
    feed_forward_tensors,
    grouped_attention_tensors,
    latent_attention_tensors,
)

NUM_DEFAULT_LAYERS = 3
# What exporters may say of variants of the head, and the value that this code computes.
SUPPORTED = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "norm_before_fc": False,
}


# What is made of the embedding and the feature side by side.
WIDE = {
    f"self_attn.{name}.weight" for name in ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa")
}


@dataclass(frozen=True, kw_only=True)
class DraftHeadConfig:
    """A head of one dense decoder layer (EAGLE-3, arXiv 2503.01840), of either kind of attention."""

    path: Path
    network: ModelConfig  # its one layer; the vocabulary is the target's
    target_hidden_size: int
    draft_vocab_size: int
    named_layers: tuple[int, ...] | None  # None: by the published rule
    normalizes_residual: bool

    @classmethod
    def from_directory(cls, directory: Path) -> "DraftHeadConfig":
        """Read a directory's config.json; raises ConfigError for a head that this code cannot run."""
        fields = read_json(directory / "config.json")
        network = parse_config(fields)
        fields.must_be("num_hidden_layers", 1)
        fields.must_be("fc_norm", False)
        fields.must_be("quantization_config", None)
        for name, value in SUPPORTED.items():
            eagle_config(fields).must_be(name, value)
        return cls(
            path=fields.path,
            network=network,
            target_hidden_size=fields.integer("target_hidden_size", default=network.hidden_size),
            draft_vocab_size=fields.integer("draft_vocab_size", default=network.vocab_size),
            named_layers=named_layers(fields),
            normalizes_residual=fields.flag("norm_before_residual", default=False),
        )

    @property
    def feature_width(self) -> int:
        """Elements of what `fc` makes a feature of."""
        return (len(self.named_layers) if self.named_layers else NUM_DEFAULT_LAYERS) * self.target_hidden_size

    def layers_in(self, target: ModelConfig) -> tuple[int, ...]:
        """The layers whose inputs are tapped; raises ConfigError if the head was made for another target."""
        self._must_equal("vocab_size", self.network.vocab_size, target.vocab_size)
        self._must_equal("target_hidden_size", self.target_hidden_size, target.hidden_size)
        L = target.num_layers
        layers = self.named_layers or (2, L // 2, L - 3)
        if list(layers) != sorted(set(layers)) or layers[0] < 0 or layers[-1] > L:
            problem = f"{list(layers)} are not rising layers of the {L} of the target"
            raise ConfigError(self.path, "eagle_aux_hidden_state_layer_ids", problem)
        return layers

    def _must_equal(self, field: str, own: int, targets: int) -> None:
        if own != targets:
            raise ConfigError(self.path, field, f"is {own}, and the target's is {targets}")


def eagle_config(fields: Fields) -> Fields:
    has_section = fields.has("eagle_config")
    return fields.section("eagle_config") if has_section else Fields(path=fields.path, values={})


def named_layers(fields: Fields) -> tuple[int, ...] | None:
    """Layers by the number of their input.

    Exporters agree on a name and not on a meaning: at the top level the ids are those of inputs (as vLLM
    reads them), within eagle_config those of outputs (as SGLang and SpecForge do).
    """
    name = "eagle_aux_hidden_state_layer_ids"
    if fields.has(name):
        return fields.token_ids(name)
    section = eagle_config(fields)
    return tuple(layer + 1 for layer in section.token_ids(name)) if section.has(name) else None


def head_tensors(config: DraftHeadConfig) -> dict[str, Shape]:
    """Every tensor that a head must have."""
    D = config.network.hidden_size
    tensors = {"fc.weight": (D, config.feature_width), "norm.weight": (D,)}
    return tensors | {f"midlayer.{name}": shape for name, shape in layer_tensors(config, D)}


def layer_tensors(config: DraftHeadConfig, D: int) -> Iterator[tuple[str, Shape]]:
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        yield f"{norm}.weight", (D,)
    attention = config.network.attention
    is_latent = isinstance(attention, LatentAttentionConfig)
    tensors = latent_attention_tensors(attention, D) if is_latent else grouped_attention_tensors(attention, D)
    for name, shape in tensors:
        yield name, (shape[0], 2 * D) if name in WIDE else shape
    yield from feed_forward_tensors("mlp.", D, config.network.dense_hidden_size)


def optional_tensors(config: DraftHeadConfig) -> dict[str, Shape]:
    """Tensors that a head may have; those of the target, or the identity, stand in."""
    D, V = config.network.hidden_size, config.network.vocab_size
    return {
        "embed_tokens.weight": (V, D),
        "lm_head.weight": (config.draft_vocab_size, D),
        "d2t": (config.draft_vocab_size,),
        "t2d": (V,),
    }
