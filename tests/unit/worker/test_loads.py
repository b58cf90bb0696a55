"""Which rows count as load, what is kept of the counts, and what becomes of a bad file."""

import json
from pathlib import Path

import numpy as np
import pytest

from services.worker.loads import WINDOW_TOKENS, LoadWindow
from services.worker.loads_file import loads_path, read_loads, save_loads
from services.worker.step import Stepper
from services.worker.warm_up import small_batches
from tests.groups import prompt_of, scheduled
from tests.unit.worker.runs import Run

NUM_LAYERS, NUM_EXPERTS, NUM_EXPERTS_PER_TOKEN = 2, 8, 3
SHAPE = (NUM_LAYERS, NUM_EXPERTS)


@pytest.fixture
def counting(loaded: Stepper) -> tuple[Stepper, LoadWindow]:
    """A stepper that counts, on the runner of the one that is loaded."""
    window = LoadWindow(*SHAPE)
    return Stepper(loaded._runner, loaded.facts, None, None, loads=window), window


def test_a_prompt_and_each_output_token_count_once(counting: tuple[Stepper, LoadWindow]) -> None:
    stepper, window = counting
    sequence = scheduled(0, prompt_of(0, 20), temperature=0)
    Run(stepper).until([sequence], 6, max_rows=8)
    # The last token has not been computed.
    assert window.num_tokens == 20 + 5
    assert (window.loads.sum(1) == NUM_EXPERTS_PER_TOKEN * window.num_tokens).all()


@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_drafts_count_where_they_were_accepted(counting: tuple[Stepper, LoadWindow], num_right: int) -> None:
    stepper, window = counting
    sequences = [scheduled(index, prompt_of(index, 20), temperature=0) for index in range(2)]
    truth = Run(stepper).until(sequences, 6)
    stepper.forget_all()
    window.restore(np.zeros(SHAPE), 0)
    drafted = [scheduled(index, prompt_of(index, 20), temperature=0) for index in range(2)]

    def draft(sequence):
        rest = truth[sequence.id][len(sequence.output) :]
        return [*rest[:num_right], *((token + 1) % 90 for token in rest[num_right:])]

    Run(stepper).until(drafted, 6, draft=draft)
    num_kept = sum(sequence.num_computed for sequence in drafted)
    assert window.num_tokens == num_kept
    assert (window.loads.sum(1) == NUM_EXPERTS_PER_TOKEN * num_kept).all()


def test_a_sequence_that_fails_counts_nothing(counting: tuple[Stepper, LoadWindow]) -> None:
    stepper, window = counting
    failing = scheduled(0, prompt_of(0, 9), bad_words=tuple((token,) for token in range(97)))
    Run(stepper).step([failing])
    assert window.num_tokens == 0


def test_warming_up_counts_nothing(counting: tuple[Stepper, LoadWindow]) -> None:
    stepper, window = counting
    stepper.warm_up(small_batches(stepper.facts))
    assert window.num_tokens == 0
    assert not window.loads.any()


def test_old_tokens_count_less_and_less() -> None:
    window = LoadWindow(1, 2)
    first, second = np.zeros((1, 1000, 1), dtype=np.int16), np.ones((1, 1000, 1), dtype=np.int16)
    for chosen in (first, second):
        for _ in range(2 * WINDOW_TOKENS // 1000):
            window.add(chosen, np.arange(1000))
            assert window.num_tokens <= WINDOW_TOKENS
            assert window.loads.sum() == pytest.approx(window.num_tokens)
    assert window.loads[0, 1] > 3 * window.loads[0, 0] > 0


def test_loads_are_kept_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "loads.json"
    loads = np.arange(16.0).reshape(SHAPE)
    save_loads(path, loads, 40)
    found = read_loads(path, SHAPE)
    assert found is not None
    assert np.array_equal(found[0], loads)
    assert found[1] == 40
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_each_config_has_a_file_of_its_own(tmp_path: Path) -> None:
    found = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"name": name}))
        found |= {loads_path(tmp_path, tmp_path / name, shape) for shape in (SHAPE, (3, 8))}
    assert len(found) == 4


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _changed(content: bytes) -> bytes:
    return content.replace(b"15.0", b"25.0")


def _of_another_format(content: bytes) -> bytes:
    return b'{"format": "outrider expert loads 0"}'


def _of_no_text(content: bytes) -> bytes:
    return json.dumps(json.loads(content) | {"body": 1}).encode()


@pytest.mark.parametrize(
    "damage", [_cut, _changed, _of_another_format, _of_no_text, lambda _: b"", lambda _: b"[]"]
)
def test_a_file_that_cannot_be_used_is_as_none(tmp_path: Path, damage) -> None:
    path = tmp_path / "loads.json"
    save_loads(path, np.arange(16.0).reshape(SHAPE), 40)
    path.write_bytes(damage(path.read_bytes()))
    assert read_loads(path, SHAPE) is None


def test_loads_of_another_shape_are_as_none(tmp_path: Path) -> None:
    path = tmp_path / "loads.json"
    save_loads(path, np.ones((1, 8)), 40)
    assert read_loads(path, SHAPE) is None
    assert read_loads(tmp_path / "missing.json", SHAPE) is None


def test_what_was_left_half_written_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "loads.json"
    path.with_suffix(".new").write_text("half")
    save_loads(path, np.ones(SHAPE), 40)
    assert read_loads(path, SHAPE) is not None
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    save_loads(tmp_path / "file" / "loads.json", np.ones(SHAPE), 40)
