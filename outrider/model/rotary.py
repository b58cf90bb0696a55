"""Rotary position embedding: frequencies, their stretching to long contexts, and the angles of a step."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.kernels.interface import Angles
from outrider.model.fields import Fields


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """YaRN (arXiv 2309.00071): slow frequencies are interpolated, fast ones kept, a ramp between."""

    factor: float
    original_max_num_positions: int
    beta_fast: float
    beta_slow: float
    mscale: float  # zero: not given
    mscale_all_dim: float  # zero: not given

    @property
    def softmax_factor(self) -> float:
        """What the softmax scale is multiplied with (DeepSeek's m squared)."""
        return self._magnitude(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    @property
    def amplitude(self) -> float:
        """What cosines and sines are multiplied with."""
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    def stretch(self, frequencies: Tensor, theta: float) -> Tensor:
        width = 2 * len(frequencies)
        low = max(math.floor(self._dimension(self.beta_fast, width, theta)), 0)
        high = min(math.ceil(self._dimension(self.beta_slow, width, theta)), width - 1)
        steps = torch.arange(len(frequencies), dtype=torch.float32)
        ramp = ((steps - low) / max(high - low, 0.001)).clamp(0, 1)
        return frequencies / self.factor * ramp + frequencies * (1 - ramp)

    def _magnitude(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def _dimension(self, num_rotations: float, width: int, theta: float) -> float:
        """The dimension that turns num_rotations times within the original context."""
        wavelength = self.original_max_num_positions / (num_rotations * 2 * math.pi)
        return width * math.log(wavelength) / (2 * math.log(theta))


@dataclass(frozen=True, kw_only=True)
class Llama3Stretch:
    """Llama 3.1's rule: long wavelengths divided by the factor, short ones kept, a ramp between."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_max_num_positions: int

    softmax_factor = 1.0
    amplitude = 1.0

    def stretch(self, frequencies: Tensor, theta: float) -> Tensor:
        turns = self.original_max_num_positions * frequencies / (2 * math.pi)
        ramp = (turns - self.low_frequency_factor) / (self.high_frequency_factor - self.low_frequency_factor)
        ramp = ramp.clamp(0, 1)
        return frequencies / self.factor * (1 - ramp) + frequencies * ramp


def read_stretch(scaling: Fields) -> Yarn | Llama3Stretch | None:
    """The stretching that a rope_scaling names; raises ConfigError for one that is not known."""
    scaling.must_be("partial_rotary_factor", 1.0)
    kind = scaling.text("rope_type", default=scaling.text("type", default="default"))
    if kind == "default":
        return None
    if kind == "yarn":
        return Yarn(
            factor=scaling.number("factor"),
            original_max_num_positions=scaling.integer("original_max_position_embeddings"),
            beta_fast=scaling.number("beta_fast", default=32.0),
            beta_slow=scaling.number("beta_slow", default=1.0),
            mscale=scaling.number_or_zero("mscale"),
            mscale_all_dim=scaling.number_or_zero("mscale_all_dim"),
        )
    if kind == "llama3":
        return Llama3Stretch(
            factor=scaling.number("factor"),
            low_frequency_factor=scaling.number("low_freq_factor"),
            high_frequency_factor=scaling.number("high_freq_factor"),
            original_max_num_positions=scaling.integer("original_max_position_embeddings"),
        )
    raise scaling.error("rope_type", f"{kind!r} is not supported, only default, yarn and llama3")


@dataclass(frozen=True, kw_only=True)
class RotaryConfig:
    """How positions turn into angles; `interleaved` pairs neighbours (0, 1), else halves (0, P / 2)."""

    width: int
    theta: float
    interleaved: bool
    stretch: Yarn | Llama3Stretch | None

    @property
    def softmax_factor(self) -> float:
        return self.stretch.softmax_factor if self.stretch else 1.0


class Rotary:
    """Computes the angles of a step from its positions, in fp32 as the models were trained."""

    def __init__(self, config: RotaryConfig, device: torch.device) -> None:
        frequencies = config.theta ** -(torch.arange(0, config.width, 2, dtype=torch.float32) / config.width)
        if config.stretch:
            frequencies = config.stretch.stretch(frequencies, config.theta)
        self._frequencies = frequencies.to(device)
        self._amplitude = config.stretch.amplitude if config.stretch else 1.0
        self._interleaved = config.interleaved

    def angles(self, positions: Tensor) -> Angles:
        turns = positions.float()[:, None] * self._frequencies
        return Angles(
            cos=turns.cos() * self._amplitude,
            sin=turns.sin() * self._amplitude,
            interleaved=self._interleaved,
        )
