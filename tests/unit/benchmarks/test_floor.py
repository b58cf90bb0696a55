import pytest

from benchmarks import floor, published
from outrider.cli.shape import Shape


@pytest.mark.parametrize("model", published.MODELS)
@pytest.mark.parametrize("num_rows", [1, 8, 128])
def test_the_weights_of_all_kernels_are_those_that_the_plan_counts(model: str, num_rows: int) -> None:
    planned = Shape.from_config(published.raw_config(model)).step(num_rows, 1.0).bytes
    assert sum(work.weight_bytes for work in floor.step_work(model, num_rows)) == pytest.approx(
        planned, rel=2e-3
    )


def test_a_token_of_kimi_k25_takes_the_operations_of_its_active_weights() -> None:
    works = floor.step_work("kimi-k2.5", 1)
    products = sum(work.operations for work in works if work.kernel != "mla")
    # 32 billion active parameters, of which the embedding, 1.2 billion, is not multiplied.
    assert products == pytest.approx(2 * 31.6e9, rel=0.02)


def test_devices_share_the_weights_but_each_reads_the_whole_cache() -> None:
    by_kernel = {work.kernel: work for work in floor.step_work("kimi-k2.5", 8)}
    experts, attention = by_kernel["moe_gate_up"], by_kernel["mla"]
    assert experts.seconds("H200", 8) == pytest.approx(experts.seconds("H200", 1) / 8)
    assert attention.seconds("H200", 8) > 0.9 * attention.seconds("H200", 1)


def test_many_rows_are_bound_by_multiplying() -> None:
    work = next(work for work in floor.step_work("kimi-k2.5", 4096) if work.kernel == "linear, outward")
    assert work.seconds("B200", 1) == pytest.approx(work.operations / floor.RATES["B200"]["bf16"])
