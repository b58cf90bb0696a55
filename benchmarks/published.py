"""The published configurations of the models that the kernels are made for."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.model.config import LatentAttentionConfig, ModelConfig, MoeConfig, parse_config
from outrider.model.fields import Fields

DATA = Path(__file__).parent / "data"
MODELS = {"kimi-k2.5": DATA / "kimi_k2_5.json", "deepseek-v3": DATA / "deepseek_v3.json"}


def raw_config(model: str) -> Mapping[str, Any]:
    """Returns the config.json of a model, its sizes and its storage."""
    return json.loads(MODELS[model].read_text())


def read_config(model: str, **sizes: int) -> ModelConfig:
    """Returns the network of a model; `sizes` replace fields of its config."""
    config = dict(raw_config(model))
    if "text_config" in config:
        config["text_config"] |= sizes
    return parse_config(Fields(path=MODELS[model], values=config | sizes))


def latent(config: ModelConfig) -> LatentAttentionConfig:
    """Returns the attention, which in these models is latent."""
    assert isinstance(config.attention, LatentAttentionConfig)
    return config.attention


def experts(config: ModelConfig) -> MoeConfig:
    """Returns the experts, which these models have."""
    assert config.moe is not None
    return config.moe
