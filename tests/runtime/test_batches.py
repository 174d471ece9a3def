"""Training batches are a pure function of (seed, step, slot)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_latents import CLASS_NAMES, LATENT_SHAPE, NUM_IMAGES, mean_of

from runtime import batches
from runtime.batches import (
    Batch,
    TrainingStream,
    posterior_sample,
    training_loader,
)
from runtime.errors import UserError
from runtime.latents import LatentDataset

GLOBAL_BATCH, NUM_STEPS = 8, 6  # 48 images: the stream runs through several epochs of 10


@pytest.fixture
def latents(make_latents: Any) -> Path:
    return make_latents()


def loader(folder: Path, **changes: Any) -> Iterable[Batch]:
    settings = {
        "seed": 3,
        "global_batch_size": GLOBAL_BATCH,
        "num_processes": 1,
        "process_index": 0,
        "micro_batch_size": GLOBAL_BATCH,
        "first_step": 0,
        "num_steps": NUM_STEPS,
        "mirror": True,
        "num_workers": 0,
    }
    return training_loader(LatentDataset(folder), **{**settings, **changes})


def joined(batches: Iterable[Batch]) -> Batch:
    return Batch(*map(torch.cat, zip(*batches, strict=True)))


def same(one: Batch, other: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_batches_do_not_depend_on_micro_batches_or_workers(latents: Path) -> None:
    whole = joined(loader(latents))
    assert len(whole.x) == GLOBAL_BATCH * NUM_STEPS
    assert same(whole, joined(loader(latents, micro_batch_size=2)))
    assert same(whole, joined(loader(latents, micro_batch_size=3)))  # 3, 3 and 2
    assert same(whole, joined(loader(latents, num_workers=2, micro_batch_size=4)))


def test_workers_may_follow_reads_of_the_main_process(latents: Path) -> None:
    """Whose open files they inherit."""
    dataset = LatentDataset(latents)
    settings = {
        "seed": 3, "global_batch_size": GLOBAL_BATCH, "num_processes": 1, "process_index": 0,
        "micro_batch_size": 1, "first_step": 0, "num_steps": 25, "mirror": True,
    }  # fmt: skip
    here = joined(training_loader(dataset, **settings, num_workers=0))
    assert same(here, joined(training_loader(dataset, **settings, num_workers=2)))


def test_batches_do_not_depend_on_how_many_images_are_worked_on_at_a_time(
    latents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = joined(loader(latents))
    monkeypatch.setattr(batches, "CHUNK", 3)
    assert same(whole, joined(loader(latents)))


def test_a_posterior_draw_does_not_depend_on_its_batch() -> None:
    """To the last bit, wherever in memory the numbers lie."""
    generator = torch.Generator().manual_seed(0)
    moments = 3 * torch.randn(7, 6, 5, 11, generator=generator)
    draw = torch.randn(7, 3, 5, 11, generator=generator)
    whole = posterior_sample(moments, draw)
    for size in (1, 2, 3):
        parts = zip(moments.split(size), draw.split(size), strict=True)
        assert torch.equal(torch.cat([posterior_sample(*part) for part in parts]), whole)
    alone = [posterior_sample(moments[i : i + 1].clone(), draw[i : i + 1]) for i in range(7)]
    assert torch.equal(torch.cat(alone), whole)
    mean, log_variance = moments.double().chunk(2, dim=1)
    expected = mean + (log_variance / 2).exp() * draw
    torch.testing.assert_close(whole.double(), expected, rtol=1e-5, atol=1e-6)


def test_batches_do_not_depend_on_the_number_of_processes(latents: Path) -> None:
    whole = list(loader(latents))
    shares = [
        list(loader(latents, num_processes=4, process_index=index, micro_batch_size=2))
        for index in range(4)
    ]
    for step, parts in enumerate(zip(*shares, strict=True)):
        assert same(whole[step], joined(parts))


def test_a_restart_goes_on_where_it_was(latents: Path) -> None:
    whole = list(loader(latents))
    rest = list(loader(latents, first_step=4))
    assert len(rest) == NUM_STEPS - 4
    assert all(same(a, b) for a, b in zip(whole[4:], rest, strict=True))


def test_each_epoch_visits_every_record_once_in_another_order(latents: Path) -> None:
    stream = TrainingStream(LatentDataset(latents), 0, GLOBAL_BATCH, mirror=False)
    steps = [stream.indices(step, range(GLOBAL_BATCH)) for step in range(4)]
    visits = np.concatenate(steps)[: 3 * NUM_IMAGES].tolist()
    epochs = [visits[start : start + NUM_IMAGES] for start in range(0, len(visits), NUM_IMAGES)]
    assert all(sorted(epoch) == list(range(NUM_IMAGES)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3


def test_another_seed_is_another_run(latents: Path) -> None:
    one, other = joined(loader(latents)), joined(loader(latents, seed=4))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_labels_belong_to_their_latents(make_latents: Any) -> None:
    dataset = LatentDataset(make_latents(log_variance=-30.0))
    batch = TrainingStream(dataset, 0, NUM_IMAGES, mirror=False).batch(0, range(NUM_IMAGES))
    for x, label in zip(batch.x, batch.y.tolist(), strict=True):
        means = [dataset.scaling.normalise(mean_of(i, dataset.passport)) for i in range(NUM_IMAGES)]
        nearest = min(range(NUM_IMAGES), key=lambda i: float((means[i] - x).square().sum()))
        torch.testing.assert_close(x, means[nearest], rtol=1e-6, atol=1e-6)
        assert label == nearest % len(CLASS_NAMES)


def test_posterior_draws_and_mirrors_differ_between_epochs(latents: Path) -> None:
    """The same image is drawn afresh at each visit, and about half of the visits are mirrored."""
    dataset = LatentDataset(latents)
    stream = TrainingStream(dataset, 0, NUM_IMAGES, mirror=True)
    num_epochs = 60
    visits: list[list[torch.Tensor]] = [[] for _ in range(NUM_IMAGES)]
    for epoch in range(num_epochs):
        indices = stream.indices(epoch, range(NUM_IMAGES)).tolist()
        for index, x in zip(indices, stream.batch(epoch, range(NUM_IMAGES)).x, strict=True):
            visits[index].append(x)
    mirrored, draws = 0, []
    for index, seen in enumerate(visits):
        mean = dataset.scaling.normalise(mean_of(index, dataset.passport))
        closer = [(x - mean).norm() > (x - mean.flip(-1)).norm() for x in seen]
        mirrored += sum(map(bool, closer))
        upright = torch.stack([x.flip(-1) if m else x for x, m in zip(seen, closer, strict=True)])
        draws.append((upright - mean).flatten(1))
        spread = draws[-1].std()
        expected = dataset.scaling.factor * torch.tensor(-2.0 / 2).exp()
        torch.testing.assert_close(spread, expected, rtol=0.15, atol=0)
    assert abs(mirrored / (NUM_IMAGES * num_epochs) - 0.5) < 0.1
    assert torch.pdist(torch.cat(draws)).min() > 0.01  # no draw is used twice


def test_least_log_variance_gives_the_mean(make_latents: Any) -> None:
    dataset = LatentDataset(make_latents(log_variance=-30.0))
    stream = TrainingStream(dataset, 0, NUM_IMAGES, mirror=False)
    x = stream.batch(0, range(NUM_IMAGES)).x
    for slot, index in enumerate(stream.indices(0, range(NUM_IMAGES)).tolist()):
        mean = dataset.scaling.normalise(mean_of(index, dataset.passport))
        torch.testing.assert_close(x[slot], mean, rtol=0, atol=1e-6)


def test_latents_without_posterior_are_read_as_they_are(make_latents: Any) -> None:
    dataset = LatentDataset(make_latents(kind="latents"))
    stream = TrainingStream(dataset, 0, NUM_IMAGES, mirror=False)
    x = stream.batch(0, range(1)).x[0]
    mean = mean_of(int(stream.indices(0, range(1))[0]), dataset.passport)
    assert torch.equal(x, dataset.scaling.normalise(mean))


def test_draws_are_what_they_say(latents: Path) -> None:
    batch = joined(loader(latents, num_steps=200))
    assert batch.x.dtype == batch.noise.dtype == batch.u.dtype == torch.float32
    assert batch.y.dtype == torch.int64 and batch.noise.shape[1:] == LATENT_SHAPE
    assert abs(batch.noise.mean()) < 0.02 and abs(batch.noise.std() - 1) < 0.02
    assert torch.pdist(batch.noise.flatten(1)).min() > 0.1  # no draw is used twice
    for uniform in (batch.u, batch.u_drop):
        assert uniform.min() >= 0 and uniform.max() < 1
        assert abs(uniform.mean() - 0.5) < 0.03 and abs(uniform.var() - 1 / 12) < 0.01
    assert abs(torch.corrcoef(torch.stack([batch.u, batch.u_drop]))[0, 1]) < 0.1


def test_mirror_without_mirrored_copies_is_refused(make_latents: Any) -> None:
    folder = make_latents(mirrored_copies=False)
    with pytest.raises(UserError, match="no mirrored copies"):
        loader(folder, mirror=True)
    loader(folder, mirror=False)


def test_fewer_images_than_a_batch_are_refused(latents: Path) -> None:
    with pytest.raises(UserError, match=r"10 images.*global_batch_size 12 \(2 processes\)"):
        loader(latents, global_batch_size=12, num_processes=2)


def test_a_batch_that_the_processes_cannot_share_is_refused(latents: Path) -> None:
    with pytest.raises(UserError, match=r"8 is not divisible by the 3 processes"):
        loader(latents, num_processes=3)
