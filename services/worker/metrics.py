"""What the worker counts."""

from prometheus_client import Counter, Gauge, Histogram

_STEP_BUCKETS = (0.5e-3, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10)
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
num_computed_tokens = Counter("outrider_worker_computed_tokens", "Rows computed: new tokens and drafts.")
num_output_tokens = Counter("outrider_worker_output_tokens", "Tokens chosen and kept.")
num_feature_bytes = Counter("outrider_worker_feature_bytes", "Hidden vectors sent for the draft head.")
num_failed_sequences = Counter("outrider_worker_failed_sequences", "Sequences that could not go on.")
num_sequences = Gauge("outrider_worker_num_sequences", "Sequences that the group knows.")
