"""Keys and the tenants that own them."""

import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from outrider.rpc.config import ConfigError
from outrider.rpc.errors import Unauthenticated
from services.gateway.model_files import read_text

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """Who is charged, their share against others', and how far their tokens may be guessed ahead."""

    name: str
    weight: float = 1.0
    # 0: not at all; None: as the scheduler likes.
    max_draft_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key, known by the SHA-256 of its text, and its owner."""

    digest: str
    tenant: Tenant


class Keys:
    """The keys that are accepted. None at all: everyone is the tenant `default`."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """Reads a keys file; raises ConfigError naming it and the entry that is wrong."""
        if path is None:
            return cls(())
        try:
            entries = json.loads(read_text(path))
        except ValueError as error:
            raise ConfigError(f"{path}: not JSON: {error}") from None
        if not isinstance(entries, list) or not entries:
            raise ConfigError(f"{path}: not a list of keys")
        return cls([_read_key(path, i, entry) for i, entry in enumerate(entries)])

    @property
    def num_tenants(self) -> int:
        """Returns how many tenants there can be."""
        return len({key.tenant.name for key in self._keys}) or 1

    def tenant_of(self, authorization: str) -> Tenant:
        """Returns the owner of the key in "Bearer KEY"; raises Unauthenticated without a valid one.

        All keys are compared, each in constant time: how long it takes says nothing about any of them.
        """
        if not self._keys:
            return Tenant(name="default")
        scheme, _, text = authorization.partition(" ")
        digest = hashlib.sha256(text.strip().encode()).hexdigest()
        matches = [key.tenant for key in self._keys if hmac.compare_digest(key.digest, digest)]
        if scheme.lower() != "bearer" or not matches:
            raise Unauthenticated('no valid key in the metadata "authorization: Bearer KEY"')
        return matches[0]


def _read_key(path: Path, index: int, entry: Any) -> Key:
    entry = entry if isinstance(entry, dict) else {}
    digest, name, weight = entry.get("sha256"), entry.get("tenant"), entry.get("weight", 1.0)
    max_draft_tokens = entry.get("max_draft_tokens")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest.lower()):
        raise ConfigError(f"{path}: key {index}: sha256 must be 64 hexadecimal digits")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{path}: key {index}: tenant must be a name")
    if not isinstance(weight, int | float) or not 0 < weight < float("inf"):
        raise ConfigError(f"{path}: key {index}: weight must be a positive number")
    if max_draft_tokens is not None and (type(max_draft_tokens) is not int or max_draft_tokens < 0):
        raise ConfigError(f"{path}: key {index}: max_draft_tokens must be a whole number from 0 on")
    tenant = Tenant(name=name, weight=float(weight), max_draft_tokens=max_draft_tokens)
    return Key(digest=digest.lower(), tenant=tenant)
