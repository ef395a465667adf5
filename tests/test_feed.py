"""Training batches: each follows from its step alone, whoever makes it."""

import multiprocessing
import os
import random
import signal
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image

from robustvit.core.errors import UserError
from robustvit.core.streams import seeded_order, seeded_places
from robustvit.data import Batches, Canonical, Digits, Folder, Light, Mixing, Mixture, PadCrop, load_batches
from robustvit.data.arrays import InMemory
from robustvit.data.mixture import AGAIN, COPY, GENERATED
from robustvit.data.preprocess import Preprocess

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
INDEX = (1 << 32) - 1


def numbered(count, classes=10, size=4):
    """Images that show their own index in their first two pixels."""
    images = torch.zeros(count, 3, size, size, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = torch.arange(count) % 256, torch.arange(count) // 256
    return InMemory(images, torch.arange(count) % classes, f"{count} numbered images", classes)


def indices(images):
    return images[:, 0, 0, 0].long() + 256 * images[:, 0, 0, 1].long()


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("total", [1, 2, 3, 10, 999, 4096, 70_001])
def test_places_of_a_permutation_without_the_whole_of_it(total):
    whole = seeded_places(torch.arange(total), total, 0, "x")
    assert sorted(whole.tolist()) == list(range(total))
    some = torch.tensor([total - 1, 0, total // 2])
    assert torch.equal(seeded_places(some, total, 0, "x"), whole[some])
    if total > 10:
        assert not torch.equal(seeded_places(torch.arange(total), total, 1, "x"), whole)
        assert not torch.equal(seeded_places(torch.arange(total), total, 0, "y"), whole)


def test_places_are_spread_evenly():
    drawn = torch.stack([seeded_places(torch.tensor([3]), 20, seed, "x") for seed in range(600)])
    assert torch.bincount(drawn.flatten(), minlength=20).sub(30).abs().max() < 22
    huge = seeded_places(torch.arange(20_000), 50_000_000, 0, "x").double() / 50_000_000
    assert huge.mean().item() == pytest.approx(0.5, abs=0.01)
    assert abs(torch.corrcoef(torch.stack([huge[1:], huge[:-1]]))[0, 1].item()) < 0.03
    assert len(huge.unique()) == 20_000


def test_without_generated_images_each_epoch_is_its_own_order():
    real = numbered(1000)
    mixture = Mixture(real, 64, 10, seed=3, phase="head")
    assert mixture.steps_per_epoch == 15
    for step in (0, 7, 15, 31):
        epoch, within = divmod(step, 15)
        expected = seeded_order(1000, 3, "head", "order", epoch)[within * 64 : (within + 1) * 64]
        images, y, ids = mixture.take(step)
        assert torch.equal(indices(images), expected)
        assert torch.equal(ids, expected)
        assert torch.equal(y, expected % 10)
    small = Mixture(numbered(20), 64, 10)
    assert small.steps_per_epoch == 1
    assert sorted(indices(small.take(4)[0]).tolist()) == list(range(20))


def passes(total, order):
    """The images of one pass after the other, each with the number of its pass."""
    for number in range(100):
        yield from ((number, index) for index in order(number).tolist()[:total])


def plain_loop(real, made, size, fraction, steps, epoch, seed, phase):
    """(index, pass since the epoch began, is generated) of each row, with everything taken in turn."""
    count = real if fraction else min(size, real) * epoch
    reals = passes(count, lambda number: seeded_order(real, seed, phase, "order", number))
    others = passes(made, lambda number: seeded_places(torch.arange(made), made, seed, phase, "generated", number))
    taken = [0, 0]
    for step in range(steps):
        if step % epoch == 0:
            first = [taken[0] // count, taken[1] // max(made, 1)]
        rows = size if fraction else min(size, real)
        generated = int((step + 1) * rows * fraction) - int(step * rows * fraction)
        batch = [(*next(reals), False) for _ in range(rows - generated)]
        batch += [(*next(others), True) for _ in range(generated)]
        taken = [taken[0] + rows - generated, taken[1] + generated]
        yield [(index, number - first[made], made) for number, index, made in batch]


@pytest.mark.parametrize(
    ("real", "made", "size", "fraction", "epoch"),
    [
        (50, 7, 8, Fraction(3, 10), 7),
        (48, 33, 8, Fraction(1, 3), 6),
        (9, 40, 6, Fraction(7, 8), 2),
        (10, 5, 4, Fraction(1), 3),
        (3, 90, 8, Fraction(1, 2), 1),
        (50, 7, 8, Fraction(0), 6),
        (5, 7, 8, Fraction(0), 1),
        (50, 0, 8, Fraction(0), 6),
    ],
)
def test_batches_are_those_of_a_plain_loop(real, made, size, fraction, epoch):
    given = {"generated": numbered(made)} if made else {}
    options = {"ratio": float(fraction)} if fraction else {}
    for named in ({"seed": 3, "phase": "head"}, {}):
        mixture = Mixture(numbered(real), size, 10, **named, **given, **options)
        assert mixture.steps_per_epoch == epoch
        expected = plain_loop(real, made, size, fraction, 20, epoch, **{"seed": 0, "phase": "main", **named})
        for step, rows in enumerate(expected):
            batch = mixture.take(step)
            assert indices(batch.images).tolist() == [index for index, _, _ in rows]
            assert batch.is_generated.tolist() == [generated for _, _, generated in rows]
            assert batch.ids.tolist() == [i + number * AGAIN + made * GENERATED for i, number, made in rows]


@pytest.mark.parametrize("kinds", [(torch.uint8, torch.float32), (torch.float32, torch.uint8)])
def test_pixels_become_floats_only_where_they_meet_floats(kinds):
    real, made = (
        InMemory(torch.ones(1, 3, 2, 2).to(dtype), torch.zeros(1, dtype=torch.long), str(dtype)) for dtype in kinds
    )
    for ratio in (0.0, 0.25, 0.5, 0.75, 1.0):
        batch, mixed = Mixture(real, 4, 10, generated=made, ratio=ratio).take(0), 0 < ratio < 1
        assert batch.images.dtype == (torch.float32 if mixed else kinds[int(ratio)])
        for rows, dtype in ((~batch.is_generated, kinds[0]), (batch.is_generated, kinds[1])):
            assert (batch.images[rows] == (1 / 255 if mixed and dtype == torch.uint8 else 1)).all()


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.29, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("size", [7, 32, 100])
def test_the_ratio_holds_in_every_batch_and_exactly_over_time(ratio, size):
    mixture = Mixture(numbered(400), size, 10, generated=numbered(5000), ratio=ratio)
    assert mixture.steps_per_epoch == (-(-400 // size) if ratio else 400 // size)
    counts = []
    for step in range(60):
        _, y, ids = mixture.take(step)
        assert len(y) == size
        counts.append(int((ids & GENERATED > 0).sum()))
        assert abs(counts[-1] - ratio * size) < 1
        assert (ids[: size - counts[-1]] & GENERATED == 0).all()
    assert abs(sum(counts) - 60 * ratio * size) < 1
    if float(ratio * size).is_integer():
        assert set(counts) == {ratio * size}


@pytest.mark.parametrize("ratio", [0.3, 0.8])
def test_every_image_of_a_set_is_seen_equally_often(ratio):
    mixture = Mixture(numbered(130), 16, 10, generated=numbered(90), ratio=ratio)
    seen = {True: Counter(), False: Counter()}
    for step in range(150):
        images, _, ids = mixture.take(step)
        for index, is_generated in zip(indices(images).tolist(), (ids & GENERATED > 0).tolist(), strict=True):
            seen[is_generated][index] += 1
        for made, total in ((True, 90), (False, 130)):
            counts = [seen[made][index] for index in range(total)]
            assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.9])
def test_no_two_rows_of_an_epoch_share_a_stream(ratio):
    """Also where a set is so small that an image comes again within the epoch, or within the batch."""
    batches = Batches(Mixture(numbered(100), 20, 10, generated=numbered(7), ratio=ratio), 4, repeats=2)
    for epoch in range(4):
        steps = range(epoch * batches.steps_per_epoch, (epoch + 1) * batches.steps_per_epoch)
        ids = torch.cat([batches[step].ids for step in steps])
        assert len(ids.unique()) == len(ids) == 300
    if ratio == 0.9:
        assert (ids >= AGAIN).any()


def test_generated_images_are_another_draw_than_real_ones_of_the_same_index():
    same = InMemory(torch.full((8, 3, 9, 9), 200, dtype=torch.uint8), torch.zeros(8, dtype=torch.long), "same", 10)
    mixture = Mixture(same, 8, 10, generated=same, ratio=0.5)
    batch = Batches(mixture, 60, PadCrop())[0]
    again = Batches(mixture, 60, PadCrop())[0]
    assert equal(batch, again)
    by_index = {int(i): image for i, image in zip(batch.ids[:4], batch.images[:4], strict=True)}
    pairs = [(by_index[int(i) & INDEX], x) for i, x in zip(batch.ids[4:], batch.images[4:], strict=True)
             if int(i) & INDEX in by_index]  # fmt: skip
    assert pairs
    assert any(not torch.equal(real, made) for real, made in pairs)


def everything(workers=0, begin=0, seed=0):
    mixture = Mixture(numbered(200, size=9), 32, 10, seed=seed, generated=numbered(900, size=9), ratio=0.4)
    batches = Batches(mixture, 2, Canonical(), Mixing(), intensity=lambda progress: min(1, 0.1 + 2 * progress))
    return list(load_batches(batches, begin, workers))


def test_any_number_of_workers_and_any_beginning_give_the_same_batches():
    whole = everything()
    assert len(whole) == 14
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for workers, begin in ((2, 0), (1, 5), (0, 11), (2, 7)):
        made = everything(workers, begin)
        assert len(made) == 14 - begin
        assert all(equal(a, b) for a, b in zip(whole[begin:], made, strict=True))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == state
    assert not equal(everything(begin=11, seed=1)[0], whole[11])


def test_an_epoch_changes_an_image_anew_and_a_batch_does_not():
    real = InMemory(torch.randint(0, 256, (40, 3, 9, 9), dtype=torch.uint8), torch.arange(40) % 10, "some", 10)
    by_epoch = []
    for size in (10, 20):
        batches = Batches(Mixture(real, size, 10), 2, Canonical())
        for epoch in range(2):
            images = {}
            for step in range(epoch * (40 // size), (epoch + 1) * (40 // size)):
                batch = batches[step]
                images.update(zip(batch.ids.tolist(), batch.images, strict=True))
            by_epoch.append(images)
    for index in range(40):
        first, second, wide_first, wide_second = (images[index] for images in by_epoch)
        assert torch.equal(first, wide_first)
        assert torch.equal(second, wide_second)
    assert sum(not torch.equal(by_epoch[0][i], by_epoch[1][i]) for i in range(40)) > 35


@pytest.mark.parametrize("mixing", [None, Mixing()])
def test_repeated_augmentation_is_the_batch_as_it_is_and_augmented_copies(mixing):
    mixture = Mixture(Digits().open("train"), 30, 10)
    images, y, ids = mixture.take(5)
    batch = Batches(mixture, 1, Canonical(), mixing, repeats=2)[5]
    assert len(batch.images) == len(batch.y) == len(batch.ids) == 90
    plain, first, second = batch.images.split(30)
    assert torch.equal(plain, images if mixing is None else images.float() / 255)
    assert not torch.equal(first, second)
    assert torch.equal(batch.ids, torch.cat([ids, ids + COPY, ids + 2 * COPY]))
    hard = batch.y if mixing is None else batch.y[:30].argmax(1)
    assert torch.equal(hard[:30], y)
    if mixing is None:
        assert torch.equal(hard, y.repeat(3))
    else:
        assert batch.y[:30].max(1).values.min() == 1, "nothing is mixed into the plain ones"


def test_intensity_follows_the_progress():
    mixture = Mixture(Digits().open("train"), 64, 10)
    batches = Batches(mixture, 10, None, Mixing(), intensity=lambda progress: float(progress >= 0.5))
    soft = [bool((batches[step].y.max(1).values < 1).any()) for step in (0, 60, 109, 110, 160, 219)]
    assert soft[:3] == [False] * 3
    assert sum(soft[3:]) >= 2


def test_a_mistake_in_the_data_reaches_the_user_as_one_clear_line():
    wrong = InMemory(torch.zeros(64, 3, 4, 4, dtype=torch.uint8), torch.full((64,), 77), "wrong", None)
    for workers in (0, 1):
        with pytest.raises(UserError, match="^wrong: label 77 is outside the model's 10 classes"):
            next(load_batches(Batches(Mixture(wrong, 8, 10), 1), 0, workers))


def test_a_killed_worker_is_reported():
    batches = Batches(Mixture(numbered(4000), 4, 10), 1, Canonical(rand_augment=None))
    made = load_batches(batches, 0, 1)
    next(made)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(UserError, match="a data worker died"):
        list(made)


def test_no_step_lies_outside_the_phase():
    batches = Batches(Mixture(numbered(40), 8, 10), 2)
    assert len(batches) == 10
    for step in (-1, 10):
        with pytest.raises(IndexError):
            batches[step]


@pytest.fixture
def stripes(tmp_path):
    """Pictures of 160 x 48 whose left third is red, right third blue, and center square green."""
    for number in range(6):
        wide = np.zeros((48, 160, 3), dtype=np.uint8)
        wide[:, :53, 0], wide[:, 53:107, 1], wide[:, 107:, 2] = 250, 250, 250
        wide[number * 8, :, :] = 90
        (tmp_path / str(number % 2)).mkdir(exist_ok=True)
        Image.fromarray(wide).save(tmp_path / str(number % 2) / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("augmentation", [Light(jitter=0), Canonical(rand_augment=None, jitter=0, random_erasing=None)])
def test_crops_come_from_the_whole_picture(stripes, augmentation):
    folder = Folder(stripes, Preprocess(size=32, how="crop"))
    images = folder.open("train")
    assert images.take(torch.arange(6))[0][:, 0].amax() < 120
    batches = Batches(Mixture(images, 6, 2), 20, augmentation)
    seen = torch.cat([batches[step].images for step in range(20)])
    assert seen.shape[1:] == (3, 32, 32)
    for color in range(3):
        assert (seen[:, color].flatten(1).amax(1) > 200).any()
    small = Batches(Mixture(images, 2, 2), 20, augmentation)
    rows = {int(i): image for step in range(3) for i, image in zip(small[step].ids, small[step].images, strict=True)}
    for i, image in zip(batches[0].ids.tolist(), batches[0].images, strict=True):
        assert torch.equal(rows[i], image)  # whatever batch it sits in
    assert torch.equal(next(iter(load_batches(batches, 3, 1))).images, batches[3].images)


def test_a_part_of_the_whole_is_what_the_augmentation_cuts_out_of_pixels(tmp_path):
    (tmp_path / "0").mkdir()
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (48, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "0" / f"{number}.png")
    whole = Folder(tmp_path, Preprocess(size=48, how="squash")).open("train")
    for augmentation in (Light(), Light(interpolation="bilinear")):
        batches = Batches(Mixture(whole, 6, 1), 1, augmentation)
        pixels, _, ids = batches.mixture.take(0)
        expected = augmentation(pixels, batches.streams(0, ids).child("augmentation"))
        assert (expected.int() - batches[0].images.int()).abs().max() <= 2  # Pillow's kernels, rounded otherwise


def test_repeats_and_generated_images_with_whole_pictures(stripes):
    images = Folder(stripes, Preprocess(size=32, how="crop")).open("train")
    made = InMemory(torch.full((4, 3, 32, 32), 77, dtype=torch.uint8), torch.zeros(4).long(), "made")
    batch = Batches(Mixture(images, 4, 2, generated=made, ratio=0.5), 1, Light(jitter=0), repeats=2)[0]
    assert len(batch.images) == 12
    assert (batch.images[batch.is_generated] == 77).all()
    real = batch.images[~batch.is_generated]
    assert torch.equal(real[:2], images.take(batch.ids[:2] % (1 << 32))[0])
    assert not torch.equal(real[2:4], real[4:6])
    for ratio in (0.9, 1):  # a batch without any real image
        batches = Batches(Mixture(images, 4, 2, generated=made, ratio=ratio), 4, Light())
        assert any(batches[step].is_generated.all() for step in range(4))


def test_ids_say_which_image_which_copy_and_which_pass():
    """32 bits for the index, one for generated images, seven for the copy, the rest for the pass within an epoch."""
    batches = Batches(Mixture(numbered(100), 20, 10, generated=numbered(7), ratio=0.5), 1, PadCrop(), repeats=2)
    seen = set()
    for step in range(len(batches)):
        batch = batches[step]
        plain = batch.ids[:20]
        assert torch.equal(batch.ids, torch.cat([plain, plain + 2**33, plain + 2 * 2**33]))
        assert torch.equal(batch.is_generated, (batch.ids // 2**32) % 2 == 1)
        made = plain[batch.is_generated[:20]]
        assert (made % 2**32 < 7).all()
        seen |= set((made // 2**40).tolist())
    assert seen == set(range(max(seen) + 1))
    assert len(seen) > 5


def test_a_crop_is_drawn_by_the_rows_own_id(stripes, monkeypatch):
    drawn, cut = [], Light.cut
    monkeypatch.setattr(Light, "cut", lambda self, random: drawn.append(random.ids) or cut(self, random))
    images = Folder(stripes, Preprocess(size=32, how="crop")).open("train")
    batch = Batches(Mixture(images, 4, 2), 1, Light(jitter=0), repeats=2)[0]
    assert sorted(torch.cat(drawn).tolist()) == sorted(batch.ids[4:].tolist())
