"""How loaded and how fast the scheduler is of late: for the gateways' choice, the metrics and predictions."""

from dataclasses import dataclass, field

from outrider.v1 import load_pb2
from services.scheduler.recent import Recent
from services.scheduler.schedule import Schedule


@dataclass(slots=True)
class Speed:
    """How fast things go of late."""

    step_seconds: Recent = field(default_factory=Recent)
    own_seconds: Recent = field(default_factory=Recent)
    exchange_seconds: Recent = field(default_factory=Recent)
    rows_per_second: Recent = field(default_factory=Recent)

    def add_step(self, *, seconds: float, exchange_seconds: float, num_rows: int, max_num_rows: int) -> None:
        """Notes a step; only one that is at least half full says how fast prompts can be computed."""
        self.step_seconds.add(seconds)
        self.exchange_seconds.add(exchange_seconds)
        if 2 * num_rows >= max_num_rows and seconds > 0:
            self.rows_per_second.add(num_rows / seconds)


def load_message(schedule: Schedule | None, speed: Speed) -> load_pb2.Load:
    """Writes the load and the counters; all zero before the first group."""
    if schedule is None:
        return load_pb2.Load()
    counters, blocks = schedule.counters, schedule.blocks
    return load_pb2.Load(
        num_requests_running=len(schedule.running),
        num_requests_waiting=schedule.tenants.num_waiting,
        kv_cache_usage=1 - blocks.num_free_blocks / blocks.num_blocks,
        num_blocks=blocks.num_blocks,
        num_free_blocks=blocks.num_free_blocks,
        num_steps=counters.num_steps,
        num_output_tokens=counters.num_output_tokens,
        num_draft_tokens=counters.num_draft_tokens,
        num_accepted_tokens=counters.num_accepted_tokens,
        num_prefix_cache_queries=counters.num_prefix_cache_queries,
        num_prefix_cache_hits=counters.num_prefix_cache_hits,
        num_preemptions=counters.num_preemptions,
        step_ms=1000 * (speed.step_seconds.value or 0.0),
        scheduling_ms=1000 * (speed.own_seconds.value or 0.0),
        exchange_ms=1000 * (speed.exchange_seconds.value or 0.0),
        num_ranks=schedule.facts.num_ranks,
        placement_version=counters.placement_version,
        num_waiting_tokens=schedule.tenants.num_waiting_tokens,
        rows_per_second=speed.rows_per_second.value or 0.0,
    )
