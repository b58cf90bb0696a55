from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Load(_message.Message):
    __slots__ = ("num_requests_running", "num_requests_waiting", "kv_cache_usage", "num_blocks", "num_free_blocks", "num_steps", "num_output_tokens", "num_draft_tokens", "num_accepted_tokens", "num_prefix_cache_queries", "num_prefix_cache_hits", "num_preemptions", "drafter_connected", "step_ms", "scheduling_ms", "has_group", "num_groups", "num_ranks", "exchange_ms", "placement_version", "num_waiting_tokens", "rows_per_second")
    NUM_REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_USAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFIX_CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFIX_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_MS_FIELD_NUMBER: _ClassVar[int]
    HAS_GROUP_FIELD_NUMBER: _ClassVar[int]
    NUM_GROUPS_FIELD_NUMBER: _ClassVar[int]
    NUM_RANKS_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_MS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    num_requests_running: int
    num_requests_waiting: int
    kv_cache_usage: float
    num_blocks: int
    num_free_blocks: int
    num_steps: int
    num_output_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_prefix_cache_queries: int
    num_prefix_cache_hits: int
    num_preemptions: int
    drafter_connected: bool
    step_ms: float
    scheduling_ms: float
    has_group: bool
    num_groups: int
    num_ranks: int
    exchange_ms: float
    placement_version: int
    num_waiting_tokens: int
    rows_per_second: float
    def __init__(self, num_requests_running: _Optional[int] = ..., num_requests_waiting: _Optional[int] = ..., kv_cache_usage: _Optional[float] = ..., num_blocks: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., num_prefix_cache_queries: _Optional[int] = ..., num_prefix_cache_hits: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., drafter_connected: bool = ..., step_ms: _Optional[float] = ..., scheduling_ms: _Optional[float] = ..., has_group: bool = ..., num_groups: _Optional[int] = ..., num_ranks: _Optional[int] = ..., exchange_ms: _Optional[float] = ..., placement_version: _Optional[int] = ..., num_waiting_tokens: _Optional[int] = ..., rows_per_second: _Optional[float] = ...) -> None: ...
