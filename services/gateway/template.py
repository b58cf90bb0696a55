"""The chat template of the model, rendered in jinja2's sandbox within a time and a size."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.rpc.config import ConfigError
from outrider.rpc.errors import InvalidArgument
from services.gateway.model_files import read_json, read_text

# Variables that are not options: the gateway sets them itself. It leaves out the clock, by which equal
# questions would have other answers tomorrow: a template that shows a date can take it as an option.
_OWN = frozenset(
    {"messages", "tools", "add_generation_prompt", "thinking", "enable_thinking", "strftime_now"}
)
_MAX_SECONDS = 5.0


class _Refused(Exception):
    """The template called raise_exception."""


class ChatTemplate:
    """A compiled template. `special_tokens` are variables such as bos_token."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises jinja2.TemplateError for a template that does not compile."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        self._template = environment.from_string(source)
        self._special_tokens = dict(special_tokens)
        self._names = jinja2.meta.find_undeclared_variables(environment.parse(source))
        self._options = self._names - set(environment.globals) - _OWN - set(special_tokens)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Reads chat_template.jinja, else tokenizer_config.json; raises ConfigError naming the wrong one."""
        config_path, path = directory / "tokenizer_config.json", directory / "chat_template.jinja"
        config = read_json(config_path)
        source = read_text(path) if path.exists() else _default_template(config.get("chat_template"))
        path = path if path.exists() else config_path
        if source is None:
            raise ConfigError(
                f"{directory}: no chat_template.jinja, and no chat_template in {config_path.name}"
            )
        try:
            return cls(source, _special_tokens(config))
        except jinja2.TemplateError as error:
            raise ConfigError(f"{path}: {error}") from None

    def check_options(self, options: Mapping[str, Any], *, thinking: bool | None) -> None:
        """Raises InvalidArgument for an option that the template does not use."""
        for name in options:
            if name not in self._options:
                known = ", ".join(sorted(self._options)) or "none"
                raise InvalidArgument(
                    f"the model's template has no option {name!r}; it has {known}",
                    field=f"template_options.{name}",
                )
        if thinking is False and not self._names & {"thinking", "enable_thinking"}:
            raise InvalidArgument("the model's template cannot turn the thinking off", field="thinking")

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]],
        thinking: bool,
        options: Mapping[str, Any],
        max_num_characters: int,
    ) -> str:
        """Returns the prompt. Raises InvalidArgument if the template refuses or takes too much."""
        variables = {
            **self._special_tokens,
            **options,
            "messages": messages,
            "tools": tools or None,
            "add_generation_prompt": True,
            "thinking": thinking,
            "enable_thinking": thinking,
        }
        deadline, parts, length = time.monotonic() + _MAX_SECONDS, [], 0
        try:
            for part in self._template.generate(variables):
                parts.append(part)
                length += len(part)
                if length > max_num_characters:
                    raise InvalidArgument(f"longer than {max_num_characters} characters", field="messages")
                if time.monotonic() > deadline:
                    raise InvalidArgument(f"took longer than {_MAX_SECONDS:g} s to render", field="messages")
        # What a template does with messages of another shape than it expects is any of Python's errors.
        except (_Refused, jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise InvalidArgument(f"the model's template refuses them: {error}", field="messages") from None
        return "".join(parts)


def _default_template(value: Any) -> str | None:
    """A configuration holds one template, or a list of named ones."""
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        return named.get("default")
    return value if isinstance(value, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns bos_token and the like, written as text or as an object with `content`."""
    values = {name: value for name, value in config.items() if name.endswith("_token")}
    contents = {name: v.get("content") if isinstance(v, dict) else v for name, v in values.items()}
    return {name: content for name, content in contents.items() if isinstance(content, str)}


def _to_json(value: Any, **options: Any) -> str:
    """Templates expect JSON as json.dumps writes it; jinja2's own filter escapes it for HTML."""
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _raise_exception(message: str) -> None:
    raise _Refused(message)
