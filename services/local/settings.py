"""What the local stack is asked to run."""

from dataclasses import dataclass
from pathlib import Path

from services.local.child import StartError

DEFAULT_MODEL = Path(__file__).parents[2] / "models" / "tiny"
DRAFT_SOURCES = ("suffix", "model", "head")
DEFAULT_SOURCES = ("suffix",)


def default_sources(model: Path, draft_model: Path | None = None) -> tuple[str, ...]:
    """Returns what drafts come from where nobody says: the memory, and a draft model if there is one."""
    has_draft_model = draft_model is not None or (model / "draft-model" / "config.json").is_file()
    return (*DEFAULT_SOURCES, "model") if has_draft_model else DEFAULT_SOURCES


def name_of(service: str, pair: int) -> str:
    """Returns what a service of a pair is called: worker, worker-2 and so on."""
    return service if pair == 1 else f"{service}-{pair}"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Port 0: any free one. An empty `drafter`: no speculation. No `state`: what is learnt is forgotten.

    Draft model and draft head, where they are asked for and not named, lie beside the model.
    """

    model: Path = DEFAULT_MODEL
    drafter: tuple[str, ...] = DEFAULT_SOURCES
    draft_model: Path | None = None
    draft_head: Path | None = None
    # Processes that hold the model together, and how many times over it is held, each with its scheduler.
    num_ranks: int = 1
    num_pairs: int = 1
    state: Path | None = None
    grpc_port: int = 50051
    http_port: int = 8080

    @property
    def draft_model_directory(self) -> Path | None:
        """Where the draft model lies; None if none is asked for."""
        return self._beside_model("model", self.draft_model, "draft-model")

    @property
    def draft_head_directory(self) -> Path | None:
        """Where the draft head lies; None if none is asked for."""
        return self._beside_model("head", self.draft_head, "draft-head")

    @property
    def snapshot_directory(self) -> Path | None:
        """Where the drafter keeps its memory: one for each model, as token ids mean nothing to another."""
        return self.state / "drafter" / self.model.name if self.state else None

    def scheduler_state_directory(self, pair: int) -> Path | None:
        """Where a pair's scheduler keeps what it has measured: one for each, as it writes its files whole."""
        return self.state / name_of("scheduler", pair) if self.state else None

    def worker_state_directory(self, pair: int) -> Path | None:
        """Where a pair's group keeps the loads of its experts, if it is one of several ranks."""
        return self.state / name_of("worker", pair) if self.state and self.num_ranks > 1 else None

    @property
    def state_directories(self) -> list[Path]:
        """All that is kept, and before it the directory that holds it."""
        schedulers = map(self.scheduler_state_directory, self.pairs)
        workers = map(self.worker_state_directory, self.pairs)
        return [found for found in (self.state, self.snapshot_directory, *schedulers, *workers) if found]

    @property
    def pairs(self) -> range:
        """The numbers of the pairs, which services are named by."""
        return range(1, self.num_pairs + 1)

    def _beside_model(self, source: str, named: Path | None, default: str) -> Path | None:
        return (named or self.model / default) if source in self.drafter else None

    def check(self) -> None:
        """Raises StartError naming the option that is wrong."""
        for name in ("config.json", "tokenizer_config.json"):
            if not (self.model / name).is_file():
                raise StartError(f"--model {self.model}: no {name} in it")
        for option, number in (("--ranks", self.num_ranks), ("--pairs", self.num_pairs)):
            if number < 1:
                raise StartError(f"{option} {number}: must be at least 1")
        for source in self.drafter:
            if source not in DRAFT_SOURCES:
                raise StartError(
                    f"--drafter {source}: there is none; take some of {', '.join(DRAFT_SOURCES)}, or none"
                )
        _check_source("model", self.draft_model, self.draft_model_directory)
        _check_source("head", self.draft_head, self.draft_head_directory)


def _check_source(source: str, named: Path | None, directory: Path | None) -> None:
    option = f"--draft-{source}"
    if directory is None:
        if named is not None:
            raise StartError(f"{option} {named}: --drafter does not ask for {source}")
    elif not (directory / "config.json").is_file():
        hint = "" if named else f", which --drafter {source} needs"
        raise StartError(f"{option} {directory}: no config.json in it{hint}")
