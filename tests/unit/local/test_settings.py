"""The options of the local stack: which are refused, and what the services are told."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from services.__main__ import parse
from services.drafter.config import Config as DrafterConfig
from services.drafter.snapshot import file_name
from services.local.child import StartError
from services.local.ports import free_ports
from services.local.programs import programs
from services.local.settings import Settings
from services.local.state import Lock, default_state, make_private
from services.scheduler.config import Config as SchedulerConfig
from tests.unit.deploy.configs import CONFIGS


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint, as far as the options look."""
    directory = tmp_path / "mine"
    directory.mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (directory / name).write_text("{}")
    return directory


def add_source(directory: Path) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


def environments(settings: Settings) -> dict[str, dict[str, str]]:
    settings.check()
    return {program.name: dict(program.environment) for program in programs(settings)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drafter", "suffix,oracle"], "--drafter oracle: there is none"),
        (["--drafter", ""], "--drafter : there is none"),
        (["--drafter", "model"], "--draft-model {model}/draft-model: no config.json in it"),
        (["--drafter", "suffix,head"], "--draft-head {model}/draft-head: no config.json in it"),
        (["--drafter", "model", "--draft-model", "/nowhere"], "--draft-model /nowhere: no config.json in it"),
        (["--draft-head", "/nowhere"], "--draft-head /nowhere: --drafter does not ask for head"),
    ],
)
def test_a_wrong_option_is_named(model: Path, arguments: list[str], message: str) -> None:
    settings, _ = parse(["--model", str(model), *arguments])
    with pytest.raises(StartError) as raised:
        settings.check()
    assert str(raised.value).startswith(message.format(model=model))


def test_sources_lie_beside_the_model_unless_they_are_named(model: Path, tmp_path: Path) -> None:
    beside, elsewhere = add_source(model / "draft-head"), add_source(tmp_path / "other")
    arguments = ["--model", str(model), "--drafter", "head,model", "--draft-model", str(elsewhere)]
    settings, _ = parse(arguments)
    settings.check()
    assert (settings.draft_head_directory, settings.draft_model_directory) == (beside, elsewhere)


def test_the_services_understand_what_they_are_told(model: Path, tmp_path: Path) -> None:
    for source in ("draft-model", "draft-head"):
        add_source(model / source)
    arguments = ["--model", str(model), "--drafter", "suffix,model,head", "--state", str(tmp_path / "state")]
    settings, _ = parse(arguments)
    told = environments(settings)
    worker, drafter, scheduler, gateway = (
        CONFIGS[name].from_env(told[name]) for name in ("worker", "drafter", "scheduler", "gateway")
    )
    assert worker.model_dir == gateway.model_dir == drafter.target_dir == model
    assert worker.head_dir == drafter.head_dir == model / "draft-head"
    assert (drafter.sources, drafter.model_dir) == (("suffix", "model", "head"), model / "draft-model")
    assert (drafter.snapshot_dir, scheduler.state_dir) == (
        tmp_path / "state" / "drafter" / "mine",
        tmp_path / "state" / "scheduler",
    )
    assert scheduler.drafter_shares_cores


def test_nothing_is_kept_unless_it_is_said_where(model: Path) -> None:
    told = environments(Settings(model=model))
    assert DrafterConfig.from_env(told["drafter"]).snapshot_dir is None
    assert SchedulerConfig.from_env(told["scheduler"]).state_dir is None


def test_a_draft_model_beside_the_model_is_used_unless_told_otherwise(model: Path, tmp_path: Path) -> None:
    def drafter(*arguments: str) -> tuple[str, ...]:
        return parse(["--model", str(model), *arguments])[0].drafter

    assert drafter() == ("suffix",)
    assert drafter("--draft-model", str(tmp_path)) == ("suffix", "model")
    (model / "draft-model").mkdir()
    (model / "draft-model" / "config.json").write_text("{}")
    assert drafter() == ("suffix", "model")
    assert drafter("--drafter", "suffix") == ("suffix",)


def test_without_a_drafter_none_is_started(model: Path) -> None:
    settings, _ = parse(["--model", str(model), "--drafter", "none"])
    told = environments(settings)
    assert "drafter" not in told
    assert told["scheduler"]["OUTRIDER_SCHEDULER_DRAFTER"] == ""


def test_a_variable_of_the_users_is_overridden_only_where_it_says_otherwise(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_WORKER_MODEL_DIR", "/another")
    monkeypatch.setenv("OUTRIDER_GATEWAY_MODEL_DIR", str(model))
    overridden = [name for program in programs(Settings(model=model)) for name in program.overridden]
    assert overridden == ["OUTRIDER_WORKER_MODEL_DIR"]


def test_state_is_kept_where_the_specification_says(tmp_path: Path) -> None:
    assert default_state({"HOME": "/home/me"}) == Path("/home/me/.local/state/outrider")
    assert default_state({"HOME": "/home/me", "XDG_STATE_HOME": "/state"}) == Path("/state/outrider")
    # Relative ones are to be ignored.
    assert default_state({"HOME": "/home/me", "XDG_STATE_HOME": "x"}) == Path(
        "/home/me/.local/state/outrider"
    )
    with pytest.raises(StartError, match="--state: HOME is not set"):
        default_state({})


def test_state_is_for_its_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    make_private(directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"--state .*/file: File exists"):
        make_private(tmp_path / "file")
    directory.chmod(0o750)
    with pytest.raises(StartError, match=r"--state .*/a/b: others may use it \(mode 0750\)"):
        make_private(directory)
    assert directory.stat().st_mode & 0o777 == 0o750


def test_the_readmes_command_erases_what_the_local_stack_keeps(tmp_path: Path) -> None:
    state = default_state({"HOME": str(tmp_path)})
    directory = Settings(state=state).snapshot_directory
    assert directory is not None
    directory.mkdir(parents=True)
    kept = directory / file_name("default", is_shared=False)
    kept.touch()
    root = Path(__file__).parents[3]
    readme = (root / "README.md").read_text()
    (command,) = re.findall(r"^ *(\S+ -m services\.drafter\.forget .*)$", readme, re.MULTILINE)
    command = command.replace(".venv/bin/python", sys.executable)
    subprocess.run(command, shell=True, cwd=root, env=os.environ | {"HOME": str(tmp_path)}, check=True)
    assert not kept.exists()


def test_each_pair_has_a_group_and_a_scheduler_of_its_own(model: Path, tmp_path: Path) -> None:
    options = ["--model", str(model), "--pairs", "2", "--state", str(tmp_path / "state")]
    told = environments(parse(options)[0])
    assert [*told] == ["worker", "worker-2", "drafter", "scheduler", "scheduler-2", "gateway"]
    schedulers = [CONFIGS["scheduler"].from_env(told[name]) for name in ("scheduler", "scheduler-2")]
    workers = [CONFIGS["worker"].from_env(told[name]) for name in ("worker", "worker-2")]
    drafter = CONFIGS["drafter"].from_env(told["drafter"])
    assert [one.worker for one in schedulers] == [f"127.0.0.1:{one.listen.grpc_port}" for one in workers]
    assert {one.drafter for one in schedulers} == {f"127.0.0.1:{drafter.listen.grpc_port}"}
    assert CONFIGS["gateway"].from_env(told["gateway"]).schedulers == tuple(
        f"127.0.0.1:{one.listen.grpc_port}" for one in schedulers
    )
    # Files are written whole, so two that write the same one would lose what the other has learnt.
    assert [one.state_dir.name for one in schedulers] == ["scheduler", "scheduler-2"]


def test_ranks_and_pairs_share_the_cores_alike(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    settings, _ = parse(["--model", str(model), "--ranks", "2", "--pairs", "2"])
    told = environments(settings)
    assert {name: told[name]["OMP_NUM_THREADS"] for name in ("worker", "worker-2", "scheduler")} == {
        "worker": "3",
        "worker-2": "3",
        "scheduler": "1",
    }
    assert CONFIGS["worker"].from_env(told["worker-2"]).group.num_ranks == 2


@pytest.mark.parametrize("option", ["--ranks", "--pairs"])
def test_none_at_all_is_refused(model: Path, option: str) -> None:
    settings, _ = parse(["--model", str(model), option, "0"])
    with pytest.raises(StartError, match=f"^{option} 0: must be at least 1$"):
        settings.check()


def test_every_rank_has_ports_that_no_other_has() -> None:
    ports = [port + 10 * rank for port in free_ports(20, num_ranks=8) for rank in range(8)]
    assert len(set(ports)) == 160
    with pytest.raises(StartError, match="--ranks 2000: there are no free ports"):
        free_ports(1, num_ranks=2000)


def test_a_state_directory_is_for_one_stack_at_a_time(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    with pytest.raises(StartError, match=f"^--state {tmp_path}: another stack keeps"):
        Lock(tmp_path)
    lock.release()
    Lock(tmp_path).release()
