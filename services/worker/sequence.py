"""The group's side of a sequence: how its tokens are chosen, where its keys and values lie, its trace."""

from dataclasses import dataclass, field

from opentelemetry import trace

from outrider.model.sampling import GrammarCompiler, GrammarError, GrammarState, SamplingState
from outrider.params import Grammar, SequenceParams
from outrider.rpc.errors import InvalidArgument, OutriderError, Unimplemented
from outrider.rpc.telemetry import context_from, tracer
from services.worker.messages import GroupFacts, SequenceStart


@dataclass(slots=True)
class Sequence:
    """A sequence from its start to its release. One that failed stays until then, without tokens."""

    span: trace.Span
    state: SamplingState | None
    failure: OutriderError | None = None
    num_known_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)
    num_steps: int = 0

    @property
    def num_tokens(self) -> int:
        """How many of its tokens are known."""
        return self.num_known_tokens if self.state is None else self.state.num_tokens

    def fail(self, error: OutriderError) -> None:
        """Notes why it cannot go on, and forgets its tokens."""
        self.num_known_tokens, self.state, self.failure = self.num_tokens, None, error
        self.span.set_status(trace.StatusCode.ERROR, error.code.name)

    def end(self) -> None:
        """Ends its trace."""
        if self.state is not None:
            self.span.set_attribute("outrider.num_output_tokens", self.state.num_output_tokens)
        self.span.set_attribute("outrider.num_steps", self.num_steps)
        self.span.end()


def start_sequence(start: SequenceStart, facts: GroupFacts, compiler: GrammarCompiler | None) -> Sequence:
    """Returns the sequence, failed if its parameters are wrong: the others of the batch go on."""
    span = tracer(__name__).start_span("sequence", context=context_from(start.traceparent))
    span.set_attribute("outrider.num_prompt_tokens", start.num_prompt_tokens)
    sequence = Sequence(span, state=None, num_known_tokens=len(start.token_ids))
    try:
        params = SequenceParams.from_proto(start.params)
        _check(params, facts.vocab_size)
        sequence.state = SamplingState(
            params,
            start.token_ids,
            start.num_prompt_tokens,
            max_model_len=facts.max_model_len,
            grammar=_compile(params.grammar, params.sampling.stop_token_ids, compiler),
        )
    except OutriderError as error:
        sequence.fail(error)
    return sequence


def _check(params: SequenceParams, vocab_size: int) -> None:
    params.sampling.check(vocab_size=vocab_size)
    limit = params.reasoning_limit
    if limit is not None and limit.end_token_id >= vocab_size:
        raise InvalidArgument(
            f"token id {limit.end_token_id} is not below the vocabulary size {vocab_size}",
            field="reasoning_limit.end_token_id",
        )


def _compile(
    grammar: Grammar | None, stop_token_ids: tuple[int, ...], compiler: GrammarCompiler | None
) -> GrammarState | None:
    if grammar is None:
        return None
    if compiler is None:
        raise Unimplemented("grammars need a tokenizer.json, and this model has none", field="grammar")
    try:
        return compiler.compile(grammar, stop_token_ids)
    except GrammarError as error:
        raise InvalidArgument(f"the grammar {error}", field=f"grammar.{grammar.language}") from None
