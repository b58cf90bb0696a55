"""What the drafter counts."""

from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest
from operator import itemgetter

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

# Tenants that have a time series of their own; all others share one.
MAX_NUM_TENANT_LABELS = 20
OTHER_TENANTS = "(other)"

num_sequences = Gauge("outrider_drafter_num_sequences", "Sequences that drafts may be wanted for.")
num_drafts = Counter(
    "outrider_drafter_num_drafts", "Drafts made, empty ones and those made ahead too.", ["source"]
)
num_empty_drafts = Counter("outrider_drafter_num_empty_drafts", "Drafts made that hold no token.", ["source"])
num_ahead_drafts = Counter(
    "outrider_drafter_num_ahead_drafts", "Drafts sent for outcomes of a step in flight.", ["source"]
)
num_draft_tokens = Counter("outrider_drafter_num_draft_tokens", "Tokens guessed.", ["source"])
compute_seconds = Counter("outrider_drafter_compute_seconds", "Time spent making drafts.", ["source"])
num_source_failures = Counter("outrider_drafter_num_source_failures", "Calls that failed.", ["source"])
num_dropped_sequences = Counter(
    "outrider_drafter_num_dropped_sequences", "Sequences given up early, by reason.", ["reason"]
)
num_wrong_features = Counter(
    "outrider_drafter_num_wrong_features", "Hidden vectors refused for their size or place."
)
num_unlearnt_texts = Counter(
    "outrider_drafter_num_unlearnt_texts", "Finished texts not learnt, as too many waited already."
)
num_forgotten_tokens = Counter(
    "outrider_drafter_num_forgotten_tokens", "Tokens of the memory that had to make room."
)
guess_seconds = Histogram(
    "outrider_drafter_guess_seconds",
    "Time to make one draft, of those made together.",
    ["source"],
    buckets=(20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3),
)


class MemoryCollector(Collector):
    """Reports the bytes that the memories hold, when asked."""

    def __init__(self, bytes_by_tenant: Callable[[], Mapping[str, int]]) -> None:
        self._bytes_by_tenant = bytes_by_tenant

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields one series for each of the largest tenants, and one for all others."""
        held = self._bytes_by_tenant()
        largest = dict(nlargest(MAX_NUM_TENANT_LABELS, held.items(), key=itemgetter(1)))
        family = GaugeMetricFamily(
            "outrider_drafter_memory_bytes", "Bytes of text memory held, by tenant.", labels=["tenant"]
        )
        for tenant, num_bytes in largest.items():
            family.add_metric([tenant], num_bytes)
        family.add_metric([OTHER_TENANTS], sum(held.values()) - sum(largest.values()))
        yield family
