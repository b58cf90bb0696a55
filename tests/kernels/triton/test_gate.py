"""The choice of experts."""

import pytest
import torch

from outrider.kernels import load_kernels
from outrider.kernels.interface import Choice
from outrider.kernels.triton.gate import gate
from tests.kernels.exactness import draw, gate_rule

reference = load_kernels("torch")


def assert_same_choice(choice: Choice, expected: Choice) -> None:
    assert torch.equal(choice.experts, expected.experts)
    torch.testing.assert_close(choice.weights, expected.weights, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("E", "num_groups", "num_kept_groups", "A"),
    [
        (384, 1, 1, 8),  # Kimi K2.5
        (256, 8, 4, 8),  # DeepSeek-V3
        (8, 4, 2, 3),
        (30, 5, 2, 4),
        (512, 1, 1, 16),
        (16, 16, 5, 5),  # a group is one expert
        (1, 1, 1, 1),
        (7, 1, 1, 7),
    ],
)
@pytest.mark.parametrize("normalize_weights", [True, False])
def test_the_choice_is_that_of_torch(E, num_groups, num_kept_groups, A, normalize_weights):
    chosen = gate_rule(
        num_experts_per_token=A,
        num_groups=num_groups,
        num_kept_groups=num_kept_groups,
        normalize_weights=normalize_weights,
        scaling=2.5,
    )
    logits, bias = 2 * draw(12, E), 0.1 * draw(E, seed=2)
    assert_same_choice(gate(logits, bias, chosen), reference.gate(logits, bias, chosen))


def test_weights_are_as_close_to_float64_as_torchs():
    logits, bias = 3 * draw(40, 64), draw(64, seed=2)
    chosen = gate_rule(num_experts_per_token=6, scaling=2.827)
    choice = gate(logits, bias, chosen)
    scores = logits.double().sigmoid().gather(1, choice.experts)
    exact = 2.827 * scores / scores.sum(1, keepdim=True)
    error = (choice.weights - exact).abs().max()
    assert error <= 2 * (reference.gate(logits, bias, chosen).weights - exact).abs().max()


def test_the_bias_chooses_but_does_not_weigh():
    logits, bias = torch.tensor([[3.0, 2.0, 0.0]]), torch.tensor([0.0, 0.0, 9.0])
    choice = gate(logits, bias, gate_rule(normalize_weights=False))
    assert choice.experts.tolist() == [[2, 0]]
    assert choice.weights.tolist()[0] == pytest.approx([0.5, torch.tensor(3.0).sigmoid().item()])


def test_equal_scores_go_to_the_lower_expert():
    choice = gate(torch.zeros(1, 384), torch.zeros(384), gate_rule(num_experts_per_token=5))
    assert choice.experts.tolist() == [[0, 1, 2, 3, 4]]


def test_equal_groups_go_to_the_lower_group():
    grouped = gate_rule(num_groups=8, num_kept_groups=2, num_experts_per_token=4)
    assert gate(torch.zeros(1, 16), torch.zeros(16), grouped).experts.tolist() == [[0, 1, 2, 3]]


def test_a_group_is_judged_by_its_two_best_experts():
    # One outstanding expert in the first group, two good ones in the second.
    logits = torch.tensor([[4.0, -9.0, -9.0, 1.0, 1.0, -9.0]])
    assert gate(logits, torch.zeros(6), gate_rule(num_groups=2)).experts.tolist() == [[3, 4]]


def test_experts_of_dropped_groups_are_not_chosen_even_if_all_kept_scores_are_negative():
    bias = torch.tensor([-5.0, -5.0, -6.0, -6.0])
    assert gate(torch.zeros(1, 4), bias, gate_rule(num_groups=2)).experts.tolist() == [[0, 1]]


@pytest.mark.parametrize("num_groups", [1, 4])
def test_tokens_that_overflowed_choose_distinct_experts_and_spoil_no_other(num_groups):
    chosen = gate_rule(num_experts_per_token=4, num_groups=num_groups, num_kept_groups=(num_groups + 1) // 2)
    logits, bias = draw(4, 24), torch.zeros(24)
    logits[1], logits[2, 5] = torch.nan, torch.nan
    choice = gate(logits, bias, chosen)
    assert all(len(set(row)) == 4 and set(row) <= set(range(24)) for row in choice.experts.tolist())
    assert_same_choice(
        Choice(experts=choice.experts[[0, 3]], weights=choice.weights[[0, 3]]),
        reference.gate(logits[[0, 3]], bias, chosen),
    )


def test_a_token_chooses_the_same_alone_and_among_others():
    logits, bias, chosen = draw(9, 64), draw(64, seed=2), gate_rule(num_experts_per_token=6)
    together = gate(logits, bias, chosen)
    for row in range(9):
        alone = gate(logits[row : row + 1], bias, chosen)
        assert torch.equal(alone.experts[0], together.experts[row])
        assert torch.equal(alone.weights[0], together.weights[row])


def test_no_tokens_choose_nothing():
    assert gate(torch.zeros(0, 8), torch.zeros(8), gate_rule()).experts.shape == (0, 2)
