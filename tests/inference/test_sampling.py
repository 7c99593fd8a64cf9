"""The choice of a token: what each knob lets through."""

from collections import Counter

import pytest
import torch

from megalith.errors import UserError
from megalith.inference.sampling import Sampling, choose

LOGITS = torch.tensor([0.1, 2.0, -1.0, 2.0, 1.0])


def drawn(sampling: Sampling, times: int = 400) -> Counter:
    generator = torch.Generator().manual_seed(sampling.seed)
    return Counter(choose(LOGITS, sampling, generator) for _ in range(times))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"temperature": 5.0, "top_k": 1}])
def test_greedy_takes_the_lowest_of_equals_whatever_the_seed(greedy, seed):
    assert drawn(Sampling(seed=seed, **greedy), 20) == {1: 20}


def test_top_k_keeps_the_k_most_likely():
    assert set(drawn(Sampling(temperature=3.0, top_k=3))) == {1, 3, 4}
    assert set(drawn(Sampling(temperature=3.0, top_k=100))) == set(drawn(Sampling(temperature=3.0, top_k=0)))


def test_top_p_keeps_the_smallest_set_with_that_mass():
    # softmax: 0.0569, 0.3806, 0.0189, 0.3806, 0.1400 -> in order 0.381, 0.761, 0.901
    assert set(drawn(Sampling(temperature=1.0, top_k=0, top_p=0.3))) == {1}
    assert set(drawn(Sampling(temperature=1.0, top_k=0, top_p=0.7))) == {1, 3}
    assert set(drawn(Sampling(temperature=1.0, top_k=0, top_p=0.8))) == {1, 3, 4}


def test_frequencies_follow_the_softmax_at_the_temperature():
    counts = drawn(Sampling(temperature=2.0, top_k=0), 20_000)
    expected = torch.softmax(LOGITS / 2.0, dim=0)
    for token in range(5):
        assert counts[token] / 20_000 == pytest.approx(expected[token].item(), abs=0.015)


def test_same_seed_same_draws():
    assert drawn(Sampling(seed=7)) == drawn(Sampling(seed=7)) != drawn(Sampling(seed=8))


def test_every_wrong_value_is_named():
    with pytest.raises(UserError) as error:
        Sampling(temperature=-1.0, top_k=-2, top_p=0.0)
    assert all(text in str(error.value) for text in ("temperature=-1.0", "top_k=-2", "top_p=0.0"))
    with pytest.raises(UserError, match="temperature=nan"):
        Sampling(temperature=float("nan"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_weights_are_not_sampled_from(temperature):
    with pytest.raises(UserError, match="not finite"):
        choose(torch.tensor([0.0, float("nan")]), Sampling(temperature), torch.Generator())


@pytest.mark.parametrize("extreme", [{"temperature": 1e-320}, {"temperature": 1e-45}, {"top_p": 1e-300}])
def test_extreme_values_end_at_the_likeliest(extreme):
    assert set(drawn(Sampling(top_k=0, **extreme), 50)) <= {1, 3}  # equals share it


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_beyond_the_generator_is_refused(seed):
    with pytest.raises(UserError, match=f"seed={seed}"):
        Sampling(seed=seed)
