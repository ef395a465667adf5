"""Models with several outputs: each has results of its own, and one may be attacked and another judged."""

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import robustvit as rv
from conftest import linear_digits, token_vit
from robustvit.analysis.perturbations import Perturbations
from robustvit.attacks import PGD, Search, ThroughHead
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.streams import sample_streams
from robustvit.evaluation import open_subject
from robustvit.models import fingerprint, head_names, through
from robustvit.models.attention_factors import set_attention_factors
from robustvit.models.heads import Head, whole

THREAT = rv.LpBall("inf", 0.2)


class TwoHeads(nn.Module):
    """A network of somebody else: a linear layer for each head, and their sum."""

    head_names = ("sum", "left", "right")

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(192, 10), nn.Linear(192, 10)

    def forward(self, x: Tensor, head: str = "sum") -> Tensor:
        logits = {"left": self.left(x.flatten(1)), "right": self.right(x.flatten(1))}
        return sum(logits.values()) if head == "sum" else logits[head]


@pytest.fixture
def model() -> nn.Module:
    made = TwoHeads().eval()
    made.right.load_state_dict(linear_digits()[1].state_dict())
    return made


@pytest.fixture
def data(digits):
    return digits[0][:32], digits[1][:32]


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_model_through_its_first_head_is_the_model(model):
    assert head_names(model) == ("sum", "left", "right")
    assert through(model, "sum") is model
    assert through(model, None) is model
    assert through(through(model, "left"), "sum") is model
    assert through(through(model, "left"), "right").model is model


def test_the_model_through_another_head_has_its_logits(model, data):
    assert torch.equal(through(model, "left")(data[0]), model.left(data[0].flatten(1)))
    normalized = rv.normalized(model, (0.5,), (2.0,))
    assert torch.equal(through(normalized, "right")(data[0]), model.right(((data[0] - 0.5) / 2).flatten(1)))


def test_heads_never_share_a_result_even_where_their_logits_are_equal(model, data, tmp_path):
    model.right.load_state_dict(model.left.state_dict())
    results = {
        head: rv.evaluate(model, data, suite="fgsm", threat=THREAT, head=head, run=tmp_path, quiet=True)
        for head in (None, "sum", "left", "right")
    }
    assert results[None].folder == results["sum"].folder
    assert len({result.folder for result in results.values()}) == 3
    assert results["left"].provenance.model["head"] == "left"
    assert "head" not in results["sum"].provenance.model
    assert np.array_equal(results["left"].is_robust, results["right"].is_robust)


def test_each_head_is_attacked_through_itself(model, data):
    by_head = rv.evaluate(model, data, suite="pgd-5", threat=THREAT, head="left", quiet=True, checks=False)
    by_hand = rv.evaluate(
        nn.Sequential(nn.Flatten(), model.left), data, suite="pgd-5", threat=THREAT, quiet=True, checks=False
    )
    assert np.array_equal(by_head.is_robust, by_hand.is_robust)


def test_one_head_is_attacked_and_another_judged(model, data):
    x, y = data
    random = sample_streams(0, range(len(x)))
    x_adv = PGD(steps=3)(through(model, "left"), x, y, THREAT, Search(random))
    attack = ThroughHead(inner=PGD(steps=3), head="left")
    assert torch.equal(attack(through(model, "right"), x, y, THREAT, Search(random)), x_adv)
    assert attack.label.endswith("through left")
    options = {"threat": THREAT, "head": "right", "quiet": True, "checks": False}
    result = rv.evaluate(model, data, suite=attack, **options)
    with torch.no_grad():
        right = through(model, "right")
        expected = ((right(x).argmax(1) == y) & (right(x_adv).argmax(1) == y)).numpy()
    assert np.array_equal(result.is_robust, expected)
    assert (result.is_robust != rv.evaluate(model, data, suite="pgd-3", **options).is_robust).any()


def test_an_attack_on_a_head_that_is_not_there_is_refused_before_any_work(model, data, trained):
    suite = {"name": "through_head", "inner": "fgsm", "head": "lft"}
    with pytest.raises(UserError, match="did you mean 'left'"):
        rv.evaluate(model, data, suite=suite, threat=THREAT, quiet=True)
    with pytest.raises(UserError, match="has one output and no heads"):
        rv.evaluate(trained, data, suite=suite, threat=THREAT, quiet=True)


@pytest.mark.parametrize("head", ["left", "other"])
def test_head_of_a_bare_callable(head, data):
    with pytest.raises(UserError, match=f"head '{head}': the model function has one output and no heads; leave it out"):
        rv.evaluate(lambda x: x.flatten(1)[:, :10], data, suite="clean", head=head, quiet=True)


def test_images_of_another_size_get_advice_through_a_head():
    images = torch.rand(2, 3, 16, 16), torch.tensor([0, 1])
    with pytest.raises(UserError, match=r"the model fails .*preprocess: \{how: crop, size: 8\}"):
        rv.evaluate(token_vit("tora"), images, suite="clean", threat=THREAT, head="rob", quiet=True)


@pytest.mark.parametrize("head", ["acc", "rob"])
def test_activations_are_those_that_the_head_gets(head, data):
    model, seen = token_vit("tora"), []
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    what = {"name": "feature_visualization", "target": "activation", "made": 2, "steps": 1}
    (finding,) = rv.analyze(model, data, what=what, head=head, quiet=True)
    model.backbone.heads[head].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        through(model, head)(torch.from_numpy(finding.arrays["made"]))
    expected = seen[0].gather(1, torch.from_numpy(finding.arrays["target"])[:, None]).squeeze(1)
    assert finding.arrays["value"][:, 1] == pytest.approx(expected.numpy(), rel=1e-3)


def test_the_size_of_patches_is_known_through_a_head(data):
    assert Perturbations()._patch(open_subject(through(token_vit("tora"), "rob"), data)) == 2


def test_extra_state_of_the_whole_model_tells_heads_apart():
    model = token_vit("tora")
    before = fingerprint(through(model, "rob"))
    set_attention_factors(model, [0.5, 2.0])
    assert fingerprint(through(model, "rob")) != before
    assert whole(Head(model, "acc")) is model


def test_the_command_line_takes_a_head(tmp_path):
    rv.save_model(token_vit("tora"), tmp_path / "tora.safetensors")
    rv.save_model(token_vit(), tmp_path / "plain.safetensors")
    common = ["--data", "digits", "--images", 8, "--run", tmp_path / "run"]
    done = run("evaluate", tmp_path / "tora.safetensors", "--suite", "clean", "--head", "rob", *common)
    assert done.exit_code == 0, done.output
    (file,) = tmp_path.glob("run/eval/*/result.json")
    assert json.loads(file.read_text())["provenance"]["model"]["head"] == "rob"
    assert "head" in done.stdout
    done = run("analyze", tmp_path / "tora.safetensors", "--what", "attention_scores", "--head", "acc", *common)
    assert done.exit_code == 0, done.output
    for command in (["evaluate", "--suite", "clean"], ["analyze", "--what", "attention_scores"]):
        plain = run(command[0], tmp_path / "plain.safetensors", *command[1:], "--head", "rob", *common)
        assert plain.exit_code == 2
        assert "has one output and no heads" in " ".join(plain.stderr.split())
    wrong = run("evaluate", tmp_path / "tora.safetensors", "--suite", "clean", "--head", "robust", *common)
    assert wrong.exit_code == 2
    assert "did you mean 'rob'" in wrong.stderr
