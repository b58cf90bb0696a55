"""From what a client asks to what a scheduler is told and how its output is to be read."""

import asyncio
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from outrider.params import Grammar, SequenceParams
from outrider.rpc.errors import InvalidArgument, NotFound, Unimplemented
from services.gateway.auth import Tenant
from services.gateway.bounds import MAX_REQUEST_ID_LENGTH, check_resumed, check_token_ids
from services.gateway.config import Limits
from services.gateway.grammar import after_thinking, tool_call_grammar, tool_rule
from services.gateway.grammar_checker import GrammarChecker
from services.gateway.messages import ChatRequest, GenerateRequest, Options
from services.gateway.outlook import Group
from services.gateway.output.marks import THINKING_MARKS, Mark
from services.gateway.output.parser import OutputFormat
from services.gateway.output.reasoning import opens_thinking
from services.gateway.params import (
    resolve_reasoning_limit,
    resolve_sampling,
    resolve_seed,
    tokenize_bad_words,
)
from services.gateway.plain_text import PlainText
from services.gateway.prefixes import block_hashes
from services.gateway.submission import Submission
from services.gateway.text_model import TextModel

# A rendered prompt longer than this per token allowed is refused before it is tokenized.
_MAX_CHARACTERS_PER_TOKEN = 32


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks, until when, and when it was received, on the clock of time.monotonic."""

    tenant: Tenant
    received: float
    deadline: float | None
    traceparent: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a client asks, resolved against the model and what the groups that may run it are."""

    submission: Submission
    output_format: OutputFormat
    group: Group
    received: float


@dataclass(frozen=True, kw_only=True)
class _Prompt:
    """A tokenized prompt and what follows from its kind; `field` names it in errors."""

    token_ids: list[int]
    field: str
    end_token_ids: tuple[int, ...]
    marks: Mapping[int, Mark]
    tool_schemas: Mapping[str, Mapping[str, Any]]
    num_earlier_calls: int = 0


class RequestReader:
    """Resolves requests for one model."""

    def __init__(
        self,
        model: TextModel,
        *,
        defaults: Mapping[str, float],
        limits: Limits,
        checker: GrammarChecker,
        constrain_tools: bool,
    ) -> None:
        self._model = model
        self._defaults = {**model.defaults, **defaults}
        self._limits = limits
        self._checker = checker
        self._ids = {mark: token_id for token_id, mark in model.marks.items()}
        self._think_end_id = self._ids.get(Mark.THINK_END)
        self._constrains_tools = constrain_tools and model.takes_grammars and len(self._ids) == len(Mark)

    def check_model(self, name: str) -> None:
        """Raises NotFound for a name that is not the model's."""
        if name not in ("", self._model.name):
            raise NotFound(f"no model {name!r} here; there is {self._model.name!r}", field="model")

    async def read_generate(self, asked: GenerateRequest, caller: Caller, group: Group) -> Request:
        """Resolves a prompt to continue: all of its output is text."""
        if isinstance(asked.prompt, str):
            self._check_length(asked.prompt, "text")
            token_ids = await asyncio.to_thread(
                self._model.tokenizer.encode, asked.prompt, add_special_tokens=True
            )
        else:
            token_ids = list(asked.prompt)
            check_token_ids(token_ids, group.vocab_size, "token_ids")
        prompt = _Prompt(
            token_ids=token_ids,
            field="text" if isinstance(asked.prompt, str) else "token_ids",
            end_token_ids=self._model.end_token_ids,
            marks={},
            tool_schemas={},
        )
        return await self._read(prompt, asked.options, caller, group)

    async def read_chat(self, asked: ChatRequest, caller: Caller, group: Group) -> Request:
        """Resolves a conversation: its output is thinking, an answer and tool calls."""
        self._model.template.check_options(asked.template_options, thinking=asked.thinking)
        prompt = _Prompt(
            # Rendering and tokenizing a long conversation takes too long for the event loop.
            token_ids=await asyncio.to_thread(self._tokenize_chat, asked),
            field="messages",
            end_token_ids=self._model.chat_end_token_ids,
            marks=self._model.marks,
            tool_schemas={tool.name: tool.parameters for tool in asked.tools},
            num_earlier_calls=asked.num_earlier_calls,
        )
        return await self._read(prompt, asked.options, caller, group)

    def _tokenize_chat(self, asked: ChatRequest) -> list[int]:
        tools, options = [tool.for_template() for tool in asked.tools], dict(asked.template_options)
        spellings = self._model.tokenizer.spellings | {mark.value for mark in self._ids}
        plain = PlainText(spellings, [asked.messages, tools, options])
        text = self._model.template.render(
            [plain.protect(turn, except_for=_allowed(turn)) for turn in asked.messages],
            tools=plain.protect(tools),
            thinking=asked.thinking is not False,
            options=plain.protect(options),
            max_num_characters=self._limits.max_prompt_tokens * _MAX_CHARACTERS_PER_TOKEN,
        )
        return [id_ for piece in plain.split(text) for id_ in self._model.tokenizer.encode(piece)]

    def _check_length(self, text: str, field: str) -> None:
        limit = self._limits.max_prompt_tokens * _MAX_CHARACTERS_PER_TOKEN
        if len(text) > limit:
            raise InvalidArgument(f"longer than {limit} characters", field=field)

    async def _read(self, prompt: _Prompt, options: Options, caller: Caller, group: Group) -> Request:
        thinking = opens_thinking(prompt.token_ids, self._model.tokenizer, self._model.marks)
        params = await self._read_params(prompt, options, caller, group, thinking=thinking)
        sampling = params.sampling
        resumed = options.resume.token_ids if options.resume else ()
        check_resumed(resumed, vocab_size=group.vocab_size, max_tokens=sampling.max_tokens or 0)
        return Request(
            submission=Submission(
                request_id=_request_id(options),
                tenant=caller.tenant,
                priority=options.priority,
                prompt_token_ids=tuple(prompt.token_ids),
                resumed_token_ids=resumed,
                numerics_id=options.resume.numerics_id if options.resume else "",
                block_size=group.block_size,
                block_hashes=await asyncio.to_thread(
                    block_hashes, caller.tenant.name, [*prompt.token_ids, *resumed], group.block_size
                ),
                params=params,
                speculation=options.speculation,
                marks=self._model.marks,
                deadline=caller.deadline,
                traceparent=caller.traceparent,
            ),
            output_format=OutputFormat(
                tokenizer=self._model.tokenizer,
                marks=prompt.marks,
                thinking=thinking and bool(prompt.marks),
                stop_strings=options.stop,
                stop_token_ids=frozenset(sampling.stop_token_ids),
                tool_schemas=prompt.tool_schemas,
                num_earlier_calls=prompt.num_earlier_calls,
            ),
            group=group,
            received=caller.received,
        )

    async def _read_params(
        self, prompt: _Prompt, options: Options, caller: Caller, group: Group, *, thinking: bool
    ) -> SequenceParams:
        sampling = resolve_sampling(
            options.sampling,
            defaults=self._defaults,
            bad_words=await asyncio.to_thread(tokenize_bad_words, options.bad_words, self._model.tokenizer)
            if options.bad_words
            else (),
            end_token_ids=prompt.end_token_ids,
            num_tokens_left=self._num_tokens_left(prompt, group),
            vocab_size=group.vocab_size,
        )
        return SequenceParams(
            sampling=sampling,
            seed=resolve_seed(options),
            choice=options.choice,
            reasoning_limit=resolve_reasoning_limit(
                sampling, thinking=thinking, think_end_id=self._think_end_id
            ),
            grammar=await self._read_grammar(
                options.grammar, prompt, caller.tenant.name, thinking=thinking and bool(prompt.marks)
            ),
        )

    def _num_tokens_left(self, prompt: _Prompt, group: Group) -> int:
        limit = min(self._limits.max_prompt_tokens, group.max_model_len - 1)
        num_tokens = len(prompt.token_ids)
        if not 0 < num_tokens <= limit:
            raise InvalidArgument(f"has {num_tokens} tokens; there must be 1 to {limit}", field=prompt.field)
        return group.max_model_len - num_tokens

    async def _read_grammar(
        self, grammar: Grammar | None, prompt: _Prompt, tenant: str, *, thinking: bool
    ) -> Grammar | None:
        """Returns what the whole output must conform to: the client's grammar goes before the tools'."""
        if grammar is None:
            return await self._read_tools(prompt, tenant, thinking=thinking)
        if not self._model.takes_grammars:
            raise Unimplemented("the model's tokenizer takes no grammars", field="options.grammar")
        field = f"options.grammar.{grammar.language}"
        if thinking and self._think_end_id is not None:
            # What the grammar itself lacks shows in this one too.
            grammar = after_thinking(grammar, think_end_id=self._think_end_id)
        await self._checker.check({field: grammar}, tenant=tenant)
        return grammar

    async def _read_tools(self, prompt: _Prompt, tenant: str, *, thinking: bool) -> Grammar | None:
        if not (prompt.tool_schemas and self._constrains_tools):
            return None
        schemas = {
            f"tools[{i}].parameters_json_schema": Grammar(language="lark", text=f"start: {tool_rule(schema)}")
            for i, schema in enumerate(prompt.tool_schemas.values())
        }
        grammar = tool_call_grammar(prompt.tool_schemas, self._ids, thinking=thinking)
        await self._checker.check({**schemas, "tools": grammar}, tenant=tenant)
        return grammar


def _allowed(turn: Mapping[str, Any]) -> Collection[str]:
    """Some clients leave the thinking in an assistant's turn, and templates look for its marks there."""
    return [mark.value for mark in THINKING_MARKS] if turn["role"] == "assistant" else []


def _request_id(options: Options) -> str:
    resumed = options.resume.request_id if options.resume else ""
    return resumed[:MAX_REQUEST_ID_LENGTH] or options.request_id or uuid.uuid4().hex
