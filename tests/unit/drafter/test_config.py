"""The drafter's settings and what it reports of itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from outrider.rpc.config import ConfigError
from services.drafter.config import Config
from services.drafter.metrics import MAX_NUM_TENANT_LABELS, MemoryCollector


def config(**variables: object) -> Config:
    return Config.from_env({f"OUTRIDER_DRAFTER_{name}": str(value) for name, value in variables.items()})


def test_without_settings_there_is_a_suffix_memory_that_forgets_at_the_end() -> None:
    default = config()
    assert default.sources == ("suffix",)
    assert default.snapshot_dir is None
    assert not default.share_memory


def test_the_environment_sets_everything(tmp_path: Path) -> None:
    given = config(
        GRPC_PORT=0,
        SOURCES="suffix, model,head",
        MEMORY_BYTES=5_000_000,
        SHARE_MEMORY="true",
        SNAPSHOT_DIR=tmp_path,
        SNAPSHOT_SECONDS=1.5,
        SNAPSHOT_MAX_AGE_DAYS=2,
        MODEL_DIR=tmp_path,
        HEAD_DIR=tmp_path,
        TARGET_DIR=tmp_path,
        KV_CACHE_BYTES=6_000_000,
        NUM_THREADS=3,
    )
    assert given.sources == ("suffix", "model", "head")
    assert (given.listen.grpc_port, given.listen.http_port) == (0, 9104)
    assert (given.memory_bytes, given.kv_cache_bytes, given.num_threads) == (5_000_000, 6_000_000, 3)
    assert (given.snapshot_dir, given.snapshot_seconds, given.snapshot_max_age_days) == (tmp_path, 1.5, 2.0)
    assert given.share_memory
    assert given.model_dir == given.head_dir == given.target_dir == tmp_path


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("SOURCES", "suffix,oracle", "there is no 'oracle'; there are suffix, model, head"),
        ("SOURCES", "", "must name sources once each"),
        ("SOURCES", "suffix,suffix", "must name sources once each"),
        ("MEMORY_BYTES", "12", "must be at least 1048576, is 12"),
        ("MEMORY_BYTES", "much", "invalid literal"),
        ("KV_CACHE_BYTES", "0", "must be at least 1048576, is 0"),
        ("NUM_THREADS", "0", "must be at least 1, is 0"),
        ("SNAPSHOT_SECONDS", "0", "must be above 0, is 0"),
        ("SNAPSHOT_SECONDS", "nan", "must be above 0, is nan"),
        ("SNAPSHOT_MAX_AGE_DAYS", "-1", "must be above 0, is -1"),
        ("SHARE_MEMORY", "perhaps", "expected true or false"),
    ],
)
def test_a_wrong_value_is_refused_naming_the_variable(name: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^OUTRIDER_DRAFTER_{name}.*{reason}"):
        config(**{name: value})


@pytest.mark.parametrize(
    ("source", "missing"),
    [("model", "MODEL_DIR"), ("model", "TARGET_DIR"), ("head", "HEAD_DIR"), ("head", "TARGET_DIR")],
)
def test_a_source_without_what_it_needs_is_refused_naming_the_variable(
    source: str, missing: str, tmp_path: Path
) -> None:
    directories: dict[str, Path] = dict.fromkeys(("MODEL_DIR", "HEAD_DIR", "TARGET_DIR"), tmp_path)
    assert config(SOURCES=source, **directories).sources == (source,)
    with pytest.raises(ConfigError, match=f"^OUTRIDER_DRAFTER_{missing}.* is no directory"):
        config(SOURCES=source, **directories | {missing: tmp_path / "nowhere"})
    del directories[missing]
    with pytest.raises(ConfigError, match=f"^OUTRIDER_DRAFTER_{missing}.* the source {source} needs it"):
        config(SOURCES=source, **directories)


@pytest.mark.parametrize(
    ("package", "said"),
    [
        (
            "torch",
            "OUTRIDER_DRAFTER_SOURCES: model needs torch, which is not installed (image: EXTRAS=model)",
        ),
        ("outrider_native", "outrider_native.suffix is not installed: run make setup"),
    ],
)
def test_a_package_that_is_missing_is_said_in_one_line(package: str, said: str, tmp_path: Path) -> None:
    run_it = "runpy.run_module('services.drafter', run_name='__main__')"
    program = f"import runpy, sys; sys.modules[{package!r}] = None; {run_it}"
    settings = {"SOURCES": "model", "MODEL_DIR": tmp_path, "TARGET_DIR": tmp_path}
    environment = {f"OUTRIDER_DRAFTER_{name}": str(value) for name, value in settings.items()}
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (2, f"outrider drafter: {said}\n")


def test_many_tenants_share_one_time_series() -> None:
    registry = CollectorRegistry()
    registry.register(MemoryCollector(lambda: {f"t{number}": number for number in range(1000)}))
    (family,) = registry.collect()
    values = {sample.labels["tenant"]: sample.value for sample in family.samples}
    assert len(values) == MAX_NUM_TENANT_LABELS + 1
    assert sum(values.values()) == sum(range(1000))
    assert values["t999"] == 999
