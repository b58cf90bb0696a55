"""What the controller has learnt of a group, kept in a file over restarts."""

import asyncio
from pathlib import Path

import structlog

from services.scheduler.batch import GroupFacts
from services.scheduler.controller import Controller, Settings, load, save, state_path

SAVE_SECONDS = 60.0

log = structlog.get_logger()


class Learnt:
    """The controller of the group there is, and the file that outlives it."""

    def __init__(self, directory: Path | None, settings: Settings) -> None:
        self._directory = directory
        self._settings = settings
        self._path: Path | None = None
        self._key: tuple[object, ...] | None = None
        self._controller: Controller | None = None

    def controller_for(self, facts: GroupFacts, *, max_num_rows: int) -> Controller:
        """Returns the controller of a group whose steps hold so many rows.

        It is the same one, or one that begins with what its file holds.
        """
        key = (facts.model, facts.numerics_id, facts.device, max_num_rows)
        if self._controller is None or key != self._key:
            self.save()
            self._key, self._path = key, self._path_for(facts, max_num_rows)
            self._controller = Controller(facts.experts, self._settings)
            self._restore(self._controller)
        return self._controller

    async def run(self) -> None:
        """Saves now and then, and at the end."""
        try:
            while True:
                await asyncio.sleep(SAVE_SECONDS)
                if self._path is not None and self._controller is not None:
                    await asyncio.to_thread(_save, self._path, self._controller.state())
        finally:
            self.save()

    def save(self) -> None:
        """Writes the file."""
        if self._path is not None and self._controller is not None:
            _save(self._path, self._controller.state())

    def _path_for(self, facts: GroupFacts, max_num_rows: int) -> Path | None:
        if self._directory is None:
            return None
        # On cores of its own a drafter costs nothing, so what was learnt with shared ones does not hold. Of
        # steps larger than any that were measured nothing is known.
        cores = "shared cores" if self._settings.drafter_shares_cores else "own cores"
        return state_path(
            self._directory,
            model=facts.model,
            numerics_id=facts.numerics_id,
            device=facts.device,
            configuration=f"{cores}, {max_num_rows} rows",
        )

    def _restore(self, controller: Controller) -> None:
        if self._path is None:
            return
        try:
            if (found := load(self._path)) is not None:
                controller.restore(*found)
                log.info("controller_state_restored", file=str(self._path), age_seconds=round(found[1]))
        except (ValueError, OSError) as error:
            log.warning("controller_state_unusable", file=str(self._path), reason=str(error)[:200])


def _save(path: Path, state: dict) -> None:
    try:
        save(path, state)
    except OSError as error:
        log.warning("controller_state_not_saved", file=str(path), reason=str(error)[:200])
