"""The laws of EDM: preconditioning, loss, Heun's method, the network, its augmentation and its training."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import robustvit as rv
from robustvit.core.config import shipped_recipes
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.streams import sample_streams, seeded_globals
from robustvit.data import Digits, as_pixels
from robustvit.models import load_state
from robustvit.synthesis.augment import AugmentationPipe, warped
from robustvit.synthesis.denoiser import (
    Denoiser,
    DenoiserSettings,
    NoiseLevels,
    coefficients,
    denoising_losses,
    load_denoiser,
    loss_weight,
    to_levels,
    to_unit,
)
from robustvit.synthesis.network import Block, DdpmPlusPlus, positional_embedding
from robustvit.synthesis.recipe import DenoiseRecipe, HalfLife
from robustvit.synthesis.sampler import Heun
from robustvit.training.base_recipe import any_recipe

LEVELS = torch.logspace(math.log10(0.002), math.log10(80), 25, dtype=torch.float64)
MEANS = torch.tensor([[0.6, -0.3], [-0.5, 0.4], [0.1, 0.7]], dtype=torch.float64)
WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
SPREAD = 0.15
TINY_NETWORK = DdpmPlusPlus(channels=8, multipliers=(1, 2), blocks=1, attention=(4,), dropout=0.1)
TINY = ["network.channels=8", "network.multipliers=[1,2]", "network.blocks=1", "epochs=2", "log_every=5",
        "augmentation={probability: 0.3}", "accumulate=2", "batch_size=128"]  # fmt: skip


def mixture_denoiser(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """The exact expected image under a mixture of Gaussians; images are points in the plane, (B, 2, 1, 1)."""
    points, variance = x.flatten(1), (SPREAD**2 + sigma**2)[:, None]
    distances = (points[:, None] - MEANS).square().sum(2)
    responsible = (WEIGHTS.log() - distances / (2 * variance)).softmax(1)
    toward = MEANS + (SPREAD**2 / variance)[:, :, None] * (points[:, None] - MEANS)
    return (responsible[:, :, None] * toward).sum(1).view_as(x)


class IdealNetwork(nn.Module):
    """What the network inside must compute for the denoiser to be exact."""

    def forward(self, x, noise, labels, augment_labels=None):
        sigma = (4 * noise).exp()
        by = coefficients(sigma.view(-1, 1, 1, 1), 0.5)
        image = x / by.scale
        return (mixture_denoiser(image, sigma) - by.skip * image) / by.out


def labels_of(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.long)


def test_the_preconditioned_ideal_network_is_the_exact_denoiser():
    sigma = LEVELS.repeat(8)
    x = torch.randn(len(sigma), 2, 1, 1, dtype=torch.float64) * (1 + sigma.view(-1, 1, 1, 1))
    denoised = Denoiser(IdealNetwork(), 0.5)(x, sigma, labels_of(len(x)))
    assert torch.allclose(denoised, mixture_denoiser(x, sigma), rtol=1e-9, atol=1e-9)


def test_input_and_target_of_the_network_have_variance_one_and_errors_count_equally():
    count, data = 20_000, 0.5
    x, noise = data * torch.randn(2, count, 1, dtype=torch.float64) / torch.tensor([1, data]).view(2, 1, 1)
    by = coefficients(LEVELS, data)
    noisy = x + LEVELS * noise
    assert (by.scale * noisy).var(0).sub(1).abs().max() < 0.05
    assert ((x - by.skip * noisy) / by.out).var(0).sub(1).abs().max() < 0.05
    assert torch.allclose(loss_weight(LEVELS, data) * by.out**2, torch.ones_like(LEVELS), rtol=1e-12)


def test_without_noise_the_denoiser_returns_its_input():
    denoiser = DenoiserSettings(8, 10, TINY_NETWORK).build().eval()
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        x = torch.rand(3, 3, 8, 8) * 2 - 1
        changes = [(denoiser(x, torch.full((3,), sigma), labels_of(3)) - x).abs().max() for sigma in (1e-3, 1e-5)]
    assert changes[1] < 1e-4
    assert changes[0] > 10 * changes[1] > 0


def test_the_loss_is_the_weighted_error_of_the_noisy_image():
    denoiser = Denoiser(IdealNetwork(), 0.5)
    x, noise = torch.randn(2, 6, 2, 1, 1, dtype=torch.float64)
    sigma = LEVELS[::4][:6]
    noisy = x + sigma.view(-1, 1, 1, 1) * noise
    errors = (mixture_denoiser(noisy, sigma) - x).square().mean((1, 2, 3))
    expected = errors * (sigma**2 + 0.25) / (0.5 * sigma) ** 2
    assert torch.allclose(denoising_losses(denoiser, x, labels_of(6), sigma, noise), expected, rtol=1e-9)


def test_training_noise_is_log_normal_and_belongs_to_the_image():
    streams = sample_streams(3, torch.arange(20_000))
    log = NoiseLevels().draw(streams, torch.float64).log()
    assert float(log.mean()) == pytest.approx(-1.2, abs=0.03)
    assert float(log.std()) == pytest.approx(1.2, abs=0.03)
    assert torch.equal(NoiseLevels().draw(streams[torch.tensor([7, 2])], torch.float64).log(), log[[7, 2]])


def gaussian(x, sigma, labels):
    """The denoiser of one Gaussian with standard deviation 0.5."""
    return x * (0.25 / (0.25 + sigma**2)).view(-1, 1, 1, 1)


def test_heun_converges_at_second_order():
    streams = sample_streams(0, torch.arange(16))
    begin = 80 * streams.normal((1, 2, 2), at="noise", dtype=torch.float64)
    exact = begin * 0.5 / math.sqrt(0.25 + 80**2)
    errors = [
        float((Heun(steps=steps)(gaussian, (1, 2, 2), labels_of(16), streams) - exact).abs().max())
        for steps in (20, 40, 80, 160)
    ]
    ratios = [coarse / fine for coarse, fine in pairwise(errors)]
    assert all(3.5 < ratio < 5 for ratio in ratios), ratios


@pytest.mark.parametrize("sampler", [Heun(steps=40), Heun(steps=40, churn=10, churn_min=0.05, churn_max=50)])
def test_samples_of_a_mixture_have_its_mean_covariance_and_weights(sampler):
    count = 6000
    denoiser = Denoiser(IdealNetwork(), 0.5)
    samples = sampler(denoiser, (2, 1, 1), labels_of(count), sample_streams(1, torch.arange(count))).flatten(1)
    mean = WEIGHTS @ MEANS
    centered = MEANS - mean
    covariance = centered.T @ (WEIGHTS[:, None] * centered) + SPREAD**2 * torch.eye(2)
    assert (samples.mean(0) - mean).abs().max() < 0.03
    assert (samples.T.cov() - covariance).abs().max() < 0.015
    nearest = torch.cdist(samples, MEANS).argmin(1).bincount(minlength=3) / count
    assert (nearest - WEIGHTS).abs().max() < 0.03


def test_an_image_follows_from_its_seed_and_index_in_any_batch():
    denoiser = DenoiserSettings(8, 10, TINY_NETWORK).build().eval().double()
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    for sampler in (Heun(steps=4), Heun(steps=4, churn=3)):
        ids, labels = torch.arange(6), torch.tensor([0, 1, 2, 0, 1, 2])
        whole = sampler(denoiser, (3, 8, 8), labels, sample_streams(5, ids))
        rows = torch.tensor([4, 1])
        some = sampler(denoiser, (3, 8, 8), labels[rows], sample_streams(5, ids[rows]))
        assert torch.allclose(some, whole[rows], atol=1e-9)
        other = sampler(denoiser, (3, 8, 8), labels, sample_streams(6, ids))
        assert (other - whole).abs().amax((1, 2, 3)).min() > 0.1
    samplers = (Heun(steps=4, churn=churn) for churn in (0, 3))
    plain, churned = (sampler(denoiser, (3, 8, 8), labels, sample_streams(5, ids)) for sampler in samplers)
    assert (plain - churned).abs().max() > 0.01


def test_levels_fall_from_the_largest_to_zero():
    levels = Heun(steps=18).levels()
    assert levels[0] == pytest.approx(80)
    assert levels[-2] == pytest.approx(0.002)
    assert levels[-1] == 0
    assert len(levels) == 19
    assert levels == sorted(levels, reverse=True)
    assert Heun(steps=3, rho=1, sigma_min=1, sigma_max=9).levels() == pytest.approx([9, 5, 1, 0])
    with pytest.raises(ValueError, match="sigma_min: below sigma_max"):
        Heun(sigma_min=90)


def test_the_network_for_cifar10_is_the_published_one():
    recipe = any_recipe("cifar10/edm")
    with torch.device("meta"):
        denoiser = DenoiserSettings(32, 10, recipe.network, AugmentationPipe.num_labels).build()
    assert sum(parameter.numel() for parameter in denoiser.parameters()) == 55_735_299
    names = set(denoiser.state_dict())
    assert {"model.map_label.bias", "model.map_augment.weight", "model.enc.32x32_conv.weight",
            "model.enc.16x16_block3.qkv.weight", "model.enc.8x8_down.skip.bias", "model.dec.8x8_in0.proj.weight",
            "model.dec.32x32_block4.affine.weight", "model.dec.32x32_aux_norm.weight",
            "model.dec.32x32_aux_conv.bias"} <= names  # fmt: skip
    assert "model.map_augment.bias" not in names
    assert "model.dec.16x16_block4.qkv.weight" in names
    assert "model.dec.16x16_block3.qkv.weight" not in names
    steps = recipe.phases[0].epochs * (50_000 // recipe.phases[0].batch_size)
    assert steps * recipe.phases[0].batch_size == pytest.approx(200e6, rel=1e-3)
    assert recipe.phases[0].schedule(10 / 200 / 2) == pytest.approx(0.5)


def test_noise_levels_are_embedded_as_in_the_published_networks():
    """Sines before cosines, the last frequency at 1/10,000."""
    noise = torch.tensor([0.7, -1.2])
    embedded = positional_embedding(noise, 8)
    frequencies = torch.tensor([1.0, 10000 ** (-1 / 3), 10000 ** (-2 / 3), 1e-4])
    angles = noise[:, None] * frequencies
    assert torch.allclose(embedded, torch.cat([angles.sin(), angles.cos()], 1), atol=1e-6)


def test_queries_keys_and_values_of_a_channel_are_neighbors_as_in_the_published_networks():
    block = Block(8, 8, 4, 0.0, attention=True, resample="")
    x = torch.randn(2, 8, 3, 3)
    q, k, v = (block.qkv(x)[:, part::3].flatten(2) for part in range(3))  # (B, C, places)
    weights = (q.mT @ k / math.sqrt(8)).softmax(2)
    expected = block.proj((v @ weights.mT).view_as(x))
    assert torch.allclose(block._attended(x), expected, atol=1e-6)


def test_class_augmentation_and_noise_level_reach_the_output():
    with seeded_globals("weights"):
        denoiser = DenoiserSettings(8, 10, TINY_NETWORK, augment_labels=9).build().eval()
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        x, sigma, labels = torch.randn(1, 3, 8, 8), torch.ones(1), labels_of(1)
        plain = denoiser(x, sigma, labels)
        others = [denoiser(x, sigma, labels + 1), denoiser(x, sigma, labels, torch.ones(1, 9))]
        others.append(denoiser.model(x, torch.ones(1), nn.functional.one_hot(labels, 10).float()))
        others.append(denoiser.model(x, torch.zeros(1), nn.functional.one_hot(labels, 10).float()))
        assert torch.equal(denoiser(x, sigma, labels, torch.zeros(1, 9)), plain)
    assert min(float((other - plain).abs().max()) for other in others) > 1e-4
    assert (others[2] - others[3]).abs().max() > 1e-4


def test_a_new_network_is_almost_zero_so_that_training_begins_at_the_data():
    denoiser = DenoiserSettings(8, 10, TINY_NETWORK).build()
    assert denoiser.model(torch.randn(4, 3, 8, 8), torch.zeros(4), torch.eye(10)[:4]).abs().max() < 1e-3


def test_levels_of_gray_are_the_nearest_and_come_back():
    levels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_levels(to_unit(as_pixels(levels))), levels)
    assert to_levels(torch.tensor([-3.0, 3.0])).tolist() == [0, 255]
    assert to_levels(torch.tensor([0.499, 0.501]) / 127.5 + to_unit(torch.tensor(7 / 255))).tolist() == [7, 8]


def test_the_average_halves_after_its_half_life():
    average = HalfLife(images=1000, rampup=0.05)
    assert average.rate(10**6, 100) ** 10 == pytest.approx(0.5)
    assert average.rate(0, 100) == 0
    assert average.rate(20, 100) == pytest.approx(0.5)  # 2,000 images seen: a half-life of 100


def smooth_images(count: int) -> torch.Tensor:
    noise = torch.randn(count, 3, 4, 4)
    return nn.functional.interpolate(noise, size=(16, 16), mode="bicubic", align_corners=False)


def test_augmentation_is_labeled_gated_and_belongs_to_the_image():
    images, streams = smooth_images(400), sample_streams(0, torch.arange(400))
    changed, labels = AugmentationPipe(probability=0.2)(images, streams)
    assert labels.shape == (400, 9)
    same = labels[:, 1:].eq(0).all(1)
    assert 0.1 < same.float().mean() < 0.6
    assert torch.equal(changed[same & (labels[:, 0] == 0)], images[same & (labels[:, 0] == 0)])
    assert torch.equal(changed[same & (labels[:, 0] == 1)], images[same & (labels[:, 0] == 1)].flip(3))
    assert (changed[~same] - images[~same]).abs().amax((1, 2, 3)).min() > 0
    happens = [labels[:, 1].ne(0), *(labels[:, column].ne(0) for column in (2, 4, 7))]
    rates = [float(one.float().mean()) for one in happens]
    assert rates[0] == pytest.approx(0.1, abs=0.05)  # half of the turns turn nothing
    assert all(rate == pytest.approx(0.2, abs=0.06) for rate in rates[1:])
    rows = torch.tensor([9, 30, 3])
    alone, alone_labels = AugmentationPipe(probability=0.2)(images[rows], streams[rows])
    assert torch.equal(alone_labels, labels[rows])
    assert torch.allclose(alone, changed[rows], atol=1e-5)
    off, off_labels = AugmentationPipe(probability=0, mirror=False)(images, streams)
    assert torch.equal(off, images)
    assert off_labels.eq(0).all()


@pytest.mark.parametrize(
    ("matrix", "expected", "most"),
    [
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], lambda x: x, 1e-6),
        ([[1, 0, 3], [0, 1, 0], [0, 0, 1]], lambda x: x.roll(-3, 3), 1e-6),
        ([[1, 0, 0], [0, 1, -2], [0, 0, 1]], lambda x: x.roll(2, 2), 1e-6),
        ([[0, -1, 0], [1, 0, 0], [0, 0, 1]], lambda x: x.rot90(1, (2, 3)), 0.15),  # the wavelet is not symmetric
        ([[-1, 0, 0], [0, -1, 0], [0, 0, 1]], lambda x: x.flip((2, 3)), 0.15),
    ],
)
def test_warping_by_whole_pixels_moves_the_image(matrix, expected, most):
    images = smooth_images(2).double()
    moved = warped(images, torch.tensor(matrix, dtype=torch.float64).expand(2, 3, 3))
    inside = (slice(None), slice(None), slice(4, -4), slice(4, -4))
    assert torch.allclose(moved[inside], expected(images)[inside], rtol=0, atol=most)
    assert images.std() > 0.4


def test_training_resumes_exactly_and_lowers_the_loss(tmp_path):
    unbroken = rv.train("digits/edm", run=tmp_path / "unbroken", quiet=True, overrides=TINY).path
    for steps in (1, 12, None):
        broken = rv.train("digits/edm", run=tmp_path / "broken", quiet=True, overrides=TINY, max_steps=steps).path
    for name in ("metrics.jsonl", "checkpoints/last.safetensors"):
        assert (broken / name).read_bytes() == (unbroken / name).read_bytes()
    losses = [row["loss"] for row in read_rows(unbroken / "metrics.jsonl") if row["kind"] == "train"]
    assert len(losses) == 5
    assert losses[-1] < 0.9 * losses[0]
    loaded = load_denoiser(unbroken / "checkpoints" / "last.safetensors")
    state, facts = load_state(unbroken / "checkpoints" / "last.safetensors")
    assert all(torch.equal(state[name], tensor) for name, tensor in loaded.state_dict().items())
    assert not loaded.training
    assert loaded.settings.augment_labels == 9
    x, y = Digits().open("train").take(torch.arange(64))
    random = sample_streams(0, torch.arange(64))
    with torch.no_grad():  # the average has learned, too
        trained, new = (
            denoising_losses(
                one, to_unit(as_pixels(x)), y, torch.full((64,), 0.5), random.normal((3, 8, 8), at="noise")
            )
            for one in (loaded, loaded.settings.build().eval())
        )
    assert trained.mean() < 0.9 * new.mean()
    assert facts["recipe"]["task"] == {"name": "denoise"}


def test_what_is_trained_is_the_mean_loss_of_the_batch_whatever_its_parts(tmp_path):
    """One step of plain gradient descent, which moves the weights by the gradient and not by its direction alone."""
    plain = [*TINY[:3], "network.dropout=0", "epochs=1", "batch_size=1000", "ema=null", "clip_norm=null",
             "optimizer={opt: sgd, lr: 1e-3, weight_decay: 0}", "schedule.warmup=0"]  # fmt: skip
    one, four = (
        rv.train("digits/edm", tmp_path / parts, quiet=True, overrides=[*plain, f"accumulate={parts}"]).path
        for parts in ("1", "4")
    )
    first, second = (load_denoiser(run / "checkpoints" / "last.safetensors") for run in (one, four))
    with seeded_globals(0, "weights"):
        start = first.settings.build()
    moved, apart = (
        nn.utils.parameters_to_vector(first.parameters()) - nn.utils.parameters_to_vector(other.parameters()).detach()
        for other in (start, second)
    )
    assert moved.norm() > 1e-4
    assert apart.norm() < 0.01 * moved.norm()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("network.multipliers=[1,1,1,1,1]", "recipe.network.multipliers: 5 levels halve it 4 times, .* 8 pixels"),
        ("batch_size=2000", "recipe.batch_size: 2000 images, where .* has only 1437"),
        ("checkpoints.select=best", "a denoiser is not validated"),
        ("accumulate=100", "accumulate: a batch of 64 has no 100 parts"),
        ("network=unet", "no network 'unet'"),
        ("optimizer.opt=adamm", "no optimizer 'adamm'; did you mean"),
    ],
)
def test_a_recipe_that_cannot_train_is_refused(change, message, tmp_path):
    with pytest.raises(UserError, match=message):
        rv.train("digits/edm", run=tmp_path / "run", quiet=True, overrides=[change], max_steps=1)
    assert not (tmp_path / "run").exists()


def test_a_classifier_is_no_denoiser_and_a_denoiser_no_classifier(tmp_path, vit):
    rv.save_model(vit, tmp_path / "vit.safetensors")
    with pytest.raises(UserError, match="not the weights of a denoiser; train one"):
        load_denoiser(tmp_path / "vit.safetensors")
    run = rv.train("digits/edm", run=tmp_path / "run", quiet=True, overrides=["epochs=1", "batch_size=1000", *TINY[:3]])
    with pytest.raises(UserError, match="holds what the task 'denoise' trained, not a classifier"):
        rv.evaluate(run.path, suite="clean")


def test_every_recipe_of_a_denoiser_says_where_it_is_from():
    names = [name for name in shipped_recipes() if isinstance(any_recipe(name), DenoiseRecipe)]
    assert names == ["cifar10/edm", "digits/edm"]
    for name in names:
        info = any_recipe(name).info
        assert "Elucidating" in info.paper
        assert info.about
        assert info.was_run == (name == "digits/edm")


def test_digits_are_what_the_recipe_assumes():
    x, _ = Digits().open("train").take(torch.arange(1437))
    assert float(to_unit(as_pixels(x)).std()) == pytest.approx(0.75, abs=0.03)
