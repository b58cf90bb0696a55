from itertools import pairwise

import pytest

from benchmarks import launches, published
from benchmarks.gpu.bench import TINY


@pytest.mark.parametrize("num_rows", [1, 5])
def test_a_layer_more_is_the_same_launches_more(num_rows: int) -> None:
    config = published.read_config("kimi-k2.5", **TINY)
    counts = [launches.count_layers(config, num_rows, num_layers) for num_layers in (2, 3, 4)]
    one, another = (after - before for before, after in pairwise(counts))
    assert one == another
    assert one["gate_up"] == one["down"] == one["gate"] == one["write_latent"] == 1
    assert counts[0]["choose"] == 1


def test_the_rows_of_a_step_do_not_show_in_its_launches() -> None:
    config = published.read_config("kimi-k2.5", **TINY)
    assert launches.count_layers(config, 1, 3) == launches.count_layers(config, 8, 3)


def test_a_layer_of_a_rank_exchanges_twice_and_adds_two_sums_of_parts() -> None:
    config = published.read_config("kimi-k2.5", **TINY)
    alone, of_two = (launches.count_layers(config, 4, 3, num_ranks) for num_ranks in (1, 2))
    assert launches.EXCHANGE not in alone
    # Three layers' attention and feed-forward, then the logits.
    assert (of_two[launches.EXCHANGE], of_two["add_parts"]) == (7, 6)
    assert of_two["gate_up"] == alone["gate_up"]
