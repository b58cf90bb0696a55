"""Keeps the suffix memory across restarts: a folder with a snapshot for each tenant."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
from outrider_native.suffix import StoredText

from services.drafter import snapshot
from services.drafter.memory import SuffixMemory
from services.drafter.snapshot import BadSnapshot, Snapshot

SECONDS_PER_DAY = 86_400
# Texts restored, or copied, before others get their turn: a few milliseconds at most.
RESTORES_PER_TURN = 2
COPIES_PER_TURN = 64

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Saved:
    """What a file holds: the state of the memory then, and when its oldest text was used last."""

    num_changes: int
    oldest: int


class Snapshots:
    """Restores what a folder holds, then writes there what changes, now and then and at the end.

    A file that cannot be trusted is refused, and its tenant starts with nothing. Texts not used for
    `max_age_days` are neither kept nor restored. Who removes a file erases its tenant: its memory goes too.
    """

    def __init__(
        self, memory: SuffixMemory, folder: Path, *, seconds: float = 300.0, max_age_days: float = 30.0
    ) -> None:
        self._memory = memory
        self._folder = folder
        self._seconds = seconds
        self._max_age = max_age_days * SECONDS_PER_DAY
        self._saved: dict[str, _Saved] = {}

    async def run(self) -> None:
        """Restores everything, then saves every so many seconds, and once more when cancelled."""
        await self.restore()
        try:
            while True:
                await asyncio.sleep(self._seconds)
                await self.save()
        finally:
            await self.save()

    async def restore(self) -> None:
        """Restores all files that can be trusted, a few texts at a time."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            paths = sorted(self._folder.glob(f"*{snapshot.SUFFIX}"))
        except OSError as error:
            log.warning("snapshots_not_read", folder=str(self._folder), reason=str(error))
            return
        for path in paths:
            try:
                found = await asyncio.to_thread(snapshot.read, path)
                if found.is_shared == self._memory.is_shared:
                    await self._restore(path, found)
            except (BadSnapshot, OSError, ValueError) as error:
                log.warning("snapshot_refused", file=str(path), reason=str(error))

    async def _restore(self, path: Path, found: Snapshot) -> None:
        began, num_changes = time.monotonic(), self._memory.num_changes(found.owner)
        texts = [text for text in found.texts if text.used_at >= self._cutoff()]
        for number, text in enumerate(texts, 1):
            self._memory.restore(found.owner, text)
            if number % RESTORES_PER_TURN == 0:
                await asyncio.sleep(0)
        # What was learnt meanwhile is not in the file: then it is due.
        self._note_saved(found, num_changes + len(texts))
        log.info("snapshot_restored", file=str(path), num_texts=len(texts), seconds=time.monotonic() - began)

    async def save(self) -> None:
        """Writes what has changed, and erases what is erased or too old."""
        try:
            await asyncio.to_thread(self._erase_old_files)
            for owner in list(self._saved):
                if not self._path(owner).exists():
                    log.info("tenant_forgotten", file=self._path(owner).name)
                    self._memory.forget_all(owner)
                    del self._saved[owner]
            for owner in self._memory.owners():
                if self._is_due(owner):
                    await self._save(owner)
        except OSError as error:
            log.warning("snapshot_not_written", folder=str(self._folder), reason=str(error))

    def _is_due(self, owner: str) -> bool:
        saved = self._saved.get(owner)
        return (
            saved is None
            or saved.num_changes != self._memory.num_changes(owner)
            or saved.oldest < self._cutoff()
        )

    async def _save(self, owner: str) -> None:
        num_changes = self._memory.num_changes(owner)
        taken = Snapshot(
            owner=owner,
            is_shared=self._memory.is_shared,
            written_at=int(time.time()),
            texts=await self._copy(owner),
        )
        await asyncio.to_thread(snapshot.write, self._folder, taken)
        self._note_saved(taken, num_changes)

    async def _copy(self, owner: str) -> list[StoredText]:
        """Copies the texts of a tenant that are young enough, while it goes on learning and forgetting."""
        memory, texts = self._memory.memory_of(owner), list[StoredText]()
        if memory is None:
            return texts
        for number, text_id in enumerate(memory.texts(), 1):
            with suppress(ValueError):  # forgotten meanwhile
                texts.append(memory.text(text_id))
            if number % COPIES_PER_TURN == 0:
                await asyncio.sleep(0)
        return [text for text in texts if text.used_at >= self._cutoff()]

    def _note_saved(self, saved: Snapshot, num_changes: int) -> None:
        oldest = min((text.used_at for text in saved.texts), default=saved.written_at)
        self._saved[saved.owner] = _Saved(num_changes, oldest)

    def _cutoff(self) -> float:
        return time.time() - self._max_age

    def _path(self, owner: str) -> Path:
        return self._folder / snapshot.file_name(owner, is_shared=self._memory.is_shared)

    def _erase_old_files(self) -> None:
        for path in self._folder.glob(f"*{snapshot.SUFFIX}"):
            if path.stat().st_mtime < self._cutoff():
                path.unlink()
                log.info("snapshot_erased", file=str(path), reason="it is too old")
