from outrider.v1 import features_pb2 as _features_pb2
from outrider.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenSession(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SequenceStart(_message.Message):
    __slots__ = ("token_ids", "num_prompt_tokens", "params", "traceparent")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: int
    params: _sampling_pb2.SequenceParams
    traceparent: str
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[int] = ..., params: _Optional[_Union[_sampling_pb2.SequenceParams, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class SequenceStep(_message.Message):
    __slots__ = ("sequence_id", "start", "num_computed_tokens", "num_new_tokens", "draft_token_ids", "new_block_ids", "wants_features")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NEW_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    WANTS_FEATURES_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    start: SequenceStart
    num_computed_tokens: int
    num_new_tokens: int
    draft_token_ids: _containers.RepeatedScalarFieldContainer[int]
    new_block_ids: _containers.RepeatedScalarFieldContainer[int]
    wants_features: bool
    def __init__(self, sequence_id: _Optional[int] = ..., start: _Optional[_Union[SequenceStart, _Mapping]] = ..., num_computed_tokens: _Optional[int] = ..., num_new_tokens: _Optional[int] = ..., draft_token_ids: _Optional[_Iterable[int]] = ..., new_block_ids: _Optional[_Iterable[int]] = ..., wants_features: bool = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("step_id", "sequences", "released_sequence_ids")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    RELEASED_SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceStep]
    released_sequence_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, step_id: _Optional[int] = ..., sequences: _Optional[_Iterable[_Union[SequenceStep, _Mapping]]] = ..., released_sequence_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("session", "epoch", "open", "batch")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    open: OpenSession
    batch: Batch
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., open: _Optional[_Union[OpenSession, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("model", "numerics_id", "max_model_len", "vocab_size", "num_blocks", "block_size", "max_num_batched_tokens", "num_experts", "num_experts_per_token", "num_moe_layers", "feature_size", "device", "num_ranks")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    NUM_EXPERTS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_MOE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_SIZE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NUM_RANKS_FIELD_NUMBER: _ClassVar[int]
    model: str
    numerics_id: str
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    max_num_batched_tokens: int
    num_experts: int
    num_experts_per_token: int
    num_moe_layers: int
    feature_size: int
    device: str
    num_ranks: int
    def __init__(self, model: _Optional[str] = ..., numerics_id: _Optional[str] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., num_experts: _Optional[int] = ..., num_experts_per_token: _Optional[int] = ..., num_moe_layers: _Optional[int] = ..., feature_size: _Optional[int] = ..., device: _Optional[str] = ..., num_ranks: _Optional[int] = ...) -> None: ...

class OutputTokens(_message.Message):
    __slots__ = ("token_ids", "num_accepted_tokens", "logprobs", "forced_token_ids", "grammar_complete")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FORCED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_accepted_tokens: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprobs]
    forced_token_ids: _containers.RepeatedScalarFieldContainer[int]
    grammar_complete: bool
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., num_accepted_tokens: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprobs, _Mapping]]] = ..., forced_token_ids: _Optional[_Iterable[int]] = ..., grammar_complete: bool = ...) -> None: ...

class SequenceFailure(_message.Message):
    __slots__ = ("code", "message", "field")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    field: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class SequenceOutput(_message.Message):
    __slots__ = ("sequence_id", "tokens", "failure")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    tokens: OutputTokens
    failure: SequenceFailure
    def __init__(self, sequence_id: _Optional[int] = ..., tokens: _Optional[_Union[OutputTokens, _Mapping]] = ..., failure: _Optional[_Union[SequenceFailure, _Mapping]] = ...) -> None: ...

class BatchOutput(_message.Message):
    __slots__ = ("step_id", "outputs", "forward_us", "sample_us", "num_distinct_experts", "features", "exchange_us", "placement_version")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_US_FIELD_NUMBER: _ClassVar[int]
    NUM_DISTINCT_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_US_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    outputs: _containers.RepeatedCompositeFieldContainer[SequenceOutput]
    forward_us: int
    sample_us: int
    num_distinct_experts: _containers.RepeatedScalarFieldContainer[int]
    features: _containers.RepeatedCompositeFieldContainer[_features_pb2.SequenceFeatures]
    exchange_us: int
    placement_version: int
    def __init__(self, step_id: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[SequenceOutput, _Mapping]]] = ..., forward_us: _Optional[int] = ..., sample_us: _Optional[int] = ..., num_distinct_experts: _Optional[_Iterable[int]] = ..., features: _Optional[_Iterable[_Union[_features_pb2.SequenceFeatures, _Mapping]]] = ..., exchange_us: _Optional[int] = ..., placement_version: _Optional[int] = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("session", "epoch", "opened", "output")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    opened: SessionOpened
    output: BatchOutput
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., opened: _Optional[_Union[SessionOpened, _Mapping]] = ..., output: _Optional[_Union[BatchOutput, _Mapping]] = ...) -> None: ...
