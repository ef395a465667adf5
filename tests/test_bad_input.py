"""Every mistake on the command line: one clear line, exit code 2, no traceback, nothing lost."""

import os
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from robustvit.cli.main import app
from robustvit.data import Digits
from robustvit.models import create_model, save_model
from robustvit.training import train

runner = CliRunner()
MODEL = ["--num-classes", "10", "--img-size", "8"]
GENERATED = "generated={{data: {{name: generated, path: {}}}, ratio: {}}}"
THOUSAND = ",".join(map(str, range(1, 1001)))
HUGE_GRID = [part for name in ("seed", "epochs", "workers", "log_every") for part in ("-o", f"{name}={THOUSAND}")]
ON_DIGITS = ["--data", "digits", "--eps", "0.1", "--suite", "pgd-1", "--images", "16"]


@pytest.fixture
def place(tmp_path, monkeypatch, vit):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def build(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))\n"
        "def number(): return 3\n"
        "def wide(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 12))\n"
        "def strange(): return torch.nn.Identity()\n"
        "def failing(): return 1 / 0\n"
    )
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "json.py").write_text("def build(): return 3\n")
    monkeypatch.setenv("ROBUSTVIT_DATA", str(tmp_path / "data"))
    torch.save({"state_dict": create_model("test_resnet", num_classes=10).backbone.state_dict()}, tmp_path / "bare.pt")
    (tmp_path / "imports.py").write_text("import a_module_that_is_not_there\n")
    (tmp_path / "broken.yaml").write_text("name: [\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "number.yaml").write_text("1: 2\n")
    (tmp_path / "date.yaml").write_text("name: 2020-99-99\n")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "noise.safetensors").write_bytes(np.random.default_rng(0).bytes(999))
    torch.save(torch.nn.Linear(2, 2), tmp_path / "pickled.pt")
    save_model(vit, tmp_path / "good.safetensors")
    np.savez(tmp_path / "empty.npz", image=np.zeros((0, 8, 8, 3), np.uint8), label=np.zeros(0, int))
    np.savez(tmp_path / "labels.npz", image=np.zeros((4, 8, 8, 3), np.uint8), label=np.array([0, 1, 2, 70]))
    np.savez(
        tmp_path / "negative.npz",
        image=np.zeros((10, 8, 8, 3), np.uint8),
        label=np.arange(10) - 1 + (np.arange(10) == 9),
    )
    np.savez(tmp_path / "wide.npz", image=np.zeros((10, 8, 9, 3), np.uint8), label=np.arange(10))
    (tmp_path / "wide.npz").rename(tmp_path / "zipped.npy")
    np.savez(tmp_path / "wide.npz", image=np.zeros((10, 8, 9, 3), np.uint8), label=np.arange(10))
    np.save(tmp_path / "label.npy", np.arange(10))
    for name in ("pipe.yaml", "pipe.npz", "pipe.tar", "pipe.pt", "pipe.txt"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "itself.yaml").write_text("name: &a [*a]\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "afile").write_text("")
    return tmp_path


CASES = [
    (["train", "nothing"], "no recipe 'nothing'"),
    (["train", "digits/trads"], "did you mean 'digits/trades'"),
    (["train", "broken.yaml"], "broken YAML"),
    (["train", "list.yaml"], "a map of settings"),
    (["train", "bytes.yaml"], "not a text file|broken YAML"),
    (["train", "digits/trades", "-o", "objective.bta=1"], "objective.bta: no such setting; did you mean 'beta'?"),
    (["train", "digits/trades", "-o", "threat.eps=8"], "did you mean 8/255?"),
    (["train", "digits/trades", "-o", "optimizer.lr=fast"], "recipe.optimizer.lr: 'fast' is not a number"),
    (["train", "digits/trades", "-o", "epochs=-1"], "recipe.epochs"),
    (["train", "digits/trades", "-o", "nonsense"], "expected path.to.setting=value"),
    (["train", "digits/trades", "-o", "model.name=vit_tny"], "no model 'vit_tny'"),
    (["train", "digits/trades", "-o", "model.num_classes=7"], "the labels of digits/train are of 10"),
    (["train", "digits/trades", "--run", "afile"], "a file, not a run folder"),
    (["train", "number.yaml"], "the name of a setting is text"),
    (["train", "date.yaml"], "broken YAML"),
    (["train", "x" * 300], "no recipe"),
    (["train", "digits/trades", "-o", "objective.name=[a]"], "text"),
    (["train", "digits/trades", "-o", "threat.eps=1e999"], "not a number"),
    (["train", "digits/trades", "-o", "model.patch_size=0"], "recipe.model.patch_size"),
    (["check", "digits/trades", "-o", "model.img_size=12"], "fails on images of shape"),
    (["check", "digits/trades", "-o", "model.num_classes=7"], "the labels of digits/train are of 10"),
    (["check", "digits/trades", "-o", "optimizer.opt=adamm"], "no optimizer 'adamm'"),
    (["check", "digits/trades", "-o", "trainable=[]"], "trains nothing"),
    (["check", "digits/trades", "-o", "threat.norm=7"], "the norm is"),
    (["check", "digits/trades", "-o", GENERATED.format("absent.npz", "0.8")], "no file or folder 'absent.npz'"),
    (["check", "digits/trades", "-o", GENERATED.format("empty.npz", "1.5")], "ratio: input should be less than"),
    (["check", "digits/trades", "-o", GENERATED.format("empty.npz", "-1/10")], "recipe.generated.ratio"),
    (["train", "digits/trades", "-o", GENERATED.format("empty.npz", "0.8")], "holds no images"),
    (["train", "digits/trades", "-o", GENERATED.format("wide.npz", "0.8")], "those of digits/train (3, 8, 8)"),
    (["check", "digits/trades", "-o", GENERATED.format("labels.npz", "0.8")], "label 70 is outside"),
    (["check", "digits/trades", "-o", GENERATED.format("folder", "0.8")], "expected images-*.npy"),
    (["check", "digits/pgd-at", "-o", "objective.attack.loss=cw", "-o", "mixing={}"], "takes no soft labels"),
    (["check", "digits/trades", "-o", "augmentation=lite"], "did you mean 'light'"),
    (["check", "digits/trades", "-o", "augmentation={name: light, scale: [1, 0.5]}"], "recipe.augmentation.scale"),
    (["check", "digits/trades", "-o", "mixing.mixup=0"], "recipe.mixing.mixup"),
    (["check", "digits/trades", "-o", "augmentation_schedule=linear_warmup"], "no augmentation here has an intensity"),
    (["check", "digits/trades", "-o", "repeats=2"], "repeats: without augmentation"),
    (["check", "digits/trades", "-o", "workers=-1"], "recipe.workers"),
    (["check", "digits/trades", "--show-batch", "--step", "99999"], "--step 99999: the phase has the steps 0 to 799"),
    (["train", "pipe.yaml"], "neither a file nor a recipe"),
    (["train", "itself.yaml"], "a value that contains itself (line 1, column 7)"),
    (["train", "digits/trades", "-o", "threat.eps=1e999999999"], "recipe.threat.eps: '1e999999999' is not a number"),
    (["train", "digits/trades", "-o", "threat.eps=8/255/2"], "recipe.threat.eps: '8/255/2' is not a number"),
    (["train", "digits/trades", "-o", "threat.eps=true"], "recipe.threat.eps: a number, not True"),
    (["train", "digits/trades", "-o", "epochs=true"], "recipe.epochs: a number, not True"),
    (["train", "digits/trades", "-o", f"seed={'9' * 5000}"], "a number of 5000 characters"),
    (["train", "digits/trades", "-o", f"seed={'[' * 5000}"], "nested deeper than 64 levels"),
    (["train", "digits/trades", "-o", "phases=[]"], "phases: at least one"),
    (["train", "digits/trades", "-o", "phases=3", "-o", "epochs=2"], "recipe.phases"),
    (["train", "digits/trades", "-o", "batch_size=1438"], "has only 1309 to train on"),
    (["train", "digits/trades", "-o", "objective={name: trades, __dataclass_self__: 3}"], "no such setting"),
    (["train", "digits/trades", "-o", "data.select.images=pipe.txt"], "no file 'pipe.txt'"),
    *(
        (["train", "digits/trades", "-o", f"objective={{name: trades, attack: {tree}}}"], "stps: no such setting")
        for tree in (
            "{name: pgd, stps: 3}",
            "{name: restarts, inner: {name: pgd, stps: 3}}",
            "{name: restarts, inner: {name: restarts, inner: {name: pgd, stps: 3}}}",
        )
    ),
    (["sweep", "digits/trades", *HUGE_GRID], "1,000,000,000,000 runs, where at most 1,000 are allowed"),
    (["evaluate", "pipe.pt", "--model", "resnet18", *ON_DIGITS], "no such checkpoint"),
    (["evaluate", "mine:build", "--data", "pipe.npz", "--eps", "0.1"], "no file 'pipe.npz'"),
    (["evaluate", "mine:build", "--data", "pipe.tar", "--eps", "0.1"], "no tar shards 'pipe.tar'"),
    (["evaluate", "mine:build", "--data", "/dev/zero", "--eps", "0.1"], "no data '/dev/zero'"),
    (["evaluate", "mine:build", "--data", "zipped.npy", "--eps", "0.1"], "it is an .npz file; rename it"),
    (["evaluate", "mine:build", *ON_DIGITS, "--suite", f"pgd-{'9' * 5000}"], "no suite 'pgd-999"),
    (["evaluate", "mine:build", *ON_DIGITS, "--processes", "17"], "processes: 17, where there are 16 images"),
    (["evaluate", "mine:build", *ON_DIGITS, "--suite", ""], "no suite ''"),
    (["evaluate", "mine:build", *ON_DIGITS, "--suite", "pgd-0"], "how many steps? the name is pgd-N[xR][-tT], such as"),
    (["evaluate", "mine:build", *ON_DIGITS, "-o", "data=3"], "data: expected a registered data"),
    (["evaluate", "mine:build", "--data", "digits", "--eps", "1e-400"], "'1e-400' is too small for a number"),
    (["check", "digits/trades", "-o", f"epochs={10**20}"], "recipe.epochs: input should be less than or equal to"),
    (["check", "digits/trades", "-o", "workers=100000"], "recipe.workers: input should be less than or equal to 1024"),
    (["check", "digits/trades", "-o", "validation.suite=nope"], "recipe: validation.suite: no suite 'nope'"),
    *(
        (["train", "digits/trades", "-o", f"name={name}"], "name: the name of a folder below runs")
        for name in ("''", "../../x", "a/../b", "/tmp/x", '"a\\0b"')
    ),
    (["list", "attaks"], "did you mean 'attacks'"),
    (["report", "folder"], "metrics.jsonl"),
    (["report", "absent"], "no"),
    (["evaluate", "absent.safetensors", *ON_DIGITS], "no such checkpoint"),
    (["evaluate", "absent", *ON_DIGITS], "'absent' is not there"),
    (["evaluate", "folder", *ON_DIGITS], "no run folder"),
    (["evaluate", "noise.safetensors", *ON_DIGITS], "not a whole safetensors file"),
    (["evaluate", "pickled.pt", "--model", "resnet18", *ON_DIGITS], "could run code"),
    (["evaluate", "mine:number", *ON_DIGITS], "must return an nn.Module, not int"),
    (["evaluate", "mine:absent", *ON_DIGITS], "no function 'absent'"),
    (["evaluate", "absent:build", *ON_DIGITS], "no module 'absent'"),
    (["evaluate", "imports:build", *ON_DIGITS], "a_module_that_is_not_there"),
    (["evaluate", "mine:failing", *ON_DIGITS], "ZeroDivisionError"),
    (["evaluate", "mine:wide", "--data", "digits", "--suite", "corruptons"], "'corruptons'"),
    (["evaluate", "mine:wide", *ON_DIGITS], "the model has 12 classes, the labels of digits/test are of 10"),
    (["evaluate", "mine:strange", *ON_DIGITS], "logits of shape"),
    (["evaluate", "mine:build", "--data", "empty.npz", "--eps", "0.1"], "holds no images"),
    (["evaluate", "mine:build", "--data", "labels.npz", "--eps", "0.1"], "label 70 is outside"),
    (["evaluate", "mine:build", "--data", "negative.npz", "--eps", "0.1"], "label -1"),
    (["evaluate", "mine:build", "--data", "wide.npz", "--eps", "0.1"], "fails on images of shape (3, 8, 9)"),
    (["evaluate", "mine:build", "--data", "absent.npz", "--eps", "0.1"], "no file"),
    (["evaluate", "mine:build", "--data", "digts", "--eps", "0.1"], "did you mean 'digits'"),
    (["evaluate", "mine:build", "--eps", "0.1"], "--data"),
    (["evaluate", "mine:build", "--data", "digits"], "--eps"),
    (["evaluate", "mine:build", "--data", "digits", "--eps", "8"], "did you mean 8/255?"),
    (["evaluate", "mine:build", "--data", "digits", "--eps", "8/0"], "divides by zero"),
    (["evaluate", "mine:build", "--data", "digits", "--eps", "much"], "not a number"),
    (["evaluate", "mine:build", *ON_DIGITS, "--norm", "3"], "the norm is"),
    (["evaluate", "mine:build", *ON_DIGITS, "--split", "val"], "--split"),
    (["evaluate", "mine:build", *ON_DIGITS, "--mean", "0.5"], "--mean and --std go together"),
    (["evaluate", "mine:build", *ON_DIGITS, "--mean", "a,b", "--std", "1"], "--mean a,b"),
    (["evaluate", "mine:build", *ON_DIGITS, "--device", "gpu"], "device"),
    (["evaluate", "mine:build", *ON_DIGITS, "--batch-size", "0"], "batch_size"),
    (["evaluate", "mine:build", "--data", "digits", "--eps", "0.1", "--images", "0"], "whole number from 1 to 360"),
    (["evaluate", "mine:build", "--data", "digits", "--eps", "0.1", "--suite", "pgd-x"], "no suite 'pgd-x'"),
    (["evaluate", "good.safetensors", *ON_DIGITS, "--run", "afile"], "can't be used as a folder"),
    (["evaluate", "good.safetensors", *ON_DIGITS, "--num-classes", "7"], "knows its own"),
    (["evaluate", "mine:build", *ON_DIGITS, "--num-classes", "7"], "builds its own model"),
    (["evaluate", "mine:build", *ON_DIGITS, "--checkpoint", "best"], "only a run folder"),
    (["evaluate", "mine:build", *ON_DIGITS, "-o", "model.depth=3"], "-o model.depth=3: mine:build builds its own"),
    (["evaluate", "mine:build", *ON_DIGITS, "-o", "suite=3"], "below data., threat. and model."),
    (["evaluate", "mine:build", *ON_DIGITS, "--weights-key", "ema"], "only a checkpoint"),
    (["evaluate", "mine.py:absent", *ON_DIGITS], "no function 'absent'"),
    (["evaluate", "elsewhere/mine.py:build", *ON_DIGITS], "no file 'elsewhere/mine.py'"),
    (["evaluate", "json.py:build", *ON_DIGITS], "the name of another module"),
    (["evaluate", "good.safetensors", *ON_DIGITS, "--weights-key", "ema"], "holds one set of weights"),
    (["evaluate", "bare.pt", *ON_DIGITS], "name it: --model NAME"),
    (["evaluate", "bare.pt", "--model", "test_resnet", *MODEL, *ON_DIGITS], "doesn't say how its images"),
    (["evaluate", "bare.pt", "--model", "test_resnet", *MODEL, *ON_DIGITS, "--mean", "0"], "mean and std go together"),
    (["evaluate", "bare.pt", "--model", "resnet18", *MODEL, *ON_DIGITS], "don't fit model 'resnet18'"),
    (["evaluate", "bare.pt", "--model", "test_resnet", *ON_DIGITS], "a model of 10 classes (--num-classes)?"),
    (["evaluate", "bare.pt", "--model", "test_resnet", "-o", "model.dpth=3", *ON_DIGITS], "no such setting"),
    (["evaluate", "bare.pt", "--model", "test_resnet", *ON_DIGITS, "--weights-key", "ema"], "no weights under 'ema'"),
    (["evaluate", "mine:build", "--data", "cifar10", "--eps", "8/255"], "data.download=true"),
    (["evaluate", "mine:build", "--data", "x-*.tar", "--eps", "8/255"], "no tar shards 'x-*.tar'"),
    (["evaluate", "mine:build", *ON_DIGITS, "-o", "data.select.classes=[11]"], "no number 11"),
    (["evaluate", "mine:build", "--data", "digits", "--eps", "0.1", "--suite", "pgd-3:steps=4"], "steps is part"),
    (["evaluate", "mine:build", "--data", "digits", "--eps", "0.1", "--suite", "fgsm:step=1e999"], "a step size is"),
    *(
        (["evaluate", "mine:build", "--data", "digits", "--eps", "0.1", "--suite", suite], message)
        for suite, message in (
            ("apgd-t:loss=ce", "the loss is part of its name"),
            ("cw-10:loss=ce", "the loss is part of its name"),
            ("square:p_init=-1", "greater than 0"),
            ("gama-5:drop=0", "greater than 0"),
            ("gama-5:weight=nan", "finite number"),
            ("fab-t:alpha_max=-1", "greater than or equal to 0"),
            ("fast:precision=1e-320", "precision: input should be greater than or equal to"),
            ("transfer:surrogate=good.safetensors,attack=fast", "transfer takes attacks such as"),
            ("aas-pgd-5", "no attention to scale"),
        )
    ),
    (["evaluate", "vit_tiny_patch16_224", "--random-weights", *ON_DIGITS], "1000 classes|fails on images"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"), CASES, ids=[" ".join(arguments[:2] + arguments[-1:]) for arguments, _ in CASES]
)
def test_mistakes_end_with_two_and_one_clear_line(arguments, message, place):
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2, f"{result.output} {result.exception!r}"
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert any(part in result.output for part in message.split("|")), result.output
    assert "Traceback" not in result.output
    assert len(result.output.splitlines()) <= 3
    assert {path: path.stat().st_mtime_ns for path in before} == before, "a file of the user's was touched"


def test_good_input_passes_for_every_kind_of_model_reference(place, vit):
    train("digits/standard", run=place / "run", quiet=True, overrides=["epochs=1", "model.settings.depth=1"])
    for what in (
        ["good.safetensors"],
        ["mine:build", "--mean", "0.3", "--std", "0.4"],
        ["resnet18", "--random-weights", *MODEL],
        ["mine.py:build"],
        ["bare.pt", "--model", "test_resnet", *MODEL, "--mean", "0", "--std", "1"],
        ["run"],
        ["run", "--checkpoint", "best", "--norm", "2"],
    ):
        result = runner.invoke(app, ["evaluate", *what, *ON_DIGITS])
        assert result.exit_code == 0, f"{result.output} {result.exception!r}"
        assert "result.json" in result.output
    result = runner.invoke(app, ["evaluate", "run", "--norm", "2"])
    assert result.exit_code == 2
    assert "needs an --eps of its own" in result.output
    assert "not attacked" in runner.invoke(app, ["evaluate", "run", "--suite", "clean"]).output


def test_a_run_without_a_test_split_says_what_it_was_measured_on(place):
    images = Digits().open("train")
    x, y = images.take(torch.arange(200))
    np.savez(place / "all.npz", image=x.permute(0, 2, 3, 1).numpy(), label=y.numpy())
    override = ["epochs=1", "data={name: arrays, path: all.npz}", "validation.hold_out=0"]
    train("digits/standard", run=place / "same", quiet=True, overrides=override)
    output = runner.invoke(app, ["evaluate", "same", "--suite", "fgsm"]).output
    assert "no test split" in output


def test_settings_of_the_data_can_be_overridden(place):
    from PIL import Image

    for number in range(10):
        (place / "pictures" / f"class{number}").mkdir(parents=True)
        Image.new("RGB", (11 + number, 20), (number * 20, 0, 0)).save(place / "pictures" / f"class{number}" / "a.png")
    command = ["evaluate", "mine:build", "--data", "pictures", "--eps", "0.1", "--suite", "fgsm"]
    assert "`preprocess: {how: crop, size: 224}` of the data" in runner.invoke(app, command).output
    done = runner.invoke(app, [*command, "-o", "data.preprocess={how: squash, size: 8}"])
    assert done.exit_code == 0, done.output
