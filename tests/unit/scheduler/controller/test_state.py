"""What is kept over restarts."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.scheduler.controller import (
    Controller,
    ModelFacts,
    Offer,
    Settings,
    StepShape,
    load,
    save,
    state_path,
)

MODEL = ModelFacts(num_experts=32, num_experts_per_token=4, num_moe_layers=4)
DAY = 86_400.0
NAMES = {"model": "tiny", "numerics_id": "n1", "device": "cpu", "configuration": "one"}


def new() -> Controller:
    return Controller(MODEL, Settings(max_num_draft_tokens=8))


def offer(confidence: float = 0.9) -> Offer:
    return Offer(source="suffix", confidences=(confidence,) * 4, match_length=5, phase="text")


def shape(num_rows: int) -> StepShape:
    return StepShape(num_rows=num_rows, num_sequences=1, num_context_tokens=100)


def taught() -> Controller:
    controller, rng = new(), np.random.default_rng(1)
    record = controller.new_record()
    for _ in range(200):
        draft = offer(float(rng.uniform(0.5, 0.95)))
        (sources,) = controller.sources([record], frozenset({"suffix"}))
        controller.note_questions([(record, sources)])
        (count,) = controller.allocate(shape(1), [(record, draft, 4)], 100)
        if count:
            controller.note_draft(record, draft, count, int(rng.integers(0, count + 1)))
        controller.note_answer("suffix", num_drafts=1, compute_seconds=1e-4)
        controller.note_step(shape(1 + count), (0.02 + 0.003 * count) * rng.lognormal(0, 0.05), [4 + count])
    return controller


def predicted(controller: Controller) -> np.ndarray:
    return controller.cost.predict(shape(1), 6)[0]


def test_a_restart_goes_on_where_it_was() -> None:
    before, after = taught(), new()
    after.restore(json.loads(json.dumps(before.state())), 0.0)
    assert predicted(after) == pytest.approx(predicted(before), rel=0.1)
    fits = [controller.calibration.of("suffix") for controller in (before, after)]
    assert fits[1].weights == pytest.approx(fits[0].weights)

    def verified(controller: Controller) -> int:
        return controller.allocate(shape(1), [(controller.new_record(), offer(), 4)], 100)[0]

    assert verified(before) > 0
    assert verified(after) > 0
    assert verified(new()) == 0


def test_what_is_older_counts_less() -> None:
    trusts = []
    for age in (0.0, DAY, 30 * DAY):
        controller = new()
        controller.restore(taught().state(), age)
        trusts.append(controller.calibration.of("suffix").num_observed)
        doubt = controller.cost.predict(shape(1), 6)[1]
        trusts.append(-float(doubt[0]))
    assert trusts[2] == pytest.approx(trusts[0] / 2)
    assert trusts[1] > trusts[3] > trusts[5]
    assert trusts[4] == pytest.approx(0, abs=1e-3)


def broken(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    state = json.loads(json.dumps(taught().state()))
    change(state)
    return state


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ({}, "version"),
        ({"version": 99}, "version"),
        (broken(lambda state: state.pop("cost")), "cost"),
        (broken(lambda state: state["cost"].update(noise=math.nan)), "noise"),
        (broken(lambda state: state["cost"].update(cells=[[1, 2, 3]])), "cell"),
        (broken(lambda state: state["cost"]["cells"].append([99, 0, 1, 1, 1, 1, 1])), "grid"),
        (broken(lambda state: state["cost"]["overlap"].update(matrix=[0, 0, 0])), "matrix"),
        (broken(lambda state: state["calibration"].pop("head")), "head"),
        (broken(lambda state: state["calibration"]["suffix"].update(precision=[0.0] * 64)), "precision"),
        (broken(lambda state: state["calibration"]["suffix"].update(weights=["a"] * 8)), "weights"),
        (broken(lambda state: state["asking"]["mean_yield"].update(model=None)), "model"),
    ],
)
def test_a_state_that_is_wrong_is_refused_by_name_and_nothing_of_it_kept(
    state: dict[str, Any], name: str
) -> None:
    controller = taught()
    with pytest.raises(ValueError, match=name):
        controller.restore(state, 0.0)
    assert controller.state() == new().state()


def test_a_file_holds_what_was_saved_for_its_owner_alone(tmp_path: Path) -> None:
    path, state = state_path(tmp_path / "state", **NAMES), taught().state()
    save(path, state)
    save(path, state)
    found = load(path)
    assert found is not None
    assert found[0] == json.loads(json.dumps(state))
    assert 0 <= found[1] < 60
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_each_model_arithmetic_device_and_configuration_has_its_file(tmp_path: Path) -> None:
    others = [state_path(tmp_path, **{**NAMES, name: "other"}) for name in NAMES]
    assert len({state_path(tmp_path, **NAMES), *others}) == 5


def test_no_file_is_nothing_learnt(tmp_path: Path) -> None:
    assert load(tmp_path / "none.json") is None


@pytest.mark.parametrize("damage", ["", "{}", "[1, 2", '{"saved_at": 1, "state": "{}", "digest": "0"}'])
def test_a_corrupt_file_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(damage)
    with pytest.raises(ValueError, match="is corrupt"):
        load(path)


def test_a_changed_digit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save(path, {"version": 1, "noise": 0.125})
    path.write_text(path.read_text().replace("0.125", "0.126"))
    with pytest.raises(ValueError, match="digest"):
        load(path)
