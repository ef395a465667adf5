"""ONNX: the same logits under onnxruntime, and files as models for attacks that need no gradients."""

import copy
import pickle

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import robustvit as rv
from conftest import tiny_vit, token_vit
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.models import create_model, fingerprint, load_model, save_model
from robustvit.models.onnx import OnnxModel

ort = pytest.importorskip("onnxruntime", reason="onnxruntime isn't installed: make interop")
pytest.importorskip("onnxscript", reason="onnxscript isn't installed: make interop")


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.output


def exported(folder, model, name="m"):
    save_model(model, folder / f"{name}.safetensors")
    out = folder / f"{name}.onnx"
    code, output = run("export", folder / f"{name}.safetensors", "--format", "onnx", "--out", out)
    assert code == 0, output
    return out


@pytest.fixture(scope="module")
def vit_file(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("onnx"), tiny_vit())


def test_a_file_takes_pixels_and_gives_the_logits_of_the_model(vit_file, tmp_path):
    wide = create_model("wideresnet", depth=10, width=1, num_classes=4, img_size=8).eval()
    with torch.no_grad():
        for module in wide.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-1, 1), module.running_var.uniform_(0.5, 2)
    for path, model in ((vit_file, tiny_vit()), (exported(tmp_path, wide), wide)):
        session = ort.InferenceSession(path)
        assert [one.name for one in (*session.get_inputs(), *session.get_outputs())] == ["pixels", "logits"]
        for count in (1, 5, 64):
            x = torch.rand(count, 3, 8, 8)
            (logits,) = session.run(None, {"pixels": x.numpy()})
            with torch.no_grad():
                assert torch.allclose(torch.from_numpy(logits), model(x), atol=1e-5)


@pytest.mark.parametrize("softmax", ["adapter", "per_token", "token", "all"])
def test_models_with_adapters_keep_their_logits(softmax, tmp_path):
    model, x = token_vit({"name": "tora", "softmax": softmax}), torch.rand(3, 3, 8, 8)
    with torch.no_grad():
        for parameter in model.parameters():  # the gates begin as zeros
            parameter.add_(0.1 * torch.randn_like(parameter))
        (logits,) = ort.InferenceSession(exported(tmp_path, model)).run(None, {"pixels": x.numpy()})
        assert torch.allclose(torch.from_numpy(logits), model(x), atol=1e-5)


def test_a_file_is_a_model_with_an_identity(vit_file, tmp_path):
    model, x = load_model(vit_file), torch.rand(3, 3, 8, 8)
    assert torch.allclose(model(x), tiny_vit()(x), atol=1e-5)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(x), model(x))
    other = exported(tmp_path, tiny_vit(depth=1))
    assert fingerprint(load_model(other)) != fingerprint(model) == fingerprint(load_model(vit_file))
    assert rv.resolve_model(f"{vit_file}#{rv.resolve_model(vit_file).digest}").title == "m"
    moved = load_model(vit_file, mean=(0.5,), std=(2.0,))
    assert torch.allclose(moved(x), model((x - 0.5) / 2))


def test_black_box_suites_attack_it_and_gradient_attacks_say_why_not(vit_file, tmp_path):
    common = [vit_file, "--data", "digits", "--eps", "8/255", "--images", "16", "--run", tmp_path / "run"]
    square = "{name: square, queries: 20}"
    code, output = run("evaluate", *common, "--suite", square)
    assert code == 0, output
    options = {"suite": [rv.attacks.Square(queries=20)], "threat": rv.LpBall("inf", "8/255"), "images": 16}
    of_torch, of_onnx = (rv.evaluate(model, "digits", **options) for model in (tiny_vit(), vit_file))
    assert (of_onnx.is_robust == of_torch.is_robust).all()
    code, output = run("evaluate", *common, "--suite", "pgd-2")
    assert (code, output.splitlines()[-1]) == (
        2, f"robustvit: {vit_file}: an ONNX model has no gradients for this attack; use suite 'square'"
    )  # fmt: skip


def test_nothing_is_written_unless_onnxruntime_agrees(tmp_path, monkeypatch):
    save_model(tiny_vit(depth=1), tmp_path / "m.safetensors")
    run_in_onnx = OnnxModel.forward
    monkeypatch.setattr(OnnxModel, "forward", lambda model, x: run_in_onnx(model, x) * 1.001)
    code, output = run("export", tmp_path / "m.safetensors", "--format", "onnx", "--out", tmp_path / "m.onnx")
    assert code == 2
    assert output.splitlines()[-1].endswith("onnxruntime gives other logits than the model; nothing was written")
    assert not (tmp_path / "m.onnx").exists()


def test_images_of_another_size_are_refused_and_a_picture_is_brought_to_it(vit_file, tmp_path):
    with pytest.raises(UserError, match="m.onnx: takes images of 8 x 8 pixels, not 12 x 10"):
        load_model(vit_file)(torch.rand(2, 3, 10, 12))
    code, output = run("evaluate", vit_file, "--data", "cifar10_sample", "--suite", "square", "--eps", "8/255")
    assert (code, "takes images of 8 x 8 pixels, not 32 x 32" in output) == (2, True), output
    square = "{name: square, queries: 5}"
    asked = ["--model", vit_file, "--attack", square, "--eps", "8/255", "--out", tmp_path]
    code, output = run("attack", "sample:3", *asked)
    assert code == 0, output
    assert "resized from 32 x 32 pixels to 8 x 8" in output


def test_a_fixed_number_of_images_is_filled_up(tmp_path):
    model = tiny_vit()
    options = {"dynamo": True, "verbose": False}
    torch.onnx.export(model, (torch.rand(4, 3, 8, 8),), tmp_path / "four.onnx", **options, external_data=False)
    x = torch.rand(7, 3, 8, 8)
    assert torch.allclose(load_model(tmp_path / "four.onnx")(x), model(x), atol=1e-5)
    torch.onnx.export(model, (torch.rand(4, 3, 8, 8),), tmp_path / "two.onnx", **options, external_data=True)
    with pytest.raises(UserError, match="has its weights in other files; put them into one"):
        load_model(tmp_path / "two.onnx")


def test_files_that_hold_no_classifier_are_refused(vit_file, tmp_path):
    (tmp_path / "x.onnx").write_bytes(vit_file.read_bytes()[:999])
    with pytest.raises(UserError, match="onnxruntime can't read it"):
        load_model(tmp_path / "x.onnx")
    flat = nn.Linear(4, 2).eval()
    torch.onnx.export(flat, (torch.rand(2, 4),), tmp_path / "flat.onnx", dynamo=True, verbose=False)
    with pytest.raises(UserError, match=r"must take one float image batch \(N, 3, H, W\), not .*\[2, 4\]"):
        load_model(tmp_path / "flat.onnx")
    with pytest.raises(UserError, match="num_classes"):
        load_model(vit_file, num_classes=3)
