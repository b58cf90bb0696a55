"""The scheduler's settings."""

import pytest

from outrider.rpc.config import ConfigError
from services.scheduler.config import Config


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
    ],
)
def test_a_bad_value_stops_the_start_naming_what_is_wrong(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"(?i){name}"):
        Config.from_env({"OUTRIDER_SCHEDULER_WORKER": "worker:1", f"OUTRIDER_SCHEDULER_{name}": value})


def test_without_a_worker_there_is_no_start() -> None:
    with pytest.raises(ConfigError, match="WORKER"):
        Config.from_env({})
