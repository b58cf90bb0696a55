"""What ranks exchange on paper, in several forms."""

from itertools import pairwise

import pytest

from benchmarks import exchanges, published


@pytest.mark.parametrize("model", published.MODELS)
def test_by_columns_an_eighth_of_the_outputs_travels_and_sums_besides(model: str) -> None:
    shard = exchanges.shard_of(model, 8)
    (whole,) = (item for item in shard.exchanges(64) if item.what == "experts")
    columns, sums = exchanges.by_columns(whole, shard)
    # Nine rows of a token, of which eight are routed experts'.
    assert (8 * columns.bytes, 9 * sums.bytes) == (whole.bytes, columns.bytes)
    assert 9 * exchanges.summed(whole, shard)[0].bytes == whole.bytes


def test_a_form_of_more_collectives_pays_for_many_rows_alone() -> None:
    first = exchanges.first_ahead("kimi-k2.5", "by columns", "gathered", "H200")
    shard = exchanges.shard_of("kimi-k2.5", 8)

    def ahead(num_rows: int) -> float:
        return exchanges.milliseconds(shard, num_rows, "gathered", "H200") - exchanges.milliseconds(
            shard, num_rows, "by columns", "H200"
        )

    assert first > 1
    assert ahead(first - 1) <= 0 < ahead(first)
    assert all(few < many for few, many in pairwise(ahead(number) for number in (1, 8, 64)))


def test_every_form_has_a_row_for_each_number_of_rows() -> None:
    rows = list(exchanges.form_rows("kimi-k2.5", 8, (1, 8)))
    assert [(row["rows"], row["outputs"]) for row in rows] == [
        (number, form) for number in ("1", "8") for form in exchanges.FORMS
    ]
