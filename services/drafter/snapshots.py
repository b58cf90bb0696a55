"""Keeps the suffix memory across restarts: a folder with a snapshot for each tenant."""

import asyncio
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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

    A file that cannot be trusted is set aside as .refused, and its tenant starts with nothing. Texts not used
    for `max_age_days` are neither kept nor restored. A mark (services/drafter/forget.py) or the removal of a
    file erases a tenant: its memory goes too.
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
            paths = await asyncio.to_thread(self._prepare)
        except OSError as error:
            log.warning("snapshots_not_read", folder=str(self._folder), reason=str(error))
            return
        await self._erase_marked()
        for path in paths:
            try:
                found = await asyncio.to_thread(snapshot.read, path)
            except FileNotFoundError:
                continue
            except (BadSnapshot, OSError) as error:
                log.warning("snapshot_refused", file=str(path), reason=str(error))
                self._set_aside(path)
                continue
            if found.is_shared == self._memory.is_shared:
                await self._restore(path, found)

    def _prepare(self) -> list[Path]:
        """Makes the folder its owner's alone, sweeps what a crash has left, and names all snapshots."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (mode := stat.S_IMODE(self._folder.stat().st_mode)) & 0o077:
            with self._reporting("snapshot_folder_open_to_others", self._folder, mode=f"{mode:04o}"):
                self._folder.chmod(0o700)
        for path in self._folder.glob(f"*{snapshot.UNFINISHED}"):
            with self._reporting("snapshot_not_erased", path):
                path.unlink()
        return sorted(self._folder.glob(f"*{snapshot.SUFFIX}"))

    def _set_aside(self, path: Path) -> None:
        """Keeps a refused file from being overwritten, for whoever looks after it."""
        with self._reporting("snapshot_not_set_aside", path):
            path.rename(path.with_suffix(snapshot.REFUSED))

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
        """Writes what has changed, and erases what is erased or too old; what fails costs itself alone."""
        with self._reporting("snapshots_not_saved", self._folder):
            await self._erase_marked()
            await asyncio.to_thread(self._erase_old_files)
            for owner in list(self._saved):
                if not self._has_file(owner):
                    self._forget(owner)
            for owner in self._memory.owners():
                if self._is_due(owner):
                    with self._reporting("snapshot_not_written", self._path(owner)):
                        await self._save(owner)
            # A tenant may have been erased while its file was on its way.
            await self._erase_marked()

    async def _erase_marked(self) -> None:
        """Forgets the tenants that somebody has marked, removes their files, and then the marks."""
        paths = await asyncio.to_thread(lambda: list(self._folder.glob(f"*{snapshot.ERASE}")))
        if not paths:
            return
        names = {self._path(owner).stem: owner for owner in self._memory.all_owners()}
        for path in paths:
            if (owner := names.get(path.stem)) is not None:
                self._forget(owner)
            elif self._memory.is_shared:
                log.warning("tenant_not_erased", file=path.name, reason="all tenants share one memory")
            with self._reporting("snapshot_not_erased", path):
                snapshot.erase(path)
                path.unlink(missing_ok=True)

    def _forget(self, owner: str) -> None:
        log.info("tenant_forgotten", file=self._path(owner).name)
        self._memory.erase(owner)
        self._saved.pop(owner, None)

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

    def _has_file(self, owner: str) -> bool:
        """Whether there is a file; a link that leads nowhere is there all the same."""
        return os.path.lexists(self._path(owner))

    def _erase_old_files(self) -> None:
        for suffix in (snapshot.SUFFIX, snapshot.REFUSED):
            for path in self._folder.glob(f"*{suffix}"):
                with self._reporting("snapshot_not_erased", path):
                    if path.lstat().st_mtime < self._cutoff():
                        path.unlink()
                        log.info("snapshot_erased", file=str(path), reason="it is too old")

    @staticmethod
    @contextmanager
    def _reporting(event: str, path: Path, **more: str) -> Iterator[None]:
        """Has a failure cost what is done here alone, and says which file it was."""
        try:
            yield
        except OSError as error:
            log.warning(event, file=str(path), reason=str(error), **more)
