"""Laws of an attack on one picture: what is stored lies in the ball, and its class is the one that is said."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import robustvit as rv
from conftest import token_vit
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.examples import magnified_change
from robustvit.data.picture import MOST_PIXELS, decode_picture, encoded, sample_picture
from robustvit.data.preprocess import Preprocess
from robustvit.evaluation.one_picture import Seen, attack_picture
from robustvit.evaluation.picture_model import PictureModel
from robustvit.models import save_model, through
from robustvit.threats import LpBall

THREATS = {"inf": LpBall("inf", 8 / 255), "2": LpBall("2", 1.0), "1": LpBall("1", 12.0)}


class Linear(nn.Module):
    """Ten classes; robust enough for a search of several steps."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 3 * 32 * 32, generator=torch.Generator().manual_seed(seed)) / 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.flatten(1) - 0.5) @ self.weight.T


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    return sample_picture("sample:30", Preprocess()).pixels


def logits(model: nn.Module, pixels: np.ndarray) -> torch.Tensor:
    x = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        return model(x)[0]


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
@pytest.mark.parametrize(
    "suite", ["pgd-5", "apgd-ce:steps=5", "square:queries=30", "apgd-t:steps=2", "fab:steps=3", "clean"]
)
def test_what_is_stored_lies_in_the_ball_and_has_the_class_that_is_said(
    picture: np.ndarray, suite: str, norm: str
) -> None:
    model, threat = Linear(), THREATS[norm]
    made = attack_picture(model, picture, suite, threat)
    assert made.adversarial.dtype == np.uint8
    change = (made.adversarial.astype(float) - picture.astype(float)).ravel() / 255
    size = np.abs(change).max() if norm == "inf" else np.linalg.norm(change, int(norm))
    assert size <= threat.eps * (1 + 1e-5) + 1e-6
    assert made.distance == pytest.approx(size, abs=1e-6)
    assert made.predicted == int(logits(model, made.adversarial).argmax())
    assert made.label == int(logits(model, picture).argmax())
    assert np.allclose(made.after, logits(model, made.adversarial).softmax(0).double(), atol=1e-5)
    assert made.is_fooled == (made.predicted != made.label)


@pytest.mark.parametrize("suite", ["pgd-5", "apgd-t:steps=3", "square:queries=20"])
def test_the_outcome_is_that_of_an_evaluation(picture: np.ndarray, suite: str, tmp_path: Path) -> None:
    """With quantized images, and the class that the model gives as the label."""
    model, threat = Linear(3), LpBall("inf", 2 / 255)
    made = attack_picture(model, picture, suite, threat)
    data = (torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None], torch.tensor([made.label]))
    options: dict[str, Any] = {"checks": False, "quiet": True, "batch_size": 1, "save_images": True}
    judged = rv.evaluate(model, data, suite=suite, threat=threat, quantized=True, **options)
    assert bool(judged.is_robust[0]) == (not made.is_fooled)
    if made.is_fooled:
        kept = judged.adversarial().images[0]
        assert np.array_equal(
            np.round(np.asarray(kept, float) * (1 if kept.dtype == np.uint8 else 255)).transpose(1, 2, 0),
            made.adversarial,
        )


def test_a_target_is_what_success_means(picture: np.ndarray) -> None:
    model, threat = Linear(), LpBall("inf", 16 / 255)
    own = int(logits(model, picture).argmax())
    target = (own + 3) % 10
    made = attack_picture(model, picture, "pgd-10", threat, target=target)
    assert made.predicted == target
    assert made.is_fooled
    tiny = attack_picture(model, picture, "pgd-2", LpBall("inf", 0.5 / 255), target=target)
    assert not tiny.is_fooled
    for wrong, message in ((own, "already"), (10, "classes 0 to 9")):
        with pytest.raises(UserError, match=message):
            attack_picture(model, picture, "pgd-2", threat, target=wrong)


def test_the_search_is_watched_and_can_be_ended(picture: np.ndarray) -> None:
    seen: list[Seen] = []
    weak = LpBall("inf", 0.1 / 255)
    attack_picture(Linear(), picture, "pgd-7", weak, observe=seen.append)
    assert [one.steps for one in seen] == list(range(1, 8))
    assert {one.most_steps for one in seen} == {7}
    assert all(one.lead < 0 for one in seen)

    def end(one: Seen) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack_picture(Linear(), picture, "pgd-7", weak, observe=end)


def test_a_search_goes_on_where_rounding_undoes_what_it_found() -> None:
    """A ball of less than a level holds no other picture, whatever fools the model between the levels."""
    seen: list[Seen] = []
    gray = np.full((32, 32, 3), 128, np.uint8)
    made = attack_picture(Linear(), gray, "pgd-6", LpBall("inf", 0.4 / 255), observe=seen.append)
    assert max(one.lead for one in seen) > 0
    assert len(seen) == 6
    assert (made.adversarial == gray).all()
    assert not made.is_fooled


def test_the_model_is_as_it_was(picture: np.ndarray) -> None:
    model = Linear().train()
    attack_picture(model, picture, "pgd-2", THREATS["inf"])
    assert model.training
    assert model.weight.requires_grad
    assert model.weight.grad is None


def test_logits_that_are_not_finite_are_refused(picture: np.ndarray) -> None:
    model = Linear()
    model.weight.data.fill_(torch.nan)
    with pytest.raises(UserError, match="finite"):
        attack_picture(model, picture, "pgd-2", THREATS["inf"])


def claiming(side: int) -> bytes:
    """A file of one pixel whose header, with the right checksum, says that it has more."""
    one = encoded(np.zeros((1, 1, 3), np.uint8))
    header = one[12:16] + side.to_bytes(4, "big") * 2 + one[24:29]
    return one[:12] + header + zlib.crc32(header).to_bytes(4, "big") + one[33:]


def test_a_picture_is_turned_resized_and_bounded() -> None:
    tall = np.zeros((40, 64, 3), np.uint8)
    tall[:, :32] = 255
    made = decode_picture(encoded(tall), "tall.png", Preprocess(size=32, how="crop", crop_fraction=1.0))
    assert made.pixels.shape == (32, 32, 3)
    assert made.resized.startswith("tall.png: resized and cropped from 64 x 40 pixels to 32 x 32")
    squashed = decode_picture(encoded(tall), "tall.png", Preprocess(size=32, how="squash"))
    assert squashed.resized.startswith("tall.png: squashed from 64 x 40 pixels to 32 x 32")
    same = decode_picture(encoded(tall[:32, :32]), "same.png", Preprocess(size=32, how="crop"))
    assert same.resized == ""
    assert (same.pixels == 255).all()
    with pytest.raises(UserError, match="not a readable picture"):
        decode_picture(b"not a picture", "broken.png", Preprocess())
    with pytest.raises(UserError, match="wide.png: 1200 x 1000 pixels, and the model has no size of its own; --size"):
        decode_picture(encoded(np.zeros((1000, 1200, 3), np.uint8)), "wide.png", Preprocess())
    side = int(MOST_PIXELS**0.5) + 1
    with pytest.raises(UserError, match=f"huge.png: not .* .{side} x {side} pixels, at most 40,000,000 are read"):
        decode_picture(claiming(side), "huge.png", Preprocess())
    with pytest.raises(UserError, match="bomb.png: not read, as it says that it has more pixels than any photograph"):
        decode_picture(claiming(10**5), "bomb.png", Preprocess())
    thin, message = encoded(np.zeros((1, 4000, 3), np.uint8)), "thin.png: 4000 x 1 pixels; to bring .* 896000 x 224, at"
    with pytest.raises(UserError, match=message):  # by the resizing, long before a model sees it
        decode_picture(thin, "thin.png", Preprocess(size=224, how="crop", crop_fraction=1.0))
    assert decode_picture(thin, "thin.png", Preprocess(size=224, how="squash")).pixels.shape == (224, 224, 3)
    with pytest.raises(UserError, match="tall.png: 64 x 40 pixels; to bring its shorter side to 100000 takes"):
        decode_picture(encoded(tall), "tall.png", Preprocess(size=10**5, how="squash"))


def test_a_change_is_magnified_around_gray() -> None:
    clean = np.full((2, 2, 3), 0.5)
    change, times = magnified_change(clean, clean + 8 / 255, "inf", 8 / 255)
    assert change == pytest.approx(np.ones((2, 2, 3)))
    assert times == pytest.approx(255 / 16)
    same, _ = magnified_change(clean, clean, "2", 1.0)
    assert (same == 0.5).all()


def test_classes_have_the_names_of_the_data() -> None:
    model = PictureModel(rv.resolve_model("zoo:speedrun"))
    assert model.class_name(3, 10) == "cat"
    assert model.class_number("Cat", 10) == model.class_number("3", 10) == 3
    with pytest.raises(UserError, match="did you mean 'horse'"):
        model.class_number("hors", 10)
    with pytest.raises(UserError, match="no class '²'"):  # a digit, but no number
        model.class_number("²", 10)
    assert model.preprocess.size == 32


def test_what_is_wrong_without_an_attack_is_not_called_fooled(picture: np.ndarray) -> None:
    model = PictureModel(rv.resolve_model(Linear()))
    wrong = (int(logits(Linear(), picture).argmax()) + 1) % 10
    made = attack_picture(Linear(), picture, "pgd-2", THREATS["inf"], label=wrong)
    assert made.distance == 0
    assert model.verdict(made).startswith(f"wrong without an attack: {wrong} is {made.predicted}; inside Linf 8/255")


def test_a_photograph_of_the_package_has_its_own_class(tmp_path: Path) -> None:
    ask = ["attack", "sample:5", "--model", "zoo:speedrun", "--attack", "pgd-2", "--eps", "16/255", "--out"]
    done = CliRunner().invoke(app, [*ask, str(tmp_path)])
    assert "\nwrong without an attack: airplane is horse; inside" in done.stdout
    aimed = CliRunner().invoke(app, [*ask, str(tmp_path), "--target", "deer"])
    assert "; before the attack, the model said horse; inside" in aimed.stdout
    assert PictureModel(rv.resolve_model(Linear())).known_label(sample_picture("sample:5", Preprocess())) is None


def test_one_head_is_attacked_and_asked(tmp_path: Path) -> None:
    model = token_vit("tora", img_size=32)
    with torch.no_grad():
        for parameter in model.parameters():  # heads that begin alike
            parameter.add_(0.3 * torch.randn_like(parameter))
    save_model(model, tmp_path / "m.safetensors")
    ask = ["attack", "sample:3", "--model", str(tmp_path / "m.safetensors"), "--attack", "clean", "--eps", "8/255"]
    picture = sample_picture("sample:3", Preprocess()).pixels
    for head in ("acc", "rob"):
        done = CliRunner().invoke(app, [*ask, "--out", str(tmp_path), "--head", head])
        likely = logits(through(model, head), picture).softmax(0).max()
        assert f"{100 * likely:.1f} %" in done.stdout
    refused = CliRunner().invoke(app, [*ask, "--head", "robust"])
    assert refused.exit_code == 2
    assert "head 'robust': the model has no such head" in refused.output


def test_the_command_writes_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)).save("noise.png")
    ask = ["attack", "noise.png", "--model", "zoo:speedrun", "--attack", "pgd-3", "--eps", "16/255", "--out", "o"]
    done = CliRunner().invoke(app, ask)
    assert done.exit_code == 0, done.output
    assert "resized and cropped from 64 x 48 pixels to 32 x 32" in done.stdout
    assert [path.name for path in sorted(Path("o").iterdir())] == [
        f"noise-{name}.png" for name in ("adversarial", "change", "clean")
    ]
    clean, adversarial = (np.asarray(Image.open(f"o/noise-{name}.png")) for name in ("clean", "adversarial"))
    assert 0 < np.abs(clean.astype(int) - adversarial).max() <= 16
    model = PictureModel(rv.resolve_model("zoo:speedrun"))
    name = model.class_name(int(logits(model.module, adversarial).argmax()), 10)
    after = done.stdout.splitlines()[2].split()[3]
    assert after == name
    for words, message in (
        (["nowhere.png", "--model", "zoo:speedrun"], "nowhere.png"),
        (["sample:100", "--model", "zoo:speedrun"], "sample:0 to sample:99"),
        (
            ["sample:-1", "--model", "zoo:speedrun"],
            "sample:-1: the photographs of the package are sample:0 to sample:99",
        ),
        (["noise.png", "--model", "zoo:speedrun", "--target", "unicorn"], "no class 'unicorn'"),
        (["noise.png", "--model", "resnet18", "--size", "0"], "size: a whole number, at least 1"),
        (["noise.png", "--model", "zoo:speedrun", "--out", "noise.png"], "--out noise.png: is a file; name a folder"),
        (["noise.png", "--model", "zoo:speedrun", "--attack", "corruptions"], "'corruptions' is an evaluator, not an"),
    ):
        refused = CliRunner().invoke(app, ["attack", *words])
        assert refused.exit_code == 2, refused.output
        assert message in refused.output
