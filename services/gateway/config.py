"""The gateway's settings, from OUTRIDER_GATEWAY_*."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from outrider.params import SamplingParams
from outrider.rpc.channel import ChannelTls
from outrider.rpc.config import load_config
from outrider.rpc.errors import InvalidArgument
from outrider.rpc.server import Listen
from outrider.v1 import sampling_pb2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may ask for."""

    max_prompt_tokens: int = 262_144
    max_resumed_tokens: int = 262_144
    # Turns of a conversation, and tool calls in them.
    max_messages: int = 16_384
    max_stop_strings: int = 16
    max_stop_string_length: int = 256
    max_bad_words: int = 256
    max_bad_word_length: int = 256
    max_tools: int = 128
    # Counts the schemas of a request's tools too.
    max_grammar_bytes: int = 131_072
    grammar_seconds: float = 5.0
    # Requests in flight over all clients; more are refused.
    max_num_requests: int = 1024

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name} must be positive, is {value:g}")


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a gateway."""

    schedulers: tuple[str, ...]
    model_dir: Path
    # Empty: the directory's name.
    model_name: str = ""
    # A JSON list of {"sha256", "tenant", "weight", "max_draft_tokens"}. Unset: no keys are asked for.
    keys_file: Path | None = None
    # What requests leave unset. Unset here too: the model's generation_config.json.
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    # How long a lost scheduler may take to come back before its requests are told to resume.
    grace_seconds: float = 30.0
    # A scheduler that has sent nothing for so long is lost: it sends its load several times as often.
    scheduler_silence_seconds: float = 2.0
    # How long a scheduler's group may be away before its sequences move to a pair that has one.
    group_absence_seconds: float = 1.0
    # Blocks of each pair's prefix cache that are remembered; about 150 bytes each.
    max_num_known_blocks: int = 65_536
    # How long a client may read nothing of what there is before it is cancelled.
    unread_seconds: float = 60.0
    # Whether the arguments of tool calls must fit their schemas.
    constrain_tools: bool = True
    limits: Limits = field(default_factory=Limits)
    listen: Listen = field(default_factory=lambda: Listen(grpc_port=50051, http_port=8080))
    tls: ChannelTls = field(default_factory=ChannelTls)

    def __post_init__(self) -> None:
        if not self.schedulers:
            raise ValueError("schedulers must name at least one HOST:PORT")
        for name in (
            "grace_seconds",
            "scheduler_silence_seconds",
            "group_absence_seconds",
            "max_num_known_blocks",
            "unread_seconds",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, is {getattr(self, name):g}")
        try:
            SamplingParams.from_proto(sampling_pb2.SamplingParams(), self.sampling_defaults).check(
                vocab_size=1
            )
        except InvalidArgument as error:
            raise ValueError(f"{error.field.removeprefix('sampling.')} {error.message}") from None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Reads the environment; raises ConfigError naming the variable that is wrong."""
        return load_config(cls, "OUTRIDER_GATEWAY", environ)

    @property
    def name(self) -> str:
        """Returns the model's name."""
        return self.model_name or self.model_dir.resolve().name

    @property
    def sampling_defaults(self) -> dict[str, float]:
        """Returns the sampling parameters that are set here."""
        values = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return {name: value for name, value in values.items() if value is not None}
