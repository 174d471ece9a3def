"""A draw depends on its place alone, and no two places share one."""

import numpy as np
import torch

from runtime.seeding import Purpose, generator, normal, normals, permutation, uniform, uniforms


def test_the_same_place_gives_the_same_numbers():
    assert torch.equal(
        normal(5, Purpose.NOISE, 3, 7, (2, 4)), normal(5, Purpose.NOISE, 3, 7, (2, 4))
    )


def test_places_differ_in_seed_purpose_step_and_slot():
    places = [
        (seed, purpose, k, j)
        for seed in (0, 1, 2**64)
        for purpose in Purpose
        for k in (0, 1)
        for j in (0, 1)
    ]
    first = {tuple(generator(*place).random(2)) for place in places}
    assert len(first) == len(places)


def test_draws_are_those_of_a_generator_made_for_the_place():
    for place in (
        (0, Purpose.TIME, 0, 0),
        (2**64 + 5, Purpose.NOISE, 2**40, 3),
        (7, Purpose.MIRROR, 1, 2),
    ):
        expected = generator(*place).standard_normal((3, 5), dtype=np.float32)
        assert np.array_equal(normal(*place, (3, 5)).numpy(), expected)
        assert uniform(*place) == generator(*place).random(dtype=np.float32)
        assert np.array_equal(normal(*place, (3, 5)).numpy(), expected)


def test_several_slots_have_the_draws_of_each():
    slots = range(3, 9)
    together = normals(7, Purpose.POSTERIOR, 5, slots, (2, 3))
    assert torch.equal(
        together, torch.stack([normal(7, Purpose.POSTERIOR, 5, j, (2, 3)) for j in slots])
    )
    assert uniforms(7, Purpose.TIME, 5, slots).tolist() == [
        uniform(7, Purpose.TIME, 5, j) for j in slots
    ]


def test_fifty_thousand_starts_are_distinct_and_standard_normal():
    starts = np.array(
        [generator(0, Purpose.SAMPLING_START, 0, j).standard_normal(4) for j in range(50_000)]
    )
    assert len(np.unique(starts[:, 0])) == 50_000
    assert abs(starts.mean()) < 0.01
    assert abs(starts.std() - 1) < 0.01
    assert np.abs(np.corrcoef(starts.T) - np.eye(4)).max() < 0.02


def test_uniform_numbers_lie_in_the_half_open_unit_interval():
    u = np.array([uniform(0, Purpose.TIME, k, 0) for k in range(4000)])
    assert u.min() >= 0
    assert u.max() < 1
    assert np.float32(u.max()) < 1
    assert abs(u.mean() - 0.5) < 0.02


def test_an_epoch_visits_every_record_once_in_an_order_of_its_own():
    first, second = permutation(3, 0, 100), permutation(3, 1, 100)
    assert sorted(first) == list(range(100))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, permutation(3, 0, 100))
