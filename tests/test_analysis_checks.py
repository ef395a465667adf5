"""What an analysis needs is checked before anything is planned or computed."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

import robustvit as rv
from conftest import tiny_vit, token_vit
from robustvit.analysis import analyze
from robustvit.core.errors import UserError
from robustvit.losses import predicted_classes

THREAT = rv.LpBall("inf", 0.1)
OPTIONS = {"images": 4, "quiet": True}
GRADIENTS = (
    "attack_strength", "attention_attacks", "boundary", "feature_visualization", "gradient_paths", "input_gradients",
    "loss_along", "loss_by_steps", "loss_surface", "perturbations",
)  # fmt: skip
EPS = ("attack_strength", "attention_attacks", "gradient_paths", "loss_along", "loss_by_steps", "loss_surface",
       "perturbations")  # fmt: skip


class Stray(nn.Module):
    """Has a softmax outside of its attention."""

    def __init__(self, vit):
        super().__init__()
        self.backbone = vit.backbone

    def forward(self, x):
        return self.backbone(x.softmax(-1))


class Detached(Stray):
    def forward(self, x):
        return self.backbone(x).detach()


@pytest.fixture
def nothing_computed(monkeypatch):
    """Neither a timed batch nor an analysis."""
    for module, function in (("plan", "seconds_of_a_pass"), ("analyze", "_analyzed")):
        monkeypatch.setattr(sys.modules[f"robustvit.analysis.{module}"], function, lambda *given: pytest.fail("work"))


def right(model):
    """Images that the model is right about."""
    x, _ = rv.load_data("digits", 4)
    with torch.no_grad():
        return x, predicted_classes(model(x))


def refusal(name, model, threat=THREAT, **settings) -> str:
    with pytest.raises(UserError) as error:
        analyze(model, right(model), what={"name": name, **settings}, threat=threat, **OPTIONS)
    assert str(error.value).startswith(f"{name}: ") or str(error.value).startswith(f"{name}.")
    return str(error.value)


@pytest.mark.usefixtures("nothing_computed")
class TestBeforeAnyWork:
    @pytest.mark.parametrize("name", ["attention_scores", "input_gradients", "attention_attacks"])
    def test_attention_that_is_out_of_reach(self, name):
        assert "a softmax outside of every module" in refusal(name, Stray(token_vit()))

    @pytest.mark.parametrize("name", GRADIENTS)
    def test_no_gradient(self, name):
        said = refusal(name, Detached(token_vit()))
        assert "follows gradients, but the model gives no gradient to its input (detached, or under no_grad)" in said
        assert "suite" not in said

    @pytest.mark.parametrize("name", EPS)
    def test_eps_0(self, name):
        assert "needs a threat with an eps above 0" in refusal(name, token_vit(), rv.LpBall("inf", 0))

    def test_no_threat(self):
        assert "needs a threat, such as --eps 8/255" in refusal("boundary", token_vit(), None)

    @pytest.mark.parametrize("name", ["perturbations", "gradient_paths"])
    def test_an_attack_of_another_norm(self, name):
        said = refusal(name, token_vit(), rv.LpBall("1", 2), attack={"name": "fgsm"})
        assert "alone, not in L1 2" in said

    def test_factors_of_another_model(self, tmp_path):
        (tmp_path / "factors.json").write_text("[0.5, 0.5, 0.5]")
        for name in ("attention_scores", "input_gradients"):
            assert "has 2 attention blocks, the factors are 3" in refusal(
                name, token_vit(), factors=str(tmp_path / "factors.json")
            )

    def test_masks_of_other_images(self, tmp_path):
        np.save(tmp_path / "masks.npy", np.ones((3, 8, 8)))
        for name, model in (("eigen_cam", token_vit()), ("gates", token_vit({"name": "tora"}))):
            assert "has the shape (3, 8, 8), not (4, H, W)" in refusal(name, model, masks=str(tmp_path / "masks.npy"))

    def test_blocks_without_a_common_shape(self):
        class Block(nn.Linear):
            pass

        model = nn.Sequential(nn.Flatten(), Block(192, 7), Block(7, 10))
        assert "no two blocks have outputs of the same shape" in refusal(
            "layer_similarity", model, measures=["correlation"]
        )


LOGITS = "an attack can scale the logits of such a model instead, as aas-pgd-100:where=logits,factors=0.1 does"


@pytest.mark.parametrize(
    ("name", "needs", "instead"),
    [
        ("lesion", "leaves out blocks, or their attention and MLP", "confusion and boundary take any model"),
        ("layer_similarity", "compares the outputs of blocks", "confusion and boundary take any model"),
        ("eigen_cam", "shows the features of the last block", "name a layer of its own with eigen_cam.layer"),
        ("restricted_attention", "masks pairs of patches in attention", "lesion and layer_similarity take networks"),
        ("attention_maps", "shows where attention goes", "eigen_cam shows"),
        ("gradient_paths", "stops gradients at the attention of blocks", "lesion and layer_similarity take networks"),
        ("attention_scores", "looks at the scores of attention before their softmax", LOGITS),
        ("input_gradients", "compares gradients with and without scaled attention", LOGITS),
        ("attention_attacks", "attacks with scaled attention", LOGITS),
    ],
)
def test_each_says_what_it_needs_what_is_lacking_and_what_to_take_instead(name, needs, instead, trained):
    said = refusal(name, trained)
    assert said.startswith(f"{name}: {needs}, but Sequential has no attention block")
    assert f"; {instead}" in said
    assert ("aas-pgd" in said) == ("logits" in instead)
    if name in ("lesion", "layer_similarity", "eigen_cam"):
        assert "and no module whose name ends with Block or Bottleneck;" in said


def test_all_leaves_out_what_a_first_pass_would_refuse(capsys):
    model = Stray(token_vit())
    analyze(model, right(model), what="all", threat=THREAT, images=4, plan_only=True)
    text = capsys.readouterr().err
    planned = {line.split()[0] for line in text.splitlines()[2:] if "left out" not in line}
    assert {"confusion", "lesion", "boundary"} <= planned
    assert not {"attention_scores", "input_gradients", "attention_attacks"} & planned
    assert "left out: attention_attacks, attention_maps, attention_scores" in text


def test_all_says_that_attacks_need_a_threat(capsys):
    analyze(tiny_vit(), "digits", what="all", images=4, plan_only=True)
    (line,) = (one for one in capsys.readouterr().err.splitlines() if "needs a threat" in one)
    assert all(name in line for name in ("boundary", "perturbations", "attack_strength"))


def test_all_goes_on_where_only_the_images_tell_that_one_is_impossible(trained, capsys, monkeypatch):
    from robustvit.core.component import _REGISTRY

    known = {name: _REGISTRY["analysis"][name] for name in ("loss_along", "confusion")}
    monkeypatch.setitem(_REGISTRY, "analysis", known)
    options = {"on": "pgd-10", "threat": rv.LpBall("inf", 0.5), "images": 4}  # all are fooled
    (found,) = analyze(trained, "digits", what="all", quiet=True, **options)
    assert found.title == "Classes"
    assert "left out: loss_along: the model classifies none of 4 images correctly" in capsys.readouterr().err
    with pytest.raises(UserError, match="none of 4 images"):
        analyze(trained, "digits", what="loss_along", quiet=True, **options)


def test_on_adversarial_images_no_gradient_is_needed_to_show_them():
    model = Detached(token_vit())
    (found,) = analyze(model, right(model), what="perturbations", on="square:queries=2", threat=THREAT, **OPTIONS)
    assert found.title == "Perturbations"
