"""Augmentations: each image's own, and distributed as their papers say."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from robustvit.core.component import build, registered, to_dict
from robustvit.core.errors import UserError
from robustvit.core.streams import sample_streams, seeded_globals
from robustvit.data import Canonical, Light, Mixing, PadCrop, RandAugment, RandomErasing
from robustvit.data.augment import Corruptions
from robustvit.data.augment.base import Scalable, jittered, rectangles
from robustvit.data.augment.mixing import _box

CIFAR = Light(scale=(0.8, 1.2), ratio=(0.95, 1.05), jitter=0)
VARIANTS = [build("augmentation", name) for name in registered("augmentation") if not name.startswith("test-")] + [
    CIFAR,
    Canonical(base=PadCrop(), rand_augment=None),
    Canonical(random_erasing=None).scaled(0.5),
]


def noise_images(count, size=16):
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)


def furthest(values, distribution):
    """Kolmogorov's distance between a sample and a distribution."""
    values = torch.as_tensor(values).double().sort().values
    expected = torch.as_tensor(distribution(values.numpy()))
    steps = torch.arange(len(values) + 1) / len(values)
    return float(torch.maximum((expected - steps[:-1]).abs(), (steps[1:] - expected).abs()).max())


def kolmogorov(count):
    return 1.95 / math.sqrt(count)  # exceeded by one sample in a thousand


@pytest.mark.parametrize("augmentation", VARIANTS, ids=lambda made: made.name)
@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_an_image_is_changed_the_same_in_any_batch_and_order(augmentation, kind):
    images = noise_images(24)
    if kind == torch.float32:
        images = images.float() / 255
    before = images.clone()
    made = augmentation(images, sample_streams(3, range(24)))
    assert torch.equal(images, before), "the images handed in are changed"
    assert (made.shape, made.dtype) == (images.shape, images.dtype)
    if kind == torch.float32:
        assert made.min() >= 0
        assert made.max() <= 1
    order = torch.randperm(24)
    assert torch.equal(augmentation(images[order], sample_streams(3, order)), made[order])
    for row in (0, 7, 23):
        assert torch.equal(augmentation(images[row : row + 1], sample_streams(3, [row])), made[row : row + 1])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(augmentation(images, sample_streams(3, range(24))), made)
    finally:
        torch.set_num_threads(threads)
    assert not torch.equal(augmentation(images, sample_streams(3, range(24, 48))), made)


@pytest.mark.parametrize("augmentation", VARIANTS, ids=lambda made: made.name)
def test_augmentations_are_read_back_from_their_own_dict(augmentation):
    assert build("augmentation", to_dict(augmentation)) == augmentation


def test_rectangles_are_uniform_in_area_logarithm_of_the_ratio_and_place():
    count, size = 20_000, (1500, 2000)
    top, left, height, width = rectangles(
        sample_streams(0, range(count)), (0.08, 0.5), (3 / 4, 4 / 3), size, size
    ).T.double()
    assert furthest(height * width / math.prod(size), lambda v: (v - 0.08) / 0.42) < kolmogorov(count)
    low, high = math.log(3 / 4), math.log(4 / 3)
    assert furthest((width / height).log(), lambda v: np.clip((v - low) / (high - low), 0, 1)) < kolmogorov(count)
    for begin, length, side in ((top, height, size[0]), (left, width, size[1])):
        assert (begin + length).max() <= side
        assert furthest((begin + 0.5) / (side - length + 1), lambda v: v) < kolmogorov(count)


def test_sizes_that_do_not_fit_are_drawn_again():
    """Against the published rule, drawn by another generator: ten tries, then all of the image."""
    count, size = 20_000, (32, 32)
    boxes = rectangles(sample_streams(0, range(count)), CIFAR.scale, CIFAR.ratio, size, size)
    rng = np.random.default_rng(0)
    areas = rng.uniform(0.8, 1.2, (count, 10)) * 1024
    ratios = np.exp(rng.uniform(math.log(0.95), math.log(1.05), (count, 10)))
    widths, heights = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
    fits = (widths <= 32) & (heights <= 32)
    first = fits.argmax(1)[:, None]
    expected = np.take_along_axis(heights, first, 1)[fits.any(1)]
    drawn = boxes[boxes[:, 2] > 0]
    assert (boxes[:, 2] == 0).float().mean().item() == pytest.approx(1 - fits.any(1).mean(), abs=0.005)
    for height in range(27, 33):
        fraction = (drawn[:, 2] == height).float().mean().item()
        assert fraction == pytest.approx((expected == height).mean(), abs=4 * math.sqrt(0.25 / count))


@pytest.mark.parametrize(
    ("size", "ratio"), [((40, 10), (2, 3)), ((10, 40), (0.3, 0.5)), ((41, 10), (2.2, 3)), ((10, 41), (0.3, 0.52))]
)
def test_where_no_size_fits_the_center_is_torchvisions(size, ratio):
    from torchvision.transforms import RandomResizedCrop

    expected = RandomResizedCrop.get_params(torch.zeros(3, *size), (1, 1), ratio)
    light = Light(scale=(1, 1), ratio=ratio, flip=0, jitter=0)
    cut = light.cut(sample_streams(0, range(3)))
    assert [cut.box(row, *size) for row in range(3)] == [expected] * 3
    assert cut.interpolation == "bicubic"


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_resized_crop_is_pillows(interpolation):
    images, random = noise_images(40, 32), sample_streams(1, range(40))
    light = Light(interpolation=interpolation, flip=0, jitter=0)
    boxes = rectangles(random.child("crop"), light.scale, light.ratio, (32, 32), (32, 32)).tolist()
    for image, made, (top, left, height, width) in zip(images, light(images, random), boxes, strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy()).crop((left, top, left + width, top + height))
        resized = picture.resize((32, 32), Image.Resampling[interpolation.upper()])
        difference = np.asarray(resized).astype(int) - made.permute(1, 2, 0).numpy().astype(int)
        assert np.abs(difference).max() <= 1


def test_flips_and_erasures_come_as_often_as_asked_for():
    count, images = 4000, noise_images(1, 8).expand(4000, -1, -1, -1)
    flips = Light(scale=(1, 1), ratio=(1, 1), flip=0.3, jitter=0)(images, sample_streams(0, range(count)))
    fraction = (flips == images.flip(3)).flatten(1).all(1).float().mean().item()
    assert fraction == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / count))
    gray = torch.full((count, 3, 24, 24), 255, dtype=torch.uint8)
    erased = (RandomErasing()(gray, sample_streams(0, range(count))) != 255).any(1)
    rows = erased.flatten(1).any(1)
    assert rows.float().mean().item() == pytest.approx(0.25, abs=4 * math.sqrt(0.1875 / count))
    fractions = erased[rows].flatten(1).float().mean(1)
    assert fractions.min() > 0.01
    assert fractions.max() < 0.36
    assert fractions.mean().item() == pytest.approx((0.02 + 1 / 3) / 2, abs=0.02)
    ones = RandomErasing(probability=1)(gray[:300], sample_streams(0, range(300))) != 255
    tall, wide = ones.any(1).any(2).sum(1), ones.any(1).any(1).sum(1)
    inside = (tall * wide).float()
    assert (ones.any(1).flatten(1).sum(1) / inside).mean() > 0.9, "one rectangle"


def test_erasing_by_the_mean_is_one_colour():
    images = torch.zeros(50, 3, 16, 16)
    made = RandomErasing(probability=1, fill="mean")(images, sample_streams(0, range(50)))
    colors = made.permute(0, 2, 3, 1).reshape(-1, 3).unique(dim=0)
    assert torch.allclose(colors, torch.tensor([[0, 0, 0], [0.485, 0.456, 0.406]]))


def test_colour_jitter_is_torchvisions():
    from torchvision.transforms import functional as reference

    random = sample_streams(5, range(30))
    images = torch.rand(30, 3, 20, 20)
    factors = 0.6 + 0.8 * random.uniform((3,), at="factor")
    order = random.uniform((3,), at="order").argsort(1)
    steps = (reference.adjust_brightness, reference.adjust_contrast, reference.adjust_saturation)
    for row, made in enumerate(jittered(images, 0.4, random)):
        expected = images[row]
        for step in order[row].tolist():
            expected = steps[step](expected, float(factors[row, step]))
        assert (made - expected).abs().max() < 2e-3
    assert len(order.unique(dim=0)) == 6
    drawn = (sample_streams(0, range(5000)).uniform((3,), at="factor") * 0.8 + 0.6).flatten()
    assert furthest(drawn, lambda v: (v - 0.6) / 0.8) < kolmogorov(15_000)


def test_rand_augment_is_timms_of_that_name():
    from timm.data.auto_augment import rand_augment_transform

    images, random = noise_images(60, 24), sample_streams(2, range(60))
    theirs = rand_augment_transform("rand-m9-mstd0.5-inc1", {"translate_const": 10, "img_mean": (124, 116, 104)})
    made, keys = RandAugment()(images, random), random.integers(1 << 31, (2,), at="key").tolist()
    compared = 0
    for image, ours, key in zip(images, made, keys, strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        try:
            with seeded_globals("rand_augment", *key):
                expected = np.asarray(theirs(picture))
        except ValueError:  # it asks Pillow for 0 bits
            continue
        compared += 1
        assert np.array_equal(ours.permute(1, 2, 0).numpy(), expected)
    assert compared > 50


def test_a_lower_intensity_is_a_weaker_change():
    images, random = noise_images(200, 16), sample_streams(0, range(200))
    colors = Light(scale=(1, 1), ratio=(1, 1), flip=0)
    for augmentation in (colors, RandomErasing(probability=1), Canonical(base=colors)):
        assert isinstance(augmentation, Scalable)
        changes = [
            (augmentation.scaled(strength)(images, random).float() - images.float()).abs().mean().item()
            for strength in (0.0, 0.5, 1.0)
        ]
        assert changes[0] < changes[1] < changes[2]
        assert augmentation.scaled(1.0) == augmentation
    weak = Canonical().scaled(0.5)
    assert (weak.rand_augment.magnitude, weak.random_erasing.probability, weak.jitter) == (4.5, 0.125, 0.2)
    assert Mixing().scaled(0.5).probability == 0.5
    assert not isinstance(PadCrop(), Scalable)


def mix(mixing, x, y, seed=0, step=0, classes=10):
    """As training does: pairs by the batch's stream, blends by the batch's or the images' own."""
    shared = sample_streams(seed, [step]).child("mixing")
    partners, soft = mixing.partners(torch.arange(len(x)), len(x), shared), F.one_hot(y, classes).to(x.dtype)
    random = sample_streams(seed, range(len(x))) if mixing.each == "image" else shared
    return mixing.blend(x, soft, x[partners], soft[partners], random)


def test_mixup_blends_images_and_labels_alike():
    x, y = torch.rand(8, 3, 6, 6), torch.arange(8)
    for step in range(20):
        made, soft = mix(Mixing(cutmix=None), x, y, step=step)
        fraction = soft[torch.arange(8), y]
        assert fraction.max() - fraction.min() < 1e-6, "one draw for the batch"
        partner = (soft * (1 - F.one_hot(y, 10))).argmax(1)
        assert sorted(partner.tolist()) == list(range(8))
        assert (partner != y).all()
        expected = fraction.view(-1, 1, 1, 1) * x + (1 - fraction).view(-1, 1, 1, 1) * x[partner]
        assert torch.allclose(made, expected, atol=1e-6)
        assert torch.allclose(soft.sum(1), torch.ones(8))


def test_cutmix_labels_follow_the_area():
    x, y = torch.arange(8.0).div(10).view(8, 1, 1, 1).expand(8, 3, 12, 10), torch.arange(8)
    areas = []
    for step in range(40):
        made, soft = mix(Mixing(mixup=None), x, y, step=step)
        partner = (soft * (1 - F.one_hot(y, 10))).argmax(1)
        own = (made == x).all(1).flatten(1).float().mean(1)
        assert torch.allclose(own, soft[torch.arange(8), y], atol=1e-6)
        other = (made != x).any(1)
        assert torch.equal(made[other.unsqueeze(1).expand_as(made)], x[partner][other.unsqueeze(1).expand_as(made)])
        areas.append(own[0].item())
    assert len(set(areas)) > 10


def test_the_box_of_cutmix_has_the_root_of_its_area_on_each_side():
    """Of a quarter of the area: half of each side, unless the edge cuts it off; its center may be anywhere."""
    boxes = _box(sample_streams(0, range(600)), torch.full((600,), 0.75, dtype=torch.float64), 12, 10)
    heights, widths = boxes.any(2).sum(1), boxes.any(1).sum(1)
    assert torch.equal(boxes.sum((1, 2)), heights * widths), "a rectangle"
    rows, columns = boxes.any(2), boxes.any(1)
    assert set(heights[~rows[:, 0] & ~rows[:, -1]].tolist()) == {6}
    assert set(widths[~columns[:, 0] & ~columns[:, -1]].tolist()) == {5}
    assert (heights.min(), heights.max(), widths.max()) == (3, 6, 5)
    covered = boxes.double().mean(0)
    assert torch.allclose(covered, covered.flip(0).flip(1), atol=0.08)
    assert covered[6, 5].item() == pytest.approx(0.25, abs=0.05)


def test_lambda_is_beta():
    from scipy.stats import beta

    count = 1500
    x, y = torch.zeros(count, 3, 1, 1), torch.arange(count)
    for alpha in (0.8, 1.0, 2.0):
        _, soft = mix(Mixing(mixup=alpha, cutmix=None, each="image"), x, y, seed=3, classes=count)
        assert furthest(soft.diagonal(), beta(alpha, alpha).cdf) < kolmogorov(count)


def test_mixup_and_cutmix_take_turns():
    x, y = torch.rand(4, 3, 8, 8), torch.arange(4)
    kinds = []
    for step in range(200):
        made, soft = mix(Mixing(probability=0.6), x, y, step=step)
        fraction = soft[0, 0].item()
        kinds.append("none" if fraction == 1 else "cutmix" if (made[0] == x[0]).any() or fraction == 0 else "mixup")
    fractions = {kind: kinds.count(kind) / 200 for kind in ("none", "mixup", "cutmix")}
    assert fractions["mixup"] == pytest.approx(0.3, abs=0.1)
    assert 0.18 < fractions["cutmix"] < 0.4
    assert fractions["none"] >= 0.35
    assert not Mixing(mixup=None, cutmix=None).is_on
    one = mix(Mixing(), x[:1], y[:1])
    assert torch.allclose(one[0], x[:1])
    assert one[1].tolist() == [[1.0] + [0.0] * 9]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Light(scale=(0.5, 0.1)), "not smaller"),
        (lambda: Light(ratio=(0, 1)), "above 0"),
        (lambda: Mixing(mixup=0), "greater than 0"),
        (lambda: RandAugment(magnitude=11), "less than or equal to 10"),
        (lambda: RandomErasing(probability=1.5), "less than or equal to 1"),
        (lambda: Canonical(rand_augment="light"), "only the augmentation 'rand_augment' fits here"),
        (lambda: replace(Light(), flip="often"), "not a number"),
    ],
)
def test_settings_that_make_no_sense_are_reported(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_all_sixteen_combinations_are_four_switches():
    seen = set()
    for on in itertools.product([True, False], repeat=4):
        switches = {"mixup": 0.8, "cutmix": 1.0}, {"rand_augment": RandAugment(), "random_erasing": RandomErasing()}
        off = [name for name, wanted in zip([*switches[0], *switches[1]], on, strict=True) if not wanted]
        mixing = Mixing(**{name: None if name in off else value for name, value in switches[0].items()})
        canonical = Canonical(**{name: None if name in off else value for name, value in switches[1].items()})
        assert mixing.is_on == any(on[:2])
        seen.add((mixing, canonical))
    assert len(seen) == 16


def test_what_the_padding_shows():
    images, random = torch.rand(40, 3, 6, 6), sample_streams(0, range(40))
    zeros, reflected = (PadCrop(pad=3, flip=False, border=border)(images, random) for border in ("zeros", "reflect"))
    inside = zeros != 0
    assert torch.equal(zeros[inside], reflected[inside])
    assert bool((reflected > 0).all())
    top, left = random.integers(7, (2,), at="crop")[0].tolist()
    rows, columns = ([abs(i - 3) if i < 9 else 2 * 5 - (i - 3) for i in range(at, at + 6)] for at in (top, left))
    assert torch.equal(reflected[0], images[0][:, rows][:, :, columns])
    with pytest.raises(UserError, match="6 is too much to reflect an image of 6x8 pixels"):
        PadCrop(pad=6, border="reflect")(torch.rand(40, 3, 6, 8), random)


def test_corruptions_change_so_many_images_by_the_types_and_severities_that_are_named():
    images = torch.full((600, 3, 8, 8), 100, dtype=torch.uint8)
    random = sample_streams(0, range(600))
    made = Corruptions(which=["brightness"], severities=[1, 4], probability=0.3, parameters="cifar")(images, random)
    assert set(made.unique().tolist()) == {100, 112, 151}, "0.05 and 0.2 of 255 brighter"
    changed = [int((made[:, 0, 0, 0] == level).sum()) for level in (112, 151)]
    assert abs(sum(changed) - 180) < 4 * math.sqrt(600 * 0.3 * 0.7)
    assert abs(changed[0] - changed[1]) < 4 * math.sqrt(180)
    assert torch.equal(Corruptions(probability=1).scaled(0)(images, random), images)
    noisy = Corruptions(which=["gaussian_noise"], severities=[5], probability=1)(images, random)
    assert len(noisy.flatten(1).unique(dim=0)) == 600, "each image has its own noise"
    floats = Corruptions(which=["brightness"], severities=[4], probability=1)(
        images[:4].float() / 255, random[torch.arange(4)]
    )
    assert torch.equal(floats, torch.full_like(floats, 151 / 255))


def test_corruptions_come_after_their_base():
    images, random = noise_images(12), sample_streams(0, range(12))
    base = Light(jitter=0)
    made = Corruptions(which="all", probability=1, base=base)
    assert made.crops
    assert not Corruptions(base=PadCrop()).crops
    cropped = base(images, random.child("base"))
    assert torch.equal(made(images, random), Corruptions(which="all", probability=1)(cropped, random))
    assert torch.equal(Corruptions(probability=0, base=base)(images, random), cropped)
    after = made.after_crop(images, random)
    assert torch.equal(
        after, Corruptions(which="all", probability=1)(base.after_crop(images, random.child("base")), random)
    )
