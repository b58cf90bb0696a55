"""The scheduler's settings."""

from pathlib import Path

import pytest

from outrider.rpc.config import ConfigError
from services.scheduler.config import Config
from services.scheduler.controller import Settings


def test_the_worker_is_all_that_must_be_set() -> None:
    config = Config.from_env({"OUTRIDER_SCHEDULER_WORKER": "worker:50053"})
    assert (config.worker, config.drafter, config.listen.grpc_port) == ("worker:50053", "", 50052)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_NUM_SEQS", "0"),
        ("PREFILL_CHUNK", "many"),
        ("MAX_DRAFT_TOKENS", "-1"),
        ("MAX_DRAFT_WAIT_MS", "nan"),
        ("MAX_NUM_BATCHED_TOKENS", "0"),
        ("INTER_TOKEN_TARGET_MS", "0"),
        ("INTER_TOKEN_TARGET_MS", "nan"),
        ("DRAFTER_SHARES_CORES", "perhaps"),
    ],
)
def test_a_bad_value_stops_the_start_naming_what_is_wrong(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"(?i){name}"):
        Config.from_env({"OUTRIDER_SCHEDULER_WORKER": "worker:1", f"OUTRIDER_SCHEDULER_{name}": value})


def test_without_a_worker_there_is_no_start() -> None:
    with pytest.raises(ConfigError, match="WORKER"):
        Config.from_env({})


def test_what_bounds_the_controller_follows_from_the_settings() -> None:
    environ = {
        "OUTRIDER_SCHEDULER_WORKER": "worker:1",
        "OUTRIDER_SCHEDULER_MAX_DRAFT_TOKENS": "5",
        "OUTRIDER_SCHEDULER_DRAFTER_SHARES_CORES": "true",
        "OUTRIDER_SCHEDULER_INTER_TOKEN_TARGET_MS": "40",
        "OUTRIDER_SCHEDULER_STATE_DIR": "/var/lib/outrider",
    }
    config = Config.from_env(environ)
    assert config.controller == Settings(
        max_num_draft_tokens=5,
        drafter_shares_cores=True,
        inter_token_target_seconds=0.04,
        max_wait_seconds=0.05,
    )
    assert config.state_dir == Path("/var/lib/outrider")


def test_without_a_target_prompts_are_bounded_by_their_chunk_alone() -> None:
    config = Config.from_env({"OUTRIDER_SCHEDULER_WORKER": "worker:1"})
    assert config.controller.inter_token_target_seconds is None
