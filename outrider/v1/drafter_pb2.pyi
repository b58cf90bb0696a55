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
    __slots__ = ("sequence_id", "base_length", "max_num_tokens")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    base_length: int
    max_num_tokens: int
    def __init__(self, sequence_id: _Optional[int] = ..., base_length: _Optional[int] = ..., max_num_tokens: _Optional[int] = ...) -> None: ...

class ProposeRequest(_message.Message):
    __slots__ = ("opened", "committed", "closed", "wanted")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    opened: _containers.RepeatedCompositeFieldContainer[DraftSequenceOpened]
    committed: _containers.RepeatedCompositeFieldContainer[DraftTokensCommitted]
    closed: _containers.RepeatedCompositeFieldContainer[DraftSequenceClosed]
    wanted: _containers.RepeatedCompositeFieldContainer[DraftWanted]
    def __init__(self, opened: _Optional[_Iterable[_Union[DraftSequenceOpened, _Mapping]]] = ..., committed: _Optional[_Iterable[_Union[DraftTokensCommitted, _Mapping]]] = ..., closed: _Optional[_Iterable[_Union[DraftSequenceClosed, _Mapping]]] = ..., wanted: _Optional[_Iterable[_Union[DraftWanted, _Mapping]]] = ...) -> None: ...

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

class ProposeResponse(_message.Message):
    __slots__ = ("drafts",)
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    drafts: _containers.RepeatedCompositeFieldContainer[Draft]
    def __init__(self, drafts: _Optional[_Iterable[_Union[Draft, _Mapping]]] = ...) -> None: ...
