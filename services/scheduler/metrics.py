"""What Prometheus is told, under the names that dashboards know from elsewhere."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider.v1 import load_pb2
from services.scheduler.counters import Counters

_STEP_BUCKETS = (0.5e-3, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5)
_OWN_BUCKETS = (50e-6, 100e-6, 150e-6, 250e-6, 500e-6, 1e-3, 1.5e-3, 2.5e-3, 5e-3, 10e-3)
_EXPERT_BUCKETS = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384)

step_seconds = Histogram(
    "outrider_step_seconds", "Time of a step, from request to answer.", buckets=_STEP_BUCKETS
)
scheduling_seconds = Histogram(
    "outrider_scheduling_seconds", "Time that the scheduler itself spends on a step.", buckets=_OWN_BUCKETS
)
distinct_experts = Histogram(
    "outrider_distinct_experts",
    "Distinct experts woken per step, mean of the layers.",
    buckets=_EXPERT_BUCKETS,
)

_GAUGES = {
    "num_requests_running": "Sequences that run in the batches.",
    "num_requests_waiting": "Sequences that are admitted and wait.",
    "has_group": "Whether there is a group of workers now.",
    "num_ranks": "Ranks that hold the model together.",
    "placement_version": "The placement of experts that the last step ran under.",
}
_COUNTERS = {
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found there.",
    "num_preemptions": "Sequences set back to be computed again.",
    "num_steps": "Steps run.",
    "num_output_tokens": "Tokens put out.",
    "num_groups": "Groups and incarnations of a group so far.",
}
_DRAFT_COUNTERS = {
    "spec_decode_verification_seconds": "Time of steps, by the part of their rows that were drafts.",
    "num_draft_hits": "Sequences whose draft was there before it was asked for, over all steps.",
    "num_draft_questions": "Sequences that a draft was asked for, over all steps.",
    "draft_wait_seconds": "Time that steps waited for drafts.",
    "draft_wait_saved_seconds": "Time that answers take, of steps that had all drafts: the most they saved.",
    "num_unusable_drafts": "Drafts out of bounds, or with confidences that are none.",
}
_LOAD_NAMES = {
    "prefix_cache_queries": "num_prefix_cache_queries",
    "prefix_cache_hits": "num_prefix_cache_hits",
}


def observe_step(seconds: float, num_distinct_experts: Sequence[int]) -> None:
    """Notes the time of a step and the experts it woke."""
    step_seconds.observe(seconds)
    if num_distinct_experts:
        distinct_experts.observe(sum(num_distinct_experts) / len(num_distinct_experts))


class SchedulerCollector(Collector):
    """Reports the scheduler's load, counters and what its controller has learnt when asked."""

    def __init__(
        self,
        load: Callable[[], load_pb2.Load],
        counters: Counters,
        figures: Callable[[], Mapping[str, float]],
    ) -> None:
        self._load = load
        self._counters = counters
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yields every gauge and counter."""
        load = self._load()
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"outrider_{name}", text, getattr(load, name))
        yield GaugeMetricFamily(
            "outrider_kv_cache_usage_perc", "Fraction of the blocks held.", load.kv_cache_usage
        )
        yield GaugeMetricFamily(
            "outrider_exchange_seconds",
            "Mean time of late that a step spends exchanging parts between the ranks.",
            load.exchange_ms / 1000,
        )
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"outrider_{name}", text, getattr(load, _LOAD_NAMES.get(name, name)))
        for name, text in _DRAFT_COUNTERS.items():
            value = getattr(self._counters, name.removeprefix("spec_decode_"))
            yield CounterMetricFamily(f"outrider_{name}", text, value)
        yield from _drafts(self._counters)
        yield from _drafts_by_source(self._counters)
        for name, value in self._figures().items():
            yield GaugeMetricFamily(f"outrider_controller_{name}", "What the controller has learnt.", value)


def _drafts(counters: Counters) -> Iterator[Metric]:
    prefix = "outrider_spec_decode_num"
    yield CounterMetricFamily(f"{prefix}_drafts", "Drafts verified.", counters.num_drafts)
    yield CounterMetricFamily(f"{prefix}_draft_tokens", "Draft tokens verified.", counters.num_draft_tokens)
    yield CounterMetricFamily(
        f"{prefix}_accepted_tokens", "Draft tokens found right.", counters.num_accepted_tokens
    )
    positions = CounterMetricFamily(
        f"{prefix}_accepted_tokens_per_pos", "Draft tokens found right, by place.", labels=["position"]
    )
    for position, count in enumerate(counters.num_accepted_tokens_by_position):
        positions.add_metric([str(position)], count)
    yield positions


def _drafts_by_source(counters: Counters) -> Iterator[Metric]:
    prefix = "outrider_spec_decode_source"
    lengths = CounterMetricFamily(
        f"{prefix}_drafts",
        "Drafts by source and by how much of them was verified.",
        labels=["source", "length"],
    )
    accepted = CounterMetricFamily(
        f"{prefix}_accepted_tokens",
        "Draft tokens found right, by source and place.",
        labels=["source", "position"],
    )
    for source, counts in counters.drafts_by_source.items():
        for length, count in sorted(counts.num_drafts_by_length.items()):
            lengths.add_metric([source, str(length)], count)
        for position, count in enumerate(counts.num_accepted_tokens_by_position):
            accepted.add_metric([source, str(position)], count)
    yield from (lengths, accepted)
