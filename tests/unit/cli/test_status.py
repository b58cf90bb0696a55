"""How `outrider stats` shows the pairs."""

from outrider.cli.status import table


def test_each_pair_has_a_column_that_is_as_wide_as_its_widest_value() -> None:
    pairs = [{"scheduler": "a:1", "step_ms": "17.12"}, {"scheduler": "long:50052", "step_ms": "0"}]
    assert list(table(pairs)) == ["scheduler  a:1    long:50052", "step_ms    17.12  0"]


def test_no_pairs_are_no_lines() -> None:
    assert list(table([])) == []
