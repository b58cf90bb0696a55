from outrider.v1 import features_pb2 as _features_pb2
from outrider.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_SOURCE_UNSPECIFIED: _ClassVar[DraftSource]
    DRAFT_SOURCE_SUFFIX: _ClassVar[DraftSource]
    DRAFT_SOURCE_MODEL: _ClassVar[DraftSource]
    DRAFT_SOURCE_HEAD: _ClassVar[DraftSource]
    DRAFT_SOURCE_GRAMMAR: _ClassVar[DraftSource]
DRAFT_SOURCE_UNSPECIFIED: DraftSource
DRAFT_SOURCE_SUFFIX: DraftSource
DRAFT_SOURCE_MODEL: DraftSource
DRAFT_SOURCE_HEAD: DraftSource
DRAFT_SOURCE_GRAMMAR: DraftSource

class DraftSequenceOpened(_message.Message):
    __slots__ = ("sequence_id", "tenant", "token_ids", "num_prompt_tokens", "params", "traceparent")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    tenant: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: int
    params: _sampling_pb2.SequenceParams
    traceparent: str
    def __init__(self, sequence_id: _Optional[int] = ..., tenant: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[int] = ..., params: _Optional[_Union[_sampling_pb2.SequenceParams, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class DraftTokensCommitted(_message.Message):
    __slots__ = ("sequence_id", "offset", "token_ids")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    offset: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequence_id: _Optional[int] = ..., offset: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DraftSequenceClosed(_message.Message):
    __slots__ = ("sequence_id", "finished")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    finished: bool
    def __init__(self, sequence_id: _Optional[int] = ..., finished: bool = ...) -> None: ...

class DraftWanted(_message.Message):
    __slots__ = ("sequence_id", "base_length", "max_num_tokens", "sources")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    base_length: int
    max_num_tokens: int
    sources: _containers.RepeatedScalarFieldContainer[DraftSource]
    def __init__(self, sequence_id: _Optional[int] = ..., base_length: _Optional[int] = ..., max_num_tokens: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[DraftSource, str]]] = ...) -> None: ...

class DraftVerifying(_message.Message):
    __slots__ = ("sequence_id", "base_length", "token_ids", "max_num_tokens", "sources")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    base_length: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_num_tokens: int
    sources: _containers.RepeatedScalarFieldContainer[DraftSource]
    def __init__(self, sequence_id: _Optional[int] = ..., base_length: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., max_num_tokens: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[DraftSource, str]]] = ...) -> None: ...

class ProposeRequest(_message.Message):
    __slots__ = ("opened", "committed", "closed", "features", "wanted", "verifying", "request_id", "ahead_us")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    VERIFYING_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    AHEAD_US_FIELD_NUMBER: _ClassVar[int]
    opened: _containers.RepeatedCompositeFieldContainer[DraftSequenceOpened]
    committed: _containers.RepeatedCompositeFieldContainer[DraftTokensCommitted]
    closed: _containers.RepeatedCompositeFieldContainer[DraftSequenceClosed]
    features: _containers.RepeatedCompositeFieldContainer[_features_pb2.SequenceFeatures]
    wanted: _containers.RepeatedCompositeFieldContainer[DraftWanted]
    verifying: _containers.RepeatedCompositeFieldContainer[DraftVerifying]
    request_id: int
    ahead_us: int
    def __init__(self, opened: _Optional[_Iterable[_Union[DraftSequenceOpened, _Mapping]]] = ..., committed: _Optional[_Iterable[_Union[DraftTokensCommitted, _Mapping]]] = ..., closed: _Optional[_Iterable[_Union[DraftSequenceClosed, _Mapping]]] = ..., features: _Optional[_Iterable[_Union[_features_pb2.SequenceFeatures, _Mapping]]] = ..., wanted: _Optional[_Iterable[_Union[DraftWanted, _Mapping]]] = ..., verifying: _Optional[_Iterable[_Union[DraftVerifying, _Mapping]]] = ..., request_id: _Optional[int] = ..., ahead_us: _Optional[int] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("sequence_id", "base_length", "base_hash", "token_ids", "confidences", "source", "match_length")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BASE_HASH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MATCH_LENGTH_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    base_length: int
    base_hash: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    confidences: _containers.RepeatedScalarFieldContainer[float]
    source: DraftSource
    match_length: int
    def __init__(self, sequence_id: _Optional[int] = ..., base_length: _Optional[int] = ..., base_hash: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., confidences: _Optional[_Iterable[float]] = ..., source: _Optional[_Union[DraftSource, str]] = ..., match_length: _Optional[int] = ...) -> None: ...

class DraftSourceTime(_message.Message):
    __slots__ = ("source", "compute_us", "num_drafts")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    source: DraftSource
    compute_us: int
    num_drafts: int
    def __init__(self, source: _Optional[_Union[DraftSource, str]] = ..., compute_us: _Optional[int] = ..., num_drafts: _Optional[int] = ...) -> None: ...

class ProposeResponse(_message.Message):
    __slots__ = ("drafts", "request_id", "times", "sources", "complete")
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    drafts: _containers.RepeatedCompositeFieldContainer[Draft]
    request_id: int
    times: _containers.RepeatedCompositeFieldContainer[DraftSourceTime]
    sources: _containers.RepeatedScalarFieldContainer[DraftSource]
    complete: bool
    def __init__(self, drafts: _Optional[_Iterable[_Union[Draft, _Mapping]]] = ..., request_id: _Optional[int] = ..., times: _Optional[_Iterable[_Union[DraftSourceTime, _Mapping]]] = ..., sources: _Optional[_Iterable[_Union[DraftSource, str]]] = ..., complete: bool = ...) -> None: ...
