import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from outrider.v1 import load_pb2 as _load_pb2
from outrider.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_THINKING: _ClassVar[Phase]
    PHASE_ANSWER: _ClassVar[Phase]
    PHASE_TOOL_ARGUMENTS: _ClassVar[Phase]

class SequenceFinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEQUENCE_FINISH_REASON_UNSPECIFIED: _ClassVar[SequenceFinishReason]
    SEQUENCE_FINISH_REASON_STOP: _ClassVar[SequenceFinishReason]
    SEQUENCE_FINISH_REASON_LENGTH: _ClassVar[SequenceFinishReason]
PHASE_UNSPECIFIED: Phase
PHASE_THINKING: Phase
PHASE_ANSWER: Phase
PHASE_TOOL_ARGUMENTS: Phase
SEQUENCE_FINISH_REASON_UNSPECIFIED: SequenceFinishReason
SEQUENCE_FINISH_REASON_STOP: SequenceFinishReason
SEQUENCE_FINISH_REASON_LENGTH: SequenceFinishReason

class PhaseMark(_message.Message):
    __slots__ = ("token_id", "phase")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    phase: Phase
    def __init__(self, token_id: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("sequence_id", "request_id", "tenant", "tenant_weight", "priority", "prompt_token_ids", "output_token_ids", "params", "speculation", "timeout", "traceparent", "phase_marks", "was_accepted")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TENANT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PHASE_MARKS_FIELD_NUMBER: _ClassVar[int]
    WAS_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    request_id: str
    tenant: str
    tenant_weight: float
    priority: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    params: _sampling_pb2.SequenceParams
    speculation: _sampling_pb2.Speculation
    timeout: _duration_pb2.Duration
    traceparent: str
    phase_marks: _containers.RepeatedCompositeFieldContainer[PhaseMark]
    was_accepted: bool
    def __init__(self, sequence_id: _Optional[int] = ..., request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., tenant_weight: _Optional[float] = ..., priority: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., output_token_ids: _Optional[_Iterable[int]] = ..., params: _Optional[_Union[_sampling_pb2.SequenceParams, _Mapping]] = ..., speculation: _Optional[_Union[_sampling_pb2.Speculation, _Mapping]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., traceparent: _Optional[str] = ..., phase_marks: _Optional[_Iterable[_Union[PhaseMark, _Mapping]]] = ..., was_accepted: bool = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("sequence_id",)
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    def __init__(self, sequence_id: _Optional[int] = ...) -> None: ...

class ServeRequest(_message.Message):
    __slots__ = ("submits", "aborts")
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    submits: _containers.RepeatedCompositeFieldContainer[Submit]
    aborts: _containers.RepeatedCompositeFieldContainer[Abort]
    def __init__(self, submits: _Optional[_Iterable[_Union[Submit, _Mapping]]] = ..., aborts: _Optional[_Iterable[_Union[Abort, _Mapping]]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("model", "numerics_id", "max_model_len", "vocab_size", "block_size")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    model: str
    numerics_id: str
    max_model_len: int
    vocab_size: int
    block_size: int
    def __init__(self, model: _Optional[str] = ..., numerics_id: _Optional[str] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., block_size: _Optional[int] = ...) -> None: ...

class SequenceStarted(_message.Message):
    __slots__ = ("num_cached_tokens",)
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_cached_tokens: int
    def __init__(self, num_cached_tokens: _Optional[int] = ...) -> None: ...

class SequenceSourceCounts(_message.Message):
    __slots__ = ("source", "num_draft_tokens", "num_accepted_tokens")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    source: str
    num_draft_tokens: int
    num_accepted_tokens: int
    def __init__(self, source: _Optional[str] = ..., num_draft_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ...) -> None: ...

class SequenceFinished(_message.Message):
    __slots__ = ("reason", "num_steps", "sources", "num_preemptions")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    reason: SequenceFinishReason
    num_steps: int
    sources: _containers.RepeatedCompositeFieldContainer[SequenceSourceCounts]
    num_preemptions: int
    def __init__(self, reason: _Optional[_Union[SequenceFinishReason, str]] = ..., num_steps: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[SequenceSourceCounts, _Mapping]]] = ..., num_preemptions: _Optional[int] = ...) -> None: ...

class SequenceError(_message.Message):
    __slots__ = ("code", "message", "field", "retry_delay")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    field: str
    retry_delay: _duration_pb2.Duration
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SequenceEvent(_message.Message):
    __slots__ = ("sequence_id", "offset", "token_ids", "logprobs", "started", "finished", "error", "num_steps", "sources")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    offset: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprobs]
    started: SequenceStarted
    finished: SequenceFinished
    error: SequenceError
    num_steps: int
    sources: _containers.RepeatedCompositeFieldContainer[SequenceSourceCounts]
    def __init__(self, sequence_id: _Optional[int] = ..., offset: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprobs, _Mapping]]] = ..., started: _Optional[_Union[SequenceStarted, _Mapping]] = ..., finished: _Optional[_Union[SequenceFinished, _Mapping]] = ..., error: _Optional[_Union[SequenceError, _Mapping]] = ..., num_steps: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[SequenceSourceCounts, _Mapping]]] = ...) -> None: ...

class ServeResponse(_message.Message):
    __slots__ = ("opened", "events", "load")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    events: _containers.RepeatedCompositeFieldContainer[SequenceEvent]
    load: _load_pb2.Load
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., events: _Optional[_Iterable[_Union[SequenceEvent, _Mapping]]] = ..., load: _Optional[_Union[_load_pb2.Load, _Mapping]] = ...) -> None: ...
