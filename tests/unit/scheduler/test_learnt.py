"""What the controller has learnt outlives the process, for the group that it was learnt of."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.scheduler.batch import GroupFacts
from services.scheduler.controller import Controller
from services.scheduler.learnt import Learnt
from tests.unit.scheduler.reference_group import ReferenceGroup
from tests.unit.scheduler.scenario import SETTINGS, make_controller

FACTS = replace(GroupFacts.from_proto(ReferenceGroup().opened), device="a device")


def num_observed(controller: Controller) -> float:
    return controller.state()["calibration"]["suffix"]["num_observed"]


def learn(directory: Path, facts: GroupFacts = FACTS) -> float:
    """Has a group's controller learn something and be saved; returns how much."""
    learnt = Learnt(directory, SETTINGS)
    controller = learnt.controller_for(facts, max_num_rows=64)
    controller.restore(make_controller().state(), age_seconds=0.0)
    learnt.save()
    return num_observed(controller)


def test_a_restarted_scheduler_goes_on_with_what_it_had_learnt(tmp_path: Path) -> None:
    known = learn(tmp_path)
    assert num_observed(Learnt(tmp_path, SETTINGS).controller_for(FACTS, max_num_rows=64)) == pytest.approx(
        known, rel=1e-3
    )


@pytest.mark.parametrize("changes", [{"model": "another"}, {"numerics_id": "another"}, {"device": "another"}])
def test_another_group_begins_with_what_was_learnt_of_it(tmp_path: Path, changes: dict) -> None:
    known = learn(tmp_path)
    learnt = Learnt(tmp_path, SETTINGS)
    first = learnt.controller_for(FACTS, max_num_rows=64)
    assert learnt.controller_for(FACTS, max_num_rows=64) is first
    assert num_observed(learnt.controller_for(replace(FACTS, **changes), max_num_rows=64)) == 0.0
    back = learnt.controller_for(FACTS, max_num_rows=64)
    assert back is not first
    assert num_observed(back) == pytest.approx(known, rel=1e-3)


def test_what_was_learnt_on_shared_cores_does_not_count_on_others(tmp_path: Path) -> None:
    learn(tmp_path)
    settings = replace(SETTINGS, drafter_shares_cores=True)
    assert num_observed(Learnt(tmp_path, settings).controller_for(FACTS, max_num_rows=64)) == 0.0


def test_what_was_learnt_of_smaller_steps_does_not_count_for_larger_ones(tmp_path: Path) -> None:
    learn(tmp_path)
    assert num_observed(Learnt(tmp_path, SETTINGS).controller_for(FACTS, max_num_rows=128)) == 0.0


@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 100, b'{"state": "{}"}', b"[1, 2]"])
def test_a_corrupt_file_is_named_and_the_controller_begins_as_new(tmp_path: Path, content: bytes) -> None:
    learn(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    with capture_logs() as logs:
        controller = Learnt(tmp_path, SETTINGS).controller_for(FACTS, max_num_rows=64)
    assert num_observed(controller) == 0.0
    (warning,) = [entry for entry in logs if entry["event"] == "controller_state_unusable"]
    assert warning["log_level"] == "warning"
    assert warning["file"] == str(file)
    assert warning["reason"]


def test_a_directory_that_cannot_be_written_costs_a_warning_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    learnt = Learnt(blocked, SETTINGS)
    with capture_logs() as logs:
        learnt.controller_for(FACTS, max_num_rows=64)
        learnt.save()
    assert "controller_state_not_saved" in [entry["event"] for entry in logs]


def test_without_a_directory_nothing_is_kept(tmp_path: Path) -> None:
    learnt = Learnt(None, SETTINGS)
    learnt.controller_for(FACTS, max_num_rows=64)
    learnt.save()
    assert list(tmp_path.iterdir()) == []


def test_what_was_learnt_is_saved_at_the_end(tmp_path: Path) -> None:
    learnt = Learnt(tmp_path, SETTINGS)
    learnt.controller_for(FACTS, max_num_rows=64)

    async def run_for_a_moment() -> None:
        async with asyncio.timeout(0.01):
            await learnt.run()

    with pytest.raises(TimeoutError):
        asyncio.run(run_for_a_moment())
    assert len(list(tmp_path.iterdir())) == 1
