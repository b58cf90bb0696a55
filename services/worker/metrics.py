"""What the worker counts."""

from prometheus_client import Counter, Gauge, Histogram

_STEP_BUCKETS = (0.5e-3, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_EXCHANGE_BUCKETS = (0.05e-3, 0.1e-3, 0.2e-3, *_STEP_BUCKETS)
_EXPERT_BUCKETS = (4, 8, 16, 32, 64, 128, 192, 256, 320, 384)

step_seconds = Histogram(
    "outrider_worker_step_seconds", "Time of a step from its batch to its answer.", buckets=_STEP_BUCKETS
)
forward_seconds = Histogram(
    "outrider_worker_forward_seconds",
    "Time of the forward pass; where a GPU computes it, of handing it over.",
    buckets=_STEP_BUCKETS,
)
sample_seconds = Histogram(
    "outrider_worker_sample_seconds",
    "Time of choosing tokens, and of waiting for what a GPU computes.",
    buckets=_STEP_BUCKETS,
)
feature_seconds = Histogram(
    "outrider_worker_feature_seconds",
    "Time of making hidden vectors for the draft head, in steps that make any.",
    buckets=_STEP_BUCKETS,
)
distinct_experts = Histogram(
    "outrider_worker_distinct_experts_per_step",
    "Distinct routed experts that a step woke, averaged over layers.",
    buckets=_EXPERT_BUCKETS,
)
broadcast_seconds = Histogram(
    "outrider_worker_broadcast_seconds", "Time of sending a step's input to the other ranks.",
    buckets=_EXCHANGE_BUCKETS,
)  # fmt: skip
exchange_seconds = Histogram(
    "outrider_worker_exchange_seconds",
    "Time that a step spends on bringing parts of layers together, and on waiting for other ranks.",
    buckets=_EXCHANGE_BUCKETS,
)
num_exchanges = Counter("outrider_worker_exchanges", "Times that parts of a layer were brought together.")
num_exchanged_bytes = Counter(
    "outrider_worker_exchanged_bytes", "Parts of layers taken from each other rank."
)
num_computed_tokens = Counter("outrider_worker_computed_tokens", "Rows computed: new tokens and drafts.")
num_output_tokens = Counter("outrider_worker_output_tokens", "Tokens chosen and kept.")
num_feature_bytes = Counter("outrider_worker_feature_bytes", "Hidden vectors sent for the draft head.")
num_failed_sequences = Counter("outrider_worker_failed_sequences", "Sequences that could not go on.")
num_sequences = Gauge("outrider_worker_num_sequences", "Sequences that the group knows.")
placement_imbalance = Gauge(
    "outrider_worker_placement_imbalance",
    "Load of each layer's busiest rank by that of the mean rank, over all layers; 1 is best.",
)
placing_seconds = Histogram(
    "outrider_worker_placing_seconds",
    "Time between two steps in which experts that were moved take effect.",
    buckets=_EXCHANGE_BUCKETS,
)
num_moved_experts = Counter("outrider_worker_moved_experts", "Experts put into slots of ranks.")
num_moved_bytes = Counter("outrider_worker_moved_bytes", "Weights of these experts as they are stored.")
