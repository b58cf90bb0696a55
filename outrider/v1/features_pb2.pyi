from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SequenceFeatures(_message.Message):
    __slots__ = ("sequence_id", "offset", "rows")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    offset: int
    rows: bytes
    def __init__(self, sequence_id: _Optional[int] = ..., offset: _Optional[int] = ..., rows: _Optional[bytes] = ...) -> None: ...
