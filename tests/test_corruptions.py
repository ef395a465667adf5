"""Corruptions of images: each image's own, and what their authors' steps give, written out slowly."""

import hashlib
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from robustvit.core.component import build, registered
from robustvit.core.errors import UserError
from robustvit.core.streams import sample_streams
from robustvit.data.corruptions import EXTRA, GROUPS, SEVERITIES, STANDARD, Frost, corrupted, parameters_for
from robustvit.data.corruptions.base import SMALLEST, normal
from robustvit.data.corruptions.blur import _disk
from robustvit.data.corruptions.filters import convolved, motion_blurred, smoothed, zoomed
from robustvit.data.corruptions.parameters import Motion
from robustvit.data.corruptions.spatter import _distance, canny
from robustvit.data.corruptions.textures import FILES
from robustvit.data.corruptions.weather import plasma

NAMES = STANDARD + EXTRA
SETS = ("imagenet", "cifar")


def made(images, name, severity, parameters="imagenet", ids=None, seed=0):
    streams = sample_streams(seed, range(len(images)) if ids is None else ids)
    return corrupted(images, build("corruption", name), severity, parameters, streams)


def drawn(height, width, count=1):
    """Disks and stripes over a gradient, drawn by whole numbers alone: the same on every machine."""
    rows, columns = torch.arange(height).view(-1, 1), torch.arange(width)
    pictures = []
    for number in range(count):
        red = (rows * 255) // height + 0 * columns
        green = torch.where((rows - height // 2) ** 2 + (columns - width // 3) ** 2 < (height // 3) ** 2, 230, 40)
        blue = 60 + 130 * ((columns + number) // 4 % 2) + 0 * rows
        pictures.append(torch.stack([red, green, blue]).roll(number, 2))
    return torch.stack(pictures).to(torch.uint8)


def noise_images(count, height, width):
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8)


def test_the_paper_has_15_types_in_4_groups_and_4_more():
    assert {group: len(names) for group, names in GROUPS.items()} == {
        "noise": 3, "blur": 4, "weather": 4, "digital": 4, "extra": 4
    }  # fmt: skip
    known = {name: made for name, made in registered("corruption").items() if not name.startswith("test-")}
    assert set(known) == set(NAMES)
    assert all(name in GROUPS[made.group] for name, made in known.items())
    for made_by in known.values():
        assert len(made_by.levels.imagenet) == len(made_by.levels.cifar) == len(SEVERITIES) == 5


@pytest.mark.parametrize("name", NAMES)
def test_any_size_gives_the_same_shape_and_kind(name):
    for parameters, sides in (("cifar", (8, 8)), ("imagenet", (11, 11)), ("imagenet", (28, 28)), ("cifar", (32, 48)),
                              ("imagenet", (96, 72)), ("imagenet", (224, 224)), ("imagenet", (255, 255))):  # fmt: skip
        images = drawn(*sides, count=1 if max(sides) > 100 else 2)
        before = images.clone()
        for severity in SEVERITIES if max(sides) < 100 else (1, 5):
            changed = made(images, name, severity, parameters)
            assert (changed.shape, changed.dtype) == (images.shape, torch.uint8)
            assert torch.equal(images, before), "the images handed in are changed"
            if min(sides) >= 28:
                assert not torch.equal(changed, images)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("parameters", SETS)
def test_an_image_becomes_the_same_in_any_batch_and_order(name, parameters):
    images, order = drawn(40, 32, count=5), [3, 1, 4, 0, 2]
    for severity in SEVERITIES:
        changed = made(images, name, severity, parameters)
        assert torch.equal(made(images[order], name, severity, parameters, ids=order), changed[order])
        assert torch.equal(made(images[2:3], name, severity, parameters, ids=[2]), changed[2:3])
        if severity == 3:
            large = images.repeat(20, 1, 1, 1)  # more than are worked on at a time
            assert torch.equal(made(large, name, 3, parameters, ids=[*range(5)] * 20)[95:], changed)


@pytest.mark.parametrize("name", ["gaussian_noise", "glass_blur", "motion_blur", "snow", "frost", "fog", "spatter"])
def test_images_severities_and_seeds_draw_their_own(name):
    same = drawn(32, 32).repeat(2, 1, 1, 1)
    one, other = made(same, name, 5)
    assert not torch.equal(one, other), "two images drew the same"
    assert not torch.equal(made(same[:1], name, 5, seed=1)[0], one), "two seeds drew the same"
    streams = sample_streams(0, [0])
    assert streams.child(name, 1).uniform((), at="x") != streams.child(name, 2).uniform((), at="x")


@pytest.mark.parametrize("name", [*GROUPS["blur"], "gaussian_blur", "contrast", "pixelate", "elastic_transform"])
def test_a_constant_image_stays_constant(name):
    images = torch.tensor([0, 1, 77, 254, 255], dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 30, 26).contiguous()
    for parameters in SETS:
        for severity in SEVERITIES:
            expected, changed = images, made(images, name, severity, parameters)
            if name == "defocus_blur" and parameters == "imagenet" and severity > 3:  # the kernel sums to more than 1
                expected = floor(images.double() / 255 * (1.012975 if severity == 4 else 1.010786))
            assert torch.equal(changed, expected)


def test_noise_has_the_moments_of_its_distribution():
    gray = torch.full((4, 3, 64, 64), 128, dtype=torch.uint8)
    value, count = 128 / 255, gray.numel()
    for parameters in SETS:
        for severity in (1, 2):
            for name, deviation in (
                ("gaussian_noise", lambda c: c),
                ("shot_noise", lambda c: math.sqrt(value / c)),
                ("speckle_noise", lambda c: c * value),
            ):
                setting = build("corruption", name).levels.setting(parameters, severity)
                change = (made(gray, name, severity, parameters).double() + 0.5) / 255 - value  # truncation takes half
                sigma = deviation(setting)
                assert abs(change.mean()) < 4 * sigma / math.sqrt(count) + 1 / 500
                assert float(change.std()) == pytest.approx(sigma, rel=0.02)


def test_shot_noise_counts_photons_as_scipy_does():
    from scipy import stats

    levels = torch.arange(256).repeat_interleave(768).view(1, 3, 256, 256).to(torch.uint8)
    changed = made(levels, "shot_noise", 5).flatten()  # 3 photons for white
    for level in (0, 1, 90, 180, 255):
        counts = changed[levels.flatten() == level]
        expected = stats.poisson(level / 255 * 3).pmf([0, 1, 2])
        found = [(counts == value).double().mean() for value in (0, 85, 170)]
        assert np.allclose(found, expected, atol=4 * 0.5 / math.sqrt(768))
    assert set(changed.tolist()) == {0, 85, 170, 255}


def test_impulses_are_half_salt_and_half_pepper():
    gray = torch.full((4, 3, 64, 64), 128, dtype=torch.uint8)
    for severity, amount in zip(SEVERITIES, (0.03, 0.06, 0.09, 0.17, 0.27), strict=True):
        changed = made(gray, "impulse_noise", severity)
        for value in (0, 255):
            assert float((changed == value).double().mean()) == pytest.approx(amount / 2, abs=0.005)
        assert set(changed.unique().tolist()) == {0, 128, 255}
    assert not torch.equal(changed[:, 0], changed[:, 1]), "each channel's by itself"


def test_gaussian_filters_are_scipys():
    image = torch.rand(2, 3, 20, 33, dtype=torch.float64)
    for sigma in (0.05, 0.4, 1, 6, 30):
        expected = ndimage.gaussian_filter(image.numpy(), (0, 0, sigma, sigma), mode="nearest", truncate=4)
        assert np.allclose(smoothed(image, sigma), expected, atol=1e-12)
        expected = ndimage.gaussian_filter(image.numpy(), (0, 0, sigma, sigma), mode="reflect", truncate=3)
        assert np.allclose(smoothed(image, sigma, "reflect", 3), expected, atol=1e-12)


def test_defocus_is_a_convolution_with_a_disk():
    image = torch.rand(2, 3, 25, 31, dtype=torch.float64)
    for parameters in SETS:
        for disk in getattr(build("corruption", "defocus_blur").levels, parameters):
            kernel = _disk(disk).numpy()
            expected = ndimage.convolve(image.numpy(), kernel[None, None], mode="mirror")
            assert np.allclose(convolved(image, _disk(disk)), expected, atol=1e-12)
            assert kernel.sum() == pytest.approx({8: 1.012975, 10: 1.010786}.get(disk.radius, 1))
            if disk.alias <= 0.1:  # whose rim stays sharp
                inside = sum(i**2 + j**2 <= disk.radius**2 for i in range(-10, 11) for j in range(-10, 11))
                assert np.allclose(kernel[kernel > 0], 1 / inside)


def test_zooming_is_scipys():
    image = torch.rand(1, 2, 40, 40, dtype=torch.float64)
    for factor in (1.01, 1.11, 1.3, 2.25, 4.5):
        inner = math.ceil(40 / factor)
        top = (40 - inner) // 2
        cut = image[0, :, top : top + inner, top : top + inner].numpy()
        whole = ndimage.zoom(cut, (1, factor, factor), order=1)
        trim = (whole.shape[1] - 40) // 2
        assert np.allclose(zoomed(image, factor)[0], whole[:, trim : trim + 40, trim : trim + 40], atol=1e-12)


def test_zoom_blur_averages_as_many_factors_as_the_authors():
    for parameters, counts in (("imagenet", (12, 16, 11, 13, 11)), ("cifar", (7, 12, 16, 21, 26))):
        for severity, count in zip(SEVERITIES, counts, strict=True):
            zoom = build("corruption", "zoom_blur").levels.setting(parameters, severity)
            factors = np.arange(1, zoom.end, zoom.step)
            assert len(factors) == count
            image = drawn(32, 32)
            pixels = image.double() / 255
            total = pixels + sum(zoomed(pixels, factor) for factor in factors)
            assert torch.equal(made(image, "zoom_blur", severity, parameters), floor(total / (count + 1)))


def floor(values):
    return (values * 255 + 1e-6).clamp(0, 255).to(torch.uint8)


def test_motion_blur_is_a_sum_of_shifted_images():
    image, motion = torch.rand(3, 18, 23, dtype=torch.float64), Motion(6, 2.5)
    for degrees in (-135, -90, -45, -17.3, 0, 30, 45):
        weights = np.exp(-(np.arange(13) ** 2) / (2 * 2.5**2))
        expected = np.zeros(image.shape)
        for i, weight in enumerate(weights / weights.sum()):
            down = math.ceil(i * math.sin(math.radians(degrees)) - 0.5)
            right = math.ceil(i * math.cos(math.radians(degrees)) - 0.5)
            rows, columns = np.clip(np.arange(18) + down, 0, 17), np.clip(np.arange(23) + right, 0, 22)
            expected += weight * image.numpy()[:, rows][:, :, columns]
        assert np.allclose(motion_blurred(image, motion, degrees), expected, atol=1e-12)


def test_glass_blur_is_the_slow_loop():
    image = noise_images(2, 17, 21)
    for parameters in SETS:
        for severity in SEVERITIES:
            sigma, reach, passes = build("corruption", "glass_blur").levels.setting(parameters, severity)
            expected = []
            for number in range(2):
                pixels = floor(smoothed(image[number].double() / 255, sigma))
                streams = sample_streams(0, [number]).child("glass_blur", severity)
                for turn in range(passes):
                    steps = streams.child("pass", turn).integers((2 * reach) ** 2, (17, 21), at="step")[0]
                    for row in range(17 - reach, reach, -1):
                        for column in range(21 - reach, reach, -1):
                            down, right = divmod(int(steps[row, column]), 2 * reach)
                            pixels[:, row, column] = pixels[:, row + down - reach, column + right - reach]
                expected.append(floor(smoothed(pixels.double() / 255, sigma)))
            assert torch.equal(made(image, "glass_blur", severity, parameters), torch.stack(expected))


@pytest.mark.parametrize("parameters", SETS)
def test_elastic_transform_is_scipys(parameters):
    side = 36
    image = drawn(side, side)
    pixels = image[0].double().numpy() / 255
    rows, columns = np.mgrid[:side, :side].astype(float)
    for severity in SEVERITIES:
        alpha, sigma, reach = build("corruption", "elastic_transform").levels.setting(parameters, severity)
        streams = sample_streams(0, [0]).child("elastic_transform", severity)
        points = side // 2 + side // 3 * np.array([[1, 1], [1, -1], [-1, -1]])  # (x, y)
        moved = points + reach * (2 * streams.uniform((3, 2), at="affine", dtype=torch.float64)[0].numpy() - 1)
        back = np.linalg.solve(np.c_[moved, np.ones(3)], points)  # (3, 2), from the moved ones
        x, y = np.moveaxis(np.stack([columns, rows, np.ones_like(rows)], -1) @ back, -1, 0)
        warped = [ndimage.map_coordinates(channel, [y, x], order=1, mode="mirror") for channel in pixels]
        fields = 2 * streams.uniform((2, side, side), at="fields", dtype=torch.float64)[0].numpy() - 1
        right, down = (ndimage.gaussian_filter(field, sigma, mode="reflect", truncate=3) for field in fields)
        places = [rows + alpha * down, columns + alpha * right]
        expected = np.array([ndimage.map_coordinates(channel, places, order=1, mode="reflect") for channel in warped])
        changed = made(image, "elastic_transform", severity, parameters)[0]
        assert torch.equal(changed, floor(torch.from_numpy(expected)))


def test_the_cloud_of_fog_is_the_slow_diamond_square():
    side, decay = 8, 1.7
    drawn = iter(2 * sample_streams(0, [3]).uniform((side**2,), at="cloud", dtype=torch.float64)[0] - 1)
    field, step, spread = np.zeros((side, side)), side, 100.0
    while step >= 2:
        half, places = step // 2, range(0, side, step)
        for shifts, corners in (
            ((half, half), ((0, 0), (step, 0), (0, step), (step, step))),
            ((0, half), ((-half, half), (half, half), (0, 0), (0, step))),
            ((half, 0), ((half, -half), (half, half), (0, 0), (step, 0))),
        ):
            for row in places:
                for column in places:
                    total = sum(field[(row + i) % side, (column + j) % side] for i, j in corners)
                    field[row + shifts[0], column + shifts[1]] = total / 4 + spread**2 * float(next(drawn))
        step, spread = half, spread / decay
    field -= field.min()
    assert np.allclose(plasma(side, decay, sample_streams(0, [3]))[0], field / field.max(), atol=1e-12)


def test_brightness_and_saturation_are_those_of_hsv():
    import colorsys

    image = noise_images(1, 12, 12)
    image[0, :, 0, :6] = torch.tensor([0, 60, 255, 1, 128, 254], dtype=torch.uint8)  # gray has no hue: 0, which is red
    for name in ("brightness", "saturate"):
        for severity in SEVERITIES:
            setting = build("corruption", name).levels.setting("imagenet", severity)
            changed = made(image, name, severity)[0].flatten(1).T.tolist()
            for before, after in zip(image[0].flatten(1).T.tolist(), changed, strict=True):
                hue, saturation, value = colorsys.rgb_to_hsv(*(level / 255 for level in before))
                if name == "brightness":
                    value = min(1, value + setting)
                else:
                    saturation = min(1, saturation * setting.factor + setting.added)
                expected = colorsys.hsv_to_rgb(hue, saturation, value)
                assert [int(255 * level + 1e-6) for level in expected] == after


def test_contrast_pulls_each_channel_towards_its_mean():
    image = drawn(16, 16)
    means = image.double().mean((2, 3), keepdim=True) / 255
    expected = floor((image.double() / 255 - means) * 0.1 + means)
    assert torch.equal(made(image, "contrast", 4), expected)


def test_edges_are_those_of_canny_written_out():
    image = smoothed(torch.rand(3, 1, 24, 30, dtype=torch.float64), 1.2).sub(0.35).clamp(0, 0.3).mul(800).floor()
    found = canny(image)
    assert 0 < float(found.double().mean()) < 0.5
    for one, edges in zip(image[:, 0].numpy(), found[:, 0].numpy(), strict=True):
        across, down = (ndimage.sobel(one, axis=axis, mode="nearest") for axis in (1, 0))
        strength = np.pad(abs(across) + abs(down), 1)
        weak = np.zeros(one.shape, dtype=bool)
        for row in range(24):
            for column in range(30):
                x, y, m = across[row, column], down[row, column], strength[row + 1, column + 1]
                if abs(y) * 32768 < abs(x) * 13573:
                    step, strict = (0, 1), False
                elif abs(y) * 32768 > abs(x) * (13573 + 65536):
                    step, strict = (1, 0), False
                else:
                    step, strict = (1, -1 if (x < 0) != (y < 0) else 1), True
                before, after = (strength[row + 1 + s * step[0], column + 1 + s * step[1]] for s in (-1, 1))
                weak[row, column] = m > 50 and m > before and (m > after if strict else m >= after)
        kept = weak & (strength[1:-1, 1:-1] > 150)
        for _ in range(200):
            kept = weak & ndimage.binary_dilation(kept, np.ones((3, 3)))
        assert np.array_equal(edges, kept)


def test_distances_are_counted_in_the_moves_of_a_5x5_mask():
    edges = np.zeros((9, 9), dtype=bool)
    edges[4, 4] = True
    moves = {(1, 0): 1.0, (1, 1): 1.4, (2, 1): 2.1969}
    steps = {(i * s, j * t): cost for (i, j), cost in moves.items() for s in (1, -1) for t in (1, -1)}
    steps |= {(j, i): cost for (i, j), cost in steps.items()}
    expected = np.where(edges, 0, np.inf)
    for _ in range(9):  # shortest paths
        for (i, j), cost in steps.items():
            around = np.pad(expected, 2, constant_values=np.inf)
            expected = np.minimum(expected, around[2 + i : 11 + i, 2 + j : 11 + j] + cost)
    assert np.allclose(_distance(edges), expected)
    assert float(_distance(np.zeros((3, 3), dtype=bool)).min()) == 20


def test_spatter_without_a_drop_leaves_the_image():
    image = drawn(8, 8)
    changed = [made(image, "spatter", 1, "cifar", ids=[number]) for number in range(40)]
    untouched = sum(torch.equal(one, image) for one in changed)
    assert 0 < untouched < 40


def test_frost_takes_published_textures_from_a_folder(tmp_path):
    image = drawn(16, 16)
    for number, file in enumerate(FILES):
        Image.new("RGB", (90, 100), (40 * number, 100, 200)).save(tmp_path / file)
    streams = sample_streams(0, range(30))
    changed = corrupted(image.repeat(30, 1, 1, 1), Frost(textures=tmp_path), 3, "imagenet", streams)
    added = {tuple((one.double() - 0.7 * image[0].double()).mean((1, 2)).round().tolist()) for one in changed}
    assert len(added) == 5, "each texture is drawn"
    large = corrupted(drawn(120, 80), Frost(textures=tmp_path), 1, "imagenet", sample_streams(0, [0]))
    assert large.shape[2:] == (120, 80), "textures are enlarged where the image doesn't fit"
    for file in FILES:
        Image.new("RGB", (91, 100), (0, 0, 0)).save(tmp_path / file)
    again = corrupted(image, Frost(textures=tmp_path), 3, "imagenet", streams[torch.tensor([0])])
    assert torch.equal(again, (image * 0.7).to(torch.uint8)), "files that were replaced are read anew"
    Image.new("RGB", (2, 90)).save(tmp_path / FILES[3])
    with pytest.raises(UserError, match=r"frost: .*frost4.jpg has 90x2 pixels, too few for a texture; at least 32"):
        corrupted(image, Frost(textures=tmp_path), 3, "imagenet", streams[torch.tensor([0])])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no frost1.png; expected frost1.png.*or frost: drawn"):
        corrupted(image, Frost(textures=tmp_path / "empty"), 1, "cifar", sample_streams(0, [0]))
    with pytest.raises(UserError, match="no folder 'nowhere'"):
        corrupted(image, Frost(textures="nowhere"), 1, "cifar", sample_streams(0, [0]))


def test_small_images_are_refused_in_a_sentence():
    for parameters in SETS:
        side = SMALLEST[parameters] - 1
        with pytest.raises(UserError, match=f"images of {side}x40 pixels are too small for .* of {parameters}"):
            made(noise_images(1, side, 40), "fog", 1, parameters)
    assert parameters_for(32, 32) == parameters_for(8, 20) == "cifar"
    assert parameters_for(33, 8) == "imagenet"


GOLDEN = {
    "gaussian_noise": "22e745094e7c",
    "shot_noise": "e536d3fd2932",
    "impulse_noise": "83ec92a5c93d",
    "defocus_blur": "14f2e6373c16",
    "glass_blur": "895dbdbecc03",
    "motion_blur": "a5dbaede40b8",
    "zoom_blur": "7a43971ada32",
    "snow": "fc8d191d6c68",
    "frost": "50d23cc068f3",
    "fog": "2be188f739e0",
    "brightness": "29161c23bcd5",
    "contrast": "9cd6fe718170",
    "elastic_transform": "95f590a3be3a",
    "pixelate": "66d5e642f7f3",
    "jpeg_compression": "ebef0cf9a429",
    "speckle_noise": "2cd5f02896b1",
    "gaussian_blur": "610f26ef9e93",
    "spatter": "d8b698b69aba",
    "saturate": "c1248ad8e99f",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_images_of_this_generator_stay_the_same(name):
    """Results on disk are of these images: other pixels need another GENERATOR, with which the hashes change."""
    pixels = [made(drawn(32, 32), name, severity, "cifar") for severity in SEVERITIES]
    pixels += [made(drawn(48, 40), name, severity, "imagenet") for severity in SEVERITIES]
    found = hashlib.sha256(b"".join(one.numpy().tobytes() for one in pixels)).hexdigest()[:12]
    assert found == GOLDEN[name]


def test_normal_draws_are_normal():
    from scipy import stats

    drawn = normal(sample_streams(0, range(4)), (3000,), "x").flatten()
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 0.01
