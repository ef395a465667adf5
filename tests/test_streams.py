"""Randomness belongs to the sample."""

import random

import numpy as np
import pytest
import torch

from robustvit.core.streams import philox, sample_streams, seeded_globals, seeded_order, seeded_subset

DRAWS = {
    "uniform": lambda s: s.uniform((3, 5), at="start"),
    "normal": lambda s: s.normal((3, 5), at="start"),
    "integers": lambda s: s.integers(7, (15,), at="start"),
}


@pytest.mark.parametrize(
    ("word", "key", "expected"),
    [
        (0, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (0xFFFFFFFF, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ],
)
def test_philox_gives_the_published_answers(word, key, expected):
    words = philox(tuple(torch.tensor([word]) for _ in range(4)), key)
    assert [int(w) for w in words] == expected


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_an_image_draws_the_same_whatever_its_neighbours(draw):
    alone = draw(sample_streams(3, [17]))
    among = draw(sample_streams(3, [5, 99, 17, 2]))
    assert torch.equal(alone[0], among[2])
    assert torch.equal(draw(sample_streams(3, [5, 17])[torch.tensor([1])]), alone)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_seed_id_name_and_place_each_change_the_draw(draw):
    base = sample_streams(3, [17])
    others = [sample_streams(4, [17]), sample_streams(3, [18]), base.child("x"), base.child("x", 1), base.child("1")]
    drawn = [draw(base), *(draw(other) for other in others), draw(base.child(1))]
    for i, one in enumerate(drawn):
        for other in drawn[i + 1 :]:
            assert not torch.equal(one, other)
    assert not torch.equal(base.uniform((9,), at=0), base.uniform((9,), at=1))


def test_distributions_are_what_they_say():
    streams = sample_streams(0, range(400))
    uniform, normal = streams.uniform((500,), at=0), streams.normal((500,), at=0)
    integers = streams.integers(5, (500,), at=0)
    assert 0 < uniform.min() < 1e-4
    assert 1 - 1e-4 < uniform.max() < 1
    assert uniform.mean().item() == pytest.approx(0.5, abs=3e-3)
    assert uniform.var().item() == pytest.approx(1 / 12, abs=1e-3)
    assert normal.mean().item() == pytest.approx(0, abs=1e-2)
    assert normal.var().item() == pytest.approx(1, abs=1e-2)
    assert (normal**4).mean().item() == pytest.approx(3, abs=0.1)
    assert torch.bincount(integers.flatten()).float().div(200_000).sub(0.2).abs().max() < 5e-3


def test_float64_draws_the_numbers_of_float32():
    streams = sample_streams(1, range(8))
    assert torch.equal(streams.uniform((50,), at=0).double(), streams.uniform((50,), at=0, dtype=torch.float64))


def test_a_larger_subset_contains_the_smaller():
    small, large = (set(seeded_subset(1000, n, 7, "images").tolist()) for n in (50, 80))
    assert small < large
    assert small != set(seeded_subset(1000, 50, 8, "images").tolist())
    assert sorted(seeded_order(100, 0, "epoch", 1).tolist()) == list(range(100))
    assert seeded_order(100, 0, "epoch", 1).tolist() != seeded_order(100, 0, "epoch", 2).tolist()


def test_global_generators_are_seeded_inside_and_untouched_outside():
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with seeded_globals("a", 1):
        first = draw()
    with pytest.raises(RuntimeError), seeded_globals("a", 1):
        assert draw() == first
        raise RuntimeError
    assert draw() == expected
