"""A tenant's memory as a file: tokens, and how useful each text is.

    magic, version, digest of what follows (BLAKE2b, 32 bytes)
    whether shared by all, when it was written, length of the tenant's name, the name, number of texts
    for each text: number of tokens, of context tokens, usefulness, when it was used last, tokens, repeats

All numbers are little-endian, times in seconds. A file is readable by its owner alone, its name tells nothing
of the tenant's, and it replaces the one before in one step.
"""

import os
import stat
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Self

from outrider_native.suffix import StoredText

MAGIC = b"outrider suffix memory\n\x00"
VERSION = 1
SUFFIX = ".snapshot"
# Of the tenant with the file's hash: a file that is being written, one that was refused, and the mark of who
# erases the tenant, which a drafter that runs honours and removes.
UNFINISHED = ".unfinished"
REFUSED = ".refused"
ERASE = ".erase"
# A memory takes some twenty times as many bytes as its file.
LARGEST_FILE = 1 << 30
_TOKENS_PER_CHUNK = 32  # a byte of repeats for each
_START = struct.Struct("<24sI32s")
_OWNER = struct.Struct("<BQI")
_COUNT = struct.Struct("<I")
_TEXT = struct.Struct("<IIdI")


class BadSnapshot(Exception):
    """A file is no snapshot that can be trusted; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What is kept in one tenant's name, or in that of all where they share it."""

    owner: str
    is_shared: bool
    written_at: int
    texts: Sequence[StoredText]

    def to_bytes(self) -> bytes:
        """Returns the content of a file."""
        owner = self.owner.encode()
        body = bytearray(_OWNER.pack(self.is_shared, self.written_at, len(owner)) + owner)
        body += _COUNT.pack(len(self.texts))
        for text in self.texts:
            num_tokens = len(text.token_ids) // 4
            body += _TEXT.pack(num_tokens, text.num_context_tokens, text.usefulness, text.used_at)
            body += _in_file_order(text.token_ids) + text.num_repeats
        return _START.pack(MAGIC, VERSION, _digest(body)) + body

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Reads the content of a file. Raises BadSnapshot."""
        if len(content) < _START.size:
            raise BadSnapshot("it is too short")
        magic, version, digest = _START.unpack_from(content)
        if magic != MAGIC:
            raise BadSnapshot("it is no snapshot of a suffix memory")
        if version != VERSION:
            raise BadSnapshot(f"its version is {version}, this drafter reads {VERSION}")
        body = memoryview(content)[_START.size :]
        if _digest(body) != digest:
            raise BadSnapshot("it is damaged: its digest is wrong")
        try:
            return cls._from_body(body)
        except (struct.error, ValueError, TypeError) as error:
            raise BadSnapshot(f"it is malformed: {error}") from error

    @classmethod
    def _from_body(cls, body: memoryview) -> Self:
        is_shared, written_at, name_length = _OWNER.unpack_from(body)
        at = _OWNER.size + name_length
        owner = bytes(body[_OWNER.size : at]).decode()
        (num_texts,) = _COUNT.unpack_from(body, at)
        texts = list(_read_texts(body[at + _COUNT.size :], num_texts))
        return cls(owner=owner, is_shared=bool(is_shared), written_at=written_at, texts=texts)


def _read_texts(rest: memoryview, num_texts: int) -> Iterator[StoredText]:
    for _ in range(num_texts):
        num_tokens, num_context_tokens, usefulness, used_at = _TEXT.unpack_from(rest)
        repeats = _TEXT.size + 4 * num_tokens
        end = repeats - (-num_tokens // _TOKENS_PER_CHUNK)
        if len(rest) < end:
            raise ValueError("a text is longer than the file")
        yield StoredText(
            token_ids=array("I", _in_file_order(rest[_TEXT.size : repeats])),
            num_context_tokens=num_context_tokens,
            usefulness=usefulness,
            used_at=used_at,
            num_repeats=bytes(rest[repeats:end]),
        )
        rest = rest[end:]
    if rest:
        raise ValueError("something follows the last text")


def _in_file_order(token_bytes: bytes | memoryview) -> bytes:
    token_ids = array("I", bytes(token_bytes))
    if sys.byteorder == "big":
        token_ids.byteswap()
    return token_ids.tobytes()


def _digest(body: bytes | bytearray | memoryview) -> bytes:
    return blake2b(body, digest_size=32).digest()


def file_name(owner: str, *, is_shared: bool) -> str:
    """Returns the name of the file of a tenant: a hash, which names no path and tells no name."""
    scope = b"shared" if is_shared else b"tenant"
    return sha256(scope + b"\0" + owner.encode()).hexdigest() + SUFFIX


def read(path: Path) -> Snapshot:
    """Reads a file. Raises BadSnapshot if it cannot be trusted, OSError if it cannot be read."""
    # A pipe that nobody writes to would have the caller wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _check_status(os.fstat(descriptor))
        with open(descriptor, "rb", closefd=False) as file:
            # The rest is read only of what looks like a snapshot.
            start = file.read(_START.size)
            if not start.startswith(MAGIC[: len(start)]):
                raise BadSnapshot("it is no snapshot of a suffix memory")
            snapshot = Snapshot.from_bytes(start + file.read())
    finally:
        os.close(descriptor)
    if file_name(snapshot.owner, is_shared=snapshot.is_shared) != path.name:
        raise BadSnapshot("it belongs to another tenant than its name says")
    return snapshot


def _check_status(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadSnapshot("it is no regular file")
    if (mode := stat.S_IMODE(status.st_mode)) & 0o077:
        raise BadSnapshot(f"its mode is {mode:04o}: others than its owner may use it")
    if status.st_size > LARGEST_FILE:
        raise BadSnapshot(f"it has {status.st_size} bytes, more than {LARGEST_FILE}")


def write(folder: Path, snapshot: Snapshot) -> None:
    """Writes a file, readable by its owner alone, in place of the one before. Raises OSError."""
    path = folder / file_name(snapshot.owner, is_shared=snapshot.is_shared)
    temporary = path.with_suffix(UNFINISHED)
    temporary.unlink(missing_ok=True)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(snapshot.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def erase(path: Path) -> list[Path]:
    """Removes whatever is kept of the tenant with this file, and returns what there was. Raises OSError."""
    found: list[Path] = []
    for suffix in (SUFFIX, UNFINISHED, REFUSED):
        with suppress(FileNotFoundError):
            path.with_suffix(suffix).unlink()
            found.append(path.with_suffix(suffix))
    return found
