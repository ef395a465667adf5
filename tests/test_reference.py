"""One way to name a model: the same text means the same content on the command line, in YAML and in Python."""

import pickle
import sys

import pytest
import torch
from torch import nn

import robustvit as rv
from conftest import tiny_vit
from robustvit.attacks import FGSM, FromSurrogate
from robustvit.core.component import build, to_dict
from robustvit.core.errors import UserError
from robustvit.evaluation.suite import suite_from
from robustvit.models import fingerprint, reference, save_model
from robustvit.models.hints import ModelHints
from robustvit.models.reference import ModelRef, resolve_model
from test_training import TINY


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tiny_vit()
    save_model(model, tmp_path / "w.safetensors", rule="last", epoch=3)
    return model


def test_a_text_means_the_same_wherever_it_is_written(file, tmp_path):
    ref = resolve_model("w.safetensors")
    in_yaml = build("attack", {"name": "from_surrogate", "surrogate": "w.safetensors", "inner": "fgsm"})
    in_python = FromSurrogate(surrogate=tmp_path.joinpath("w.safetensors").relative_to(tmp_path), inner=FGSM())
    in_suite = suite_from("transfer:surrogate=w.safetensors,attack=fgsm")
    on_command_line = resolve_model("w.safetensors", ModelHints(command_line=True))
    assert ref == in_yaml.surrogate == in_python.surrogate == in_suite.surrogate == on_command_line
    assert str(ref) == f"w.safetensors#{ref.digest}" == to_dict(in_yaml)["surrogate"]
    assert fingerprint(ref.module()) == fingerprint(file)
    assert (ref.title, ref.run, ref.recipe) == ("w", None, None)
    assert ref.checkpoint["epoch"] == 3
    assert ref.checkpoint["rule"] == "last"
    assert ref.checkpoint["sha256"].startswith(ref.digest)
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(pickle.loads(pickle.dumps(ref)).module()(x), file.eval()(x))
    assert ref.module_for(x) is ref.module_for(x)
    assert ref.module_for(x.double())(x.double()).dtype == torch.float64


def test_other_content_under_an_old_digest_is_refused(file, tmp_path):
    text = str(resolve_model("w.safetensors"))
    assert str(resolve_model(text)) == text
    save_model(tiny_vit(qkv_bias=False), tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="other weights now"):
        resolve_model(text)


def test_a_pattern_names_one_file(file, tmp_path):
    assert resolve_model("w*.safetensors").digest == resolve_model("w.safetensors").digest
    assert resolve_model("w*.safetensors").source == "w*.safetensors"
    with pytest.raises(UserError, match="v\\*: no such checkpoint; a pattern must match one file"):
        resolve_model("v*")
    save_model(file, tmp_path / "w2.safetensors")
    with pytest.raises(UserError, match="2 files match .w.safetensors, w2.safetensors"):
        resolve_model("w*.safetensors")


def test_a_run_is_named_by_its_folder(tmp_path):
    run = rv.train({**TINY, "epochs": 1}, run=tmp_path / "run", quiet=True)
    ref = resolve_model(run.path)
    assert ref.checkpoint["path"] == str(run.checkpoint())
    assert ref.title == ref.checkpoint["name"] == TINY["name"]
    assert ref.recipe is not None
    assert ref.recipe["data"]["name"] == "digits"
    assert (ref.folder, ref.run) == (run.path, run)
    with pytest.raises(UserError, match=r"no checkpoint '7' \(there: .*last"):
        resolve_model(run.path, ModelHints(checkpoint="7"))
    assert resolve_model(run.path, ModelHints(checkpoint="last")).checkpoint["path"].endswith("last.safetensors")


def test_functions_and_modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "somebodys", raising=False)
    text = "import torch\ndef build():\n    torch.manual_seed(0)\n    return torch.nn.Linear(3, 2)\n"
    (tmp_path / "somebodys.py").write_text(text)
    ref = resolve_model("somebodys.py:build")
    assert ref.title == "somebodys-build"
    assert str(resolve_model(str(ref))) == str(ref)
    assert ref.digest == resolve_model(ref.module()).digest
    normalized = resolve_model("somebodys.py:build", ModelHints(mean=(0.5,), std=(0.5,)))
    assert normalized.digest != ref.digest
    module = nn.Linear(2, 2)
    assert resolve_model(module).module() is module
    with pytest.raises(UserError, match="mean and std go together"):
        resolve_model("somebodys.py:build", ModelHints(mean=(0.5,)))
    with pytest.raises(UserError, match="a path or an nn.Module, not 3"):
        resolve_model(3)


def test_a_further_kind_of_source_is_a_resolver(monkeypatch):
    def from_zoo(text, hints):
        return ModelRef(text, "0" * 8, "one", built=nn.Identity()) if text.startswith("zoo:") else None

    monkeypatch.setattr(reference, "RESOLVERS", [from_zoo, *reference.RESOLVERS])
    assert isinstance(FromSurrogate(surrogate="zoo:one", inner="fgsm").surrogate.module(), nn.Identity)


def test_a_checkpoint_of_somebody_else_has_a_digest_of_its_settings(file, tmp_path):
    torch.save(file.backbone.state_dict(), tmp_path / "bare.pt")
    made = file.settings
    hints = ModelHints(
        model=made.name, num_classes=10, img_size=8, mean=(0.0,), std=(1.0,),
        overrides=("patch_size=2", *(f"settings.{key}={value}" for key, value in made.settings.items())),
    )  # fmt: skip
    one, other = (resolve_model("bare.pt", h) for h in (hints, ModelHints(**{**vars(hints), "mean": (0.5,)})))
    assert one.digest != other.digest
    x = torch.rand(2, 3, 8, 8)
    assert not torch.equal(one.module()(x), other.module()(x))
    with pytest.raises(UserError, match="num_classes: bare.pt knows its own; only with model NAME"):
        resolve_model("bare.pt", ModelHints(num_classes=3))


def test_a_run_gives_the_checkpoint_that_its_recipe_selects(tmp_path):
    from robustvit.core.run import RunFolder

    run = RunFolder(tmp_path)
    run.checkpoints.mkdir()
    for name in ("best", "last"):
        (run.checkpoints / f"{name}.safetensors").touch()
    for recipe, expected in (
        ("seed: 0", "last"),
        ("checkpoints: {select: best}", "best"),
        ("checkpoints: {select: last}", "last"),
    ):
        run.recipe.write_text(recipe)
        assert run.checkpoint().stem == expected
        assert run.checkpoint("best").stem == "best"
        assert run.checkpoint("last").stem == "last"
