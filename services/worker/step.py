"""One step: a batch becomes rows, one forward pass, and tokens chosen. Runs in the step thread alone."""

from collections.abc import Iterable
from dataclasses import replace
from time import perf_counter
from typing import Protocol

import torch

from outrider.model.batch import ForwardBatch, ForwardResult
from outrider.model.distributed_ranks import Traffic
from outrider.model.sampling import (
    Chain,
    GrammarCompiler,
    GrammarState,
    NoToken,
    Output,
    choose,
    outputs,
)
from outrider.model.transfer import to_host
from outrider.model.transformer import Transformer
from outrider.rpc.errors import Internal, InvalidArgument, OutriderError
from services.worker import metrics
from services.worker.features import FeatureTap
from services.worker.group.meeting import Group
from services.worker.loads import LoadWindow
from services.worker.messages import (
    Batch,
    BatchOutput,
    GroupFacts,
    SequenceFeatures,
    SequenceStep,
)
from services.worker.parts import Part, forward_batch, kept_rows
from services.worker.rebalance import Rebalancer
from services.worker.sequence import Sequence, start_sequence


class Runner(Protocol):
    """What computes batches on this rank, and has the others compute them."""

    model: Transformer

    def forward(self, batch: ForwardBatch) -> ForwardResult:
        """Computes a batch; what it gives is good until the next one."""
        ...


class Stepper:
    """What computes steps, and the sequences in its KV cache."""

    def __init__(
        self,
        runner: Runner,
        facts: GroupFacts,
        compiler: GrammarCompiler | None,
        tap: FeatureTap | None,
        group: Group | None = None,
        *,
        loads: LoadWindow | None = None,
        rebalancer: Rebalancer | None = None,
    ) -> None:
        """`loads` counts the experts that tokens choose, for `rebalancer`, which moves them."""
        self.facts = facts
        # Between steps the event loop reads it too, to check the next batch.
        self.sequences: dict[int, Sequence] = {}
        self._runner = runner
        self._compiler = compiler
        self._tap = tap
        self._group = group
        self._loads = loads
        self._rebalancer = rebalancer

    def end(self) -> None:
        """Has the other ranks of the group end; there are no more steps."""
        if self._rebalancer is not None:
            self._rebalancer.end()
        if self._group is not None:
            self._group.end()

    def forget_all(self) -> None:
        """Drops every sequence: their blocks are the next session's."""
        self._release(list(self.sequences))

    def warm_up(self, batches: Iterable[Batch]) -> None:
        """Runs batches of no consequence."""
        loads, self._loads = self._loads, None
        for batch in batches:
            self._answer(batch)
            self.forget_all()
        self._loads = loads

    def run(self, batch: Batch) -> BatchOutput:
        """Computes a batch that was checked, and chooses the tokens of the sequences that want any."""
        if self._rebalancer is not None:
            self._rebalancer.before_step()
        began = perf_counter()
        output = self._answer(batch)
        if self._rebalancer is not None:
            output = replace(output, placement_version=self._rebalancer.placement_version)
        if self._group is not None:
            output = _with_exchange(output, self._group.exchange.take_traffic())
        if batch.steps:
            metrics.step_seconds.observe(perf_counter() - began)
            _count(output, num_rows=sum(step.num_rows for step in batch.steps))
        return output

    @torch.inference_mode()
    def _answer(self, batch: Batch) -> BatchOutput:
        self._release(batch.released_sequence_ids)
        outcomes: dict[int, Output | OutriderError] = {}
        parts = []
        for step in batch.steps:
            sequence = self._take_up(step)
            if sequence.state is not None:
                parts.append(Part(step, sequence, sequence.state))
            elif sequence.failure is not None:
                outcomes[step.sequence_id] = sequence.failure
        choosing = [part for part in parts if part.chooses]
        return self._compute(batch.step_id, parts, choosing, outcomes)

    def _compute(
        self,
        step_id: int,
        parts: list[Part],
        choosing: list[Part],
        outcomes: dict[int, Output | OutriderError],
    ) -> BatchOutput:
        began = perf_counter()
        experts: list[int] = []
        tapped: torch.Tensor | None = None
        computed = began
        if parts:
            tap = self._tap.open((part.step, part.state.num_tokens) for part in parts) if self._tap else None
            rows = forward_batch(parts, self.facts.block_size, tap)
            result = self._runner.forward(rows)
            computed, tapped = perf_counter(), result.tapped
            chains = [Chain(part.state, part.step.draft_token_ids) for part in choosing]
            verified = choose(result.logits, chains, self._runner.model.kernels) if chains else None
            # Here alone the step waits for the device, unless it gives hidden vectors or log-probabilities.
            wanted = result.experts if self._loads is not None else None
            verified, num_distinct_experts, woken = to_host((verified, result.num_distinct_experts, wanted))
            if verified is not None:
                for part, outcome in zip(choosing, outputs(verified, result.logits, chains), strict=True):
                    outcomes[part.step.sequence_id] = _settle(part.sequence, outcome)
            if num_distinct_experts is not None:
                experts = num_distinct_experts.tolist()
            if self._loads is not None and woken is not None:
                self._loads.add(woken.numpy(), kept_rows(parts, outcomes))
        chosen = perf_counter()
        return BatchOutput(
            step_id=step_id,
            outcomes=outcomes,
            forward_seconds=computed - began,
            sample_seconds=chosen - computed,
            num_distinct_experts=experts,
            features=self._read_features(parts, outcomes, tapped),
        )

    def _read_features(
        self, parts: list[Part], outcomes: dict[int, Output | OutriderError], tapped: torch.Tensor | None
    ) -> list[SequenceFeatures]:
        if self._tap is None or tapped is None:
            return []
        kept = {part.step.sequence_id: part.num_kept_tokens(outcomes) for part in parts}
        with metrics.feature_seconds.time():
            features = self._tap.read(tapped, kept)
        metrics.num_feature_bytes.inc(sum(len(item.rows) for item in features))
        return features

    def _take_up(self, step: SequenceStep) -> Sequence:
        if step.start is not None:
            self.sequences[step.sequence_id] = start_sequence(step.start, self.facts, self._compiler)
        sequence = self.sequences[step.sequence_id]
        sequence.block_ids.extend(step.new_block_ids)
        sequence.num_steps += 1
        return sequence

    def _release(self, sequence_ids: list[int]) -> None:
        for sequence_id in sequence_ids:
            # The scheduler may give up a sequence that never ran.
            sequence = self.sequences.pop(sequence_id, None)
            if sequence is not None:
                sequence.end()


def _settle(sequence: Sequence, outcome: Output | NoToken) -> Output | OutriderError:
    """Returns the outcome as the scheduler sees it; a sequence without a token has failed."""
    if isinstance(outcome, Output):
        return outcome
    error: OutriderError = Internal("the model's logits are not finite")
    if outcome.finite:
        error = _no_token(sequence.state.grammar if sequence.state is not None else None)
    sequence.fail(error)
    return error


def _no_token(grammar: GrammarState | None) -> InvalidArgument:
    if grammar is not None and grammar.is_too_costly:
        return InvalidArgument("costs more at one token than is allowed", field="grammar")
    return InvalidArgument(
        "the constraints on the output leave no token to choose",
        field="sampling" if grammar is None else "grammar",
    )


def _with_exchange(output: BatchOutput, traffic: Traffic) -> BatchOutput:
    metrics.exchange_seconds.observe(traffic.seconds)
    metrics.num_exchanges.inc(traffic.num_calls)
    metrics.num_exchanged_bytes.inc(traffic.num_bytes)
    return replace(output, exchange_seconds=traffic.seconds)


def _count(output: BatchOutput, *, num_rows: int) -> None:
    metrics.forward_seconds.observe(output.forward_seconds)
    metrics.sample_seconds.observe(output.sample_seconds)
    metrics.num_computed_tokens.inc(num_rows)
    outcomes = output.outcomes.values()
    metrics.num_output_tokens.inc(sum(len(item.token_ids) for item in outcomes if isinstance(item, Output)))
    metrics.num_failed_sequences.inc(sum(isinstance(item, OutriderError) for item in outcomes))
    if output.num_distinct_experts:
        metrics.distinct_experts.observe(sum(output.num_distinct_experts) / len(output.num_distinct_experts))
