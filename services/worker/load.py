"""Loading the model: everything that can be wrong with it is found before the worker serves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from outrider.model.config import ModelConfig
from outrider.model.draft_head import FeatureProjection
from outrider.model.errors import ModelError
from outrider.model.graphs import Bucket, StepRunner, make_buckets
from outrider.model.kv_cache import KVCache
from outrider.model.ranks import ALONE
from outrider.model.reader import Progress
from outrider.model.sampling import GrammarCompiler
from outrider.model.transformer import Transformer
from outrider.rpc.config import ConfigError
from services.worker.config import Config
from services.worker.device import check_block_size, choose_backend, choose_device, device_name
from services.worker.features import FeatureTap
from services.worker.group.leader import Leader
from services.worker.group.meeting import Group, Join
from services.worker.lost import LockstepLost
from services.worker.messages import GroupFacts
from services.worker.placing import first_placement, new_rebalancer
from services.worker.step import Stepper
from services.worker.warm_up import largest_batch, small_batches

IsStopped = Callable[[], bool]

log = structlog.get_logger()


class LoadingStopped(Exception):
    """The worker was told to stop while it loaded."""


@dataclass(frozen=True, kw_only=True)
class LoadedRank:
    """What a rank computes steps with. Alone, it has no group."""

    runner: StepRunner
    facts: GroupFacts
    tap: FeatureTap | None
    group: Group | None


def load(config: Config, is_stopped: IsStopped, join: Join | None = None) -> Stepper:
    """Loads the model in the thread that will step it, on the rank that leads the group if there are others.

    Raises ConfigError, or LoadingStopped.
    """
    rank = load_rank(config, is_stopped, join)
    leader = Leader(rank.runner, rank.group) if rank.group else None
    runner = leader or rank.runner
    rebalancer = new_rebalancer(config, leader) if leader else None
    stepper = Stepper(
        runner,
        rank.facts,
        _grammar_compiler(config.model_dir, rank.facts.vocab_size),
        rank.tap,
        rank.group,
        loads=rebalancer.window if rebalancer else None,
        rebalancer=rebalancer,
    )
    with _enough_memory():
        if runner.model.kernels.CAPTURABLE:
            stepper.warm_up([largest_batch(rank.facts)])
        stepper.warm_up(small_batches(rank.facts))
    if rank.group:
        # They have computed what was warmed up.
        rank.group.lifeline.serve(with_peers=True)
    log.info("model_loaded", **{name: getattr(rank.facts, name) for name in rank.facts.__dataclass_fields__})
    return stepper


def load_rank(config: Config, is_stopped: IsStopped, join: Join | None) -> LoadedRank:
    """Loads what every rank needs, once it has joined the group. Raises as `load` does."""
    device = choose_device(config.device, join.seat.local_rank if join else None)
    backend = choose_backend(config.backend, device)
    check_block_size(config.block_size, backend)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    group = join(device) if join else None
    model = _load_model(config, device, backend, group, _reporter("loading_weights", is_stopped))
    tap = _feature_tap(config, model) if group is None or group.is_led_here else None
    facts = _facts(config, model, feature_size=tap.size if tap else 0)
    runner = _new_runner(config, model, facts, tap)
    if runner.model.kernels.CAPTURABLE:
        with _enough_memory():
            _record(runner, facts.max_num_batched_tokens, _reporter("recording_graphs", is_stopped))
    return LoadedRank(runner=runner, facts=facts, tap=tap, group=group)


def _load_model(
    config: Config, device: torch.device, backend: str, group: Group | None, progress: Progress
) -> Transformer:
    log.info("loading_model", device=str(device), backend=backend)
    try:
        return Transformer.load(
            config.model_dir,
            dtype=None if config.dtype == "auto" else getattr(torch, config.dtype),
            device=device,
            backend=backend,
            progress=progress,
            ranks=group.exchange if group else ALONE,
            placement=first_placement(config, group) if group else None,
        )
    except ModelError as error:
        raise ConfigError(f"OUTRIDER_WORKER_MODEL_DIR: {error}") from None
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"OUTRIDER_WORKER_MODEL_DIR: the weights do not fit OUTRIDER_WORKER_DEVICE {device}"
        ) from None


def _new_runner(config: Config, model: Transformer, facts: GroupFacts, tap: FeatureTap | None) -> StepRunner:
    buckets: tuple[Bucket, ...] = ()
    if model.kernels.CAPTURABLE:
        buckets = make_buckets(
            config.graph_num_sequences, config.graph_num_rows, max_num_rows=config.max_num_batched_tokens
        )
    return StepRunner(
        model,
        # One block more than sequences may own, for rows of none.
        _new_kv_cache(model, facts, num_spare_blocks=1 if model.kernels.CAPTURABLE else 0),
        buckets,
        max_model_len=facts.max_model_len,
        tap_layers=tap.layers if tap else (),
    )


@contextmanager
def _enough_memory() -> Iterator[None]:
    """Has steps of a start run: kernels are compiled and memory is proven before any request."""
    try:
        yield
    except (torch.OutOfMemoryError, LockstepLost) as error:
        if not isinstance(error.__cause__ or error, torch.OutOfMemoryError):
            raise
        raise ConfigError(
            "OUTRIDER_WORKER_KV_CACHE_BYTES, _NUM_BLOCKS, _MAX_NUM_BATCHED_TOKENS or _GRAPH_NUM_ROWS:"
            " they leave no memory for a step and its CUDA graphs"
        ) from None


def _record(runner: StepRunner, max_num_rows: int, progress: Progress) -> None:
    # Imported once Triton is known to be there.
    from outrider.kernels.triton.launch import DoesNotFit

    device = runner.model.device
    try:
        runner.warm_up(max_num_rows)
        free = _free_memory(device)
        runner.record(progress)
    except DoesNotFit as error:
        raise ConfigError(f"OUTRIDER_WORKER_DEVICE: a kernel does not fit {device}: {error}") from None
    if device.type == "cuda":
        log.info("graphs_recorded", num_bytes=free - _free_memory(device))


def _free_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def _feature_tap(config: Config, model: Transformer) -> FeatureTap | None:
    if config.head_dir is None:
        return None
    try:
        return FeatureTap(FeatureProjection.load(config.head_dir, model, backend=model.kernels.NAME))
    except ModelError as error:
        raise ConfigError(f"OUTRIDER_WORKER_HEAD_DIR: {error}") from None
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"OUTRIDER_WORKER_HEAD_DIR: its weights do not fit OUTRIDER_WORKER_DEVICE {model.device}"
        ) from None


def _new_kv_cache(model: Transformer, facts: GroupFacts, *, num_spare_blocks: int) -> KVCache:
    try:
        return model.new_kv_cache(facts.num_blocks + num_spare_blocks, facts.block_size)
    except (MemoryError, torch.OutOfMemoryError):
        num_bytes = facts.num_blocks * model.kv_bytes_per_block(facts.block_size)
        raise ConfigError(
            f"OUTRIDER_WORKER_NUM_BLOCKS or _KV_CACHE_BYTES: there is no memory for {facts.num_blocks} blocks"
            f" of {num_bytes} bytes in all"
        ) from None


def _reporter(event: str, is_stopped: Callable[[], bool]) -> Progress:
    """Logs each tenth of something."""
    reported = 0

    def report(num_done: int, total: int) -> None:
        nonlocal reported
        if is_stopped():
            raise LoadingStopped
        tenths = 10 * num_done // max(total, 1)
        if tenths > reported:
            reported = tenths
            log.info(event, percent=10 * tenths, num_done=num_done)

    return report


def _facts(config: Config, model: Transformer, *, feature_size: int) -> GroupFacts:
    shape: ModelConfig = model.config
    num_blocks = config.num_blocks or config.kv_cache_bytes // model.kv_bytes_per_block(config.block_size)
    if num_blocks < 1:
        raise ConfigError(f"OUTRIDER_WORKER_KV_CACHE_BYTES: {config.kv_cache_bytes} bytes hold no block")
    max_model_len = config.max_model_len or shape.max_num_positions
    if max_model_len > shape.max_num_positions:
        raise ConfigError(
            f"OUTRIDER_WORKER_MAX_MODEL_LEN is {max_model_len}, and the model takes {shape.max_num_positions}"
        )
    return GroupFacts(
        model=config.model_name or config.model_dir.resolve().name,
        numerics_id=model.numerics_id,
        max_model_len=max_model_len,
        vocab_size=shape.vocab_size,
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_num_batched_tokens=config.max_num_batched_tokens,
        num_experts=shape.moe.num_experts if shape.moe else 0,
        num_experts_per_token=shape.moe.num_experts_per_token if shape.moe else 0,
        num_moe_layers=shape.num_layers - shape.num_dense_layers if shape.moe else 0,
        feature_size=feature_size,
        device=device_name(model.device, model.ranks.num_ranks),
        num_ranks=model.ranks.num_ranks,
    )


def _grammar_compiler(directory: Path, vocab_size: int) -> GrammarCompiler | None:
    """Returns None for a model without tokenizer.json: it serves, but takes no grammars."""
    path = directory / "tokenizer.json"
    if not path.exists():
        log.warning("no_grammars", reason="the model has no tokenizer.json")
        return None
    try:
        return GrammarCompiler(path.read_text(encoding="utf-8"), vocab_size)
    except (OSError, ValueError, LookupError) as error:
        raise ConfigError(f"{path}: cannot be read for grammars: {error}") from None
