"""Where a group's experts are at its start, and what moves them later."""

import numpy as np
import structlog

from outrider.model.config import ModelConfig
from outrider.model.errors import ModelError
from outrider.model.placement import Placement, imbalance
from outrider.model.placement.eplb import begin_with
from outrider.model.shard import balanced_placement
from outrider.rpc.config import ConfigError
from services.worker.config import Config
from services.worker.group.leader import Leader
from services.worker.group.meeting import Group
from services.worker.loads import LoadWindow
from services.worker.loads_file import loads_path, read_loads
from services.worker.rebalance import Rebalancer

PLACEMENT_KEY = "placement"

log = structlog.get_logger()


def first_placement(config: Config, group: Group) -> Placement | None:
    """Returns the same placement on every rank, by the loads that rank 0 finds kept; None without experts.

    Raises ConfigError, or ModelError for a model that cannot be read.
    """
    model = ModelConfig.from_directory(config.model_dir)
    try:
        start = balanced_placement(model, group.exchange.num_ranks, config.group.num_redundant_experts)
    except ModelError as error:
        raise ConfigError(f"OUTRIDER_WORKER_NUM_REDUNDANT_EXPERTS: {error}") from None
    if model.moe is None or start is None:
        return None
    if group.is_led_here:
        placement = _placed_by_kept_loads(config, start, model.moe.gate_rule.num_groups)
        group.store.set(PLACEMENT_KEY, placement.experts.astype("<i4").tobytes().hex())
        return placement
    experts = np.frombuffer(bytes.fromhex(group.store.get(PLACEMENT_KEY).decode()), "<i4")
    return start.filled(experts.reshape(start.experts.shape))


def new_rebalancer(config: Config, leader: Leader) -> Rebalancer | None:
    """Returns what moves the group's experts; None where they stay where they are."""
    placement = leader.model.placement
    if placement is None or not config.group.rebalance_seconds:
        return None
    shape = (len(placement.experts), placement.num_experts)
    window, file = LoadWindow(*shape), None
    if config.state_dir is not None:
        file = loads_path(config.state_dir, config.model_dir, shape)
        if kept := read_loads(file, shape):
            window.restore(*kept)
    return Rebalancer(
        leader,
        window,
        seconds=config.group.rebalance_seconds,
        max_num_bytes=config.group.rebalance_bytes,
        num_expert_bytes=leader.model.num_expert_bytes,
        file=file,
    )


def _placed_by_kept_loads(config: Config, start: Placement, num_groups: int) -> Placement:
    if config.state_dir is None:
        return start
    shape = (len(start.experts), start.num_experts)
    kept = read_loads(loads_path(config.state_dir, config.model_dir, shape), shape)
    if kept is None:
        return start
    placement = begin_with(start, kept[0], num_groups=num_groups, num_nodes=config.group.num_nodes)
    log.info(
        "experts_placed",
        imbalance_balanced=round(imbalance(start, kept[0]), 4),
        imbalance=round(imbalance(placement, kept[0]), 4),
    )
    return placement
