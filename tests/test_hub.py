"""The Hugging Face hub: classifiers of transformers in, models of our own out and in again; without a network."""

import shutil
from dataclasses import replace
from importlib import import_module

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from typer.testing import CliRunner

import robustvit as rv
from conftest import tiny_vit
from robustvit.cli.main import app
from robustvit.core.component import _REGISTRY, component
from robustvit.core.errors import UserError
from robustvit.core.result_files import read_result
from robustvit.models import create_model, load_model, save_model
from robustvit.models.hub import processor_normalization
from robustvit.objectives import Standard
from robustvit.objectives.base import AnyObjective
from robustvit.sharing.card import _about


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.output


def make_run(folder, model):
    recipe = {"name": "tiny|model", "data": {"name": "digits"}, "threat": {"norm": "inf", "eps": "8/255"}}
    folder.mkdir()
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "objective": {"name": "trades"}}))
    save_model(model, folder / "checkpoints" / "last.safetensors", recipe=recipe, rule="the last epoch", epoch=3)
    return folder


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """A run with two results of its weights and one of others, and what would be uploaded of it."""
    folder = make_run(tmp_path_factory.mktemp("hub") / "run", tiny_vit())
    for suite in ("fgsm", "accuracy"):
        code, output = run("evaluate", folder, "--suite", suite, "--images", "24")
        assert code == 0, output
    save_model(tiny_vit(depth=1), folder / "checkpoints" / "other.safetensors")
    assert run("evaluate", folder, "--suite", "fgsm", "--images", "8", "--checkpoint", "other")[0] == 0
    code, output = run("push", folder, "me/tiny", "--dry-run", folder.parent / "out", "--license", "apache-2.0")
    assert code == 0, output
    return folder, folder.parent / "out"


def test_the_card_has_every_number_in_the_form_of_the_hub(pushed):
    folder, out = pushed
    card = ModelCard.load(out / "README.md")
    assert (card.data.license, card.data.library_name, card.data.model_name) == ("apache-2.0", "timm", "tiny")
    results = [read_result(path.parent) for path in sorted(folder.glob("eval/*/result.json"))]
    results = [result for result in results if result.num_images == 24]
    expected = {(result.suite, m.name.replace("_", " ")): (m, result) for result in results for m in result.measures}
    entries = {(e.metric_args["suite"], e.metric_name.partition(" (")[0]): e for e in card.data.eval_results}
    assert set(entries) == set(expected)
    assert len(entries) == 3
    for key, entry in entries.items():
        measure, result = expected[key]
        assert entry.metric_value == measure.value
        assert entry.metric_args["interval_95"] == list(measure.interval)
        assert entry.metric_args["images"] == 24
        assert entry.metric_args["images_rule"] == result.provenance.images_rule
        assert (entry.task_type, entry.dataset_type, entry.dataset_split) == ("image-classification", "digits", "test")
    robust = next(entry for key, entry in entries.items() if key[1] == "robust accuracy")
    assert (robust.metric_args["norm"], robust.metric_args["eps"]) == ("inf", 8 / 255)
    trained = r"by the recipe tiny\|model (`recipe.yaml`) on digits with trades against Linf 8/255."
    for text in (trained, "upper bound", "the last epoch", "24 images", "at-chance"):
        assert text in card.text


@pytest.fixture
def plugin_clean():
    """An objective of another package, which holds another and attacks nothing itself."""

    @component("objective", "plugin_clean")
    class PluginClean:
        inner: AnyObjective = Standard()

    yield
    del _REGISTRY["objective"]["plugin_clean"]


@pytest.mark.parametrize(
    ("objective", "is_attacked"),
    [
        ({"name": "standard"}, False),
        ({"name": "adversarial", "attack": {"name": "pgd"}}, True),
        ({"name": "weighted_sum", "terms": [{"objective": {"name": "standard"}, "weight": 1.0}]}, False),
        ({"name": "random_dropping", "inner": {"name": "trades"}}, True),
        ({"name": "plugin_clean", "inner": {"name": "standard"}}, False),
        ({"name": "plugin_clean", "inner": {"name": "adversarial"}}, True),
    ],
)
@pytest.mark.usefixtures("plugin_clean")
def test_the_card_names_a_threat_only_where_the_training_attacks(objective, is_attacked):
    recipe = {"name": "mine", "threat": {"norm": "inf", "eps": 0.15}, "objective": objective}
    text = _about(replace(rv.resolve_model(tiny_vit()), recipe=recipe), tiny_vit())
    assert ("against Linf 0.15" in text) == is_attacked


def test_turns_of_a_phase_count_as_well():
    turns = [{"objective": {"name": "standard"}}, {"objective": {"name": "trades"}}]
    recipe = {"name": "mine", "threat": {"norm": "inf", "eps": 0.15}}
    phases = [{"objective": None, "alternate": turns}, {"objective": {"name": "mart"}}]
    ref = replace(rv.resolve_model(tiny_vit()), recipe={**recipe, "phases": phases})
    assert "with standard, then trades, then mart against Linf 0.15." in _about(ref, tiny_vit())


@pytest.mark.parametrize("around", [lambda one: one, lambda one: {"name": "random_dropping", "inner": one}])
def test_an_objective_that_is_not_installed_does_not_stop_the_card(around):
    recipe = {"name": "mine", "threat": {"norm": "inf", "eps": 0.15}, "objective": around({"name": "elsewhere"})}
    text = _about(replace(rv.resolve_model(tiny_vit()), recipe=recipe), tiny_vit())
    assert "Whether it was trained against Linf 0.15 is not known here" in text
    assert "no objective 'elsewhere'" in text


def test_names_in_the_card_stay_text():
    recipe = {"name": "`<b>x</b>` &lt; ~~[a](b)~~", "data": {"name": "<i>"}, "objective": {"name": "*o*"}}
    text = _about(replace(rv.resolve_model(tiny_vit()), recipe=recipe), tiny_vit())
    assert r"recipe \`\<b\>x\</b\>\` \&lt; \~\~\[a\](b)\~\~ (`recipe.yaml`) on \<i\> with \*o\*." in text


def test_pushed_weights_give_equal_logits_in_robustvit_and_timm(pushed, monkeypatch, tmp_path):
    import timm

    folder, out = pushed
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "recipe.yaml",
    ]
    x, model = torch.rand(4, 3, 8, 8), load_model(folder)
    for source in (out, f"local-dir:{out}"):
        assert torch.equal(load_model(source)(x), model(x))
    alone = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
    assert torch.allclose(alone((x - 0.3) / 0.38), model(x), atol=1e-6)
    put_in_cache(monkeypatch, tmp_path, "me/tiny", out)
    ref = rv.resolve_model("hf_hub:me/tiny")
    assert torch.equal(ref.module()(x), model(x))
    assert (ref.title, ref.checkpoint["name"]) == ("hf_hub-me-tiny", "hf_hub:me/tiny")
    assert ref.recipe["threat"] == {"norm": "inf", "eps": "8/255"}, "the defaults of an evaluation"


def put_in_cache(monkeypatch, cache, name, folder):
    """As the hub's client lays out what it has downloaded once."""
    import huggingface_hub

    def offline(*_, **__):
        raise OSError("no network")

    place, commit = cache / f"models--{name.replace('/', '--')}", "0" * 40
    shutil.copytree(folder, place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("robustvit.models.create.socket.create_connection", offline)


def test_the_upload_is_what_the_dry_run_writes(pushed, monkeypatch):
    folder, out = pushed
    uploaded = {}

    class Api:
        def create_repo(self, name, **options):
            uploaded["options"] = (name, options)
            return f"hub/{name}"

        def upload_folder(self, repo_id, folder_path, commit_message):
            files = {path.name: path.read_bytes() for path in type(out)(folder_path).rglob("*")}
            uploaded.update(repo_id=repo_id, files=files)

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    assert run("push", folder, "me/tiny", "--license", "apache-2.0", "--private") == (0, "hub/me/tiny\n")
    assert uploaded["options"] == ("me/tiny", {"exist_ok": True, "private": True})
    assert uploaded["files"] == {path.name: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setattr(Api, "upload_folder", lambda *_, **__: 1 / 0)
    code, output = run("push", folder, "me/tiny")
    assert (code, "me/tiny: could not be uploaded (division by zero)" in output) == (2, True)


def test_a_model_that_timm_lacks_is_pushed_for_robustvit_alone(tmp_path, monkeypatch):
    model = create_model("wideresnet", depth=10, width=1, num_classes=10, img_size=8).eval()
    folder = make_run(tmp_path / "run", model)
    assert run("evaluate", folder, "--suite", "accuracy", "--images", "8")[0] == 0
    code, output = run("push", folder, "me/wide", "--dry-run", tmp_path / "out")
    assert code == 0, output
    assert "timm has no 'wideresnet' of its own, so that what is written can be loaded by robustvit alone" in output
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(load_model(tmp_path / "out")(x), model(x))
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.library_name == "robustvit"
    assert "timm.create_model" not in card.text
    assert "Only robustvit loads it: timm has no 'wideresnet' of its own." in card.text

    def full(*_):
        raise UserError("the disk is full")

    monkeypatch.setattr(import_module("robustvit.sharing.push"), "export_model", full)
    code, output = run("push", folder, "me/wide", "--dry-run", tmp_path / "other")
    assert (code, "the disk is full" in output) == (2, True), "another problem is no reason to go on"


def test_what_can_not_be_pushed_is_said_in_one_sentence(pushed, tmp_path):
    folder, out = pushed
    for arguments, message in [
        ((folder, "me/tiny", "--dry-run", out), "isn't empty"),
        ((folder, "me/tiny", "--dry-run", out / "README.md"), "is a file; choose a folder"),
        ((folder, "tiny", "--dry-run", tmp_path / "x"), "expected OWNER/NAME"),
        ((folder, "a b/c", "--dry-run", tmp_path / "x"), "no name of a repository"),
        ((make_run(tmp_path / "bare", tiny_vit()), "a/b", "--dry-run", tmp_path / "x"), "no result of these weights"),
        ((folder / "checkpoints" / "last.safetensors", "a/b", "--dry-run", tmp_path / "x"), "push takes a run folder"),
    ]:
        code, output = run("push", *arguments)
        assert (code, message in output) == (2, True), output
        assert output.count("\n") == 1
    assert not (tmp_path / "x").exists()


class Processor:
    do_rescale, rescale_factor, do_normalize, image_mean, image_std = True, 1 / 255, True, (0.1, 0.2, 0.3), (0.4,) * 3

    def __init__(self, **changes):
        vars(self).update(changes)


@pytest.mark.parametrize(
    ("changes", "mean", "std"),
    [
        ({}, (0.1, 0.2, 0.3), (0.4, 0.4, 0.4)),
        ({"do_normalize": False}, (0.0,), (1.0,)),
        ({"do_rescale": False, "image_mean": (127.5,), "image_std": (51.0,)}, (0.5,), (0.2,)),
        ({"rescale_factor": 1 / 127.5, "rescale_offset": True, "do_normalize": False}, (0.5,), (0.5,)),
    ],
)
def test_a_processor_is_one_mean_and_std_of_pixels_from_0_to_1(changes, mean, std):
    found = processor_normalization(Processor(**changes))
    assert found.mean == pytest.approx(mean)
    assert found.std == pytest.approx(std)
    with pytest.raises(UserError, match="normalizes twice"):
        processor_normalization(Processor(include_top=True))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A classifier and its image processor, as transformers saves them."""
    transformers = pytest.importorskip("transformers", reason="transformers isn't installed: make interop")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=10)
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config).eval()
    processor = transformers.ViTImageProcessor(
        size={"height": 8, "width": 8}, image_mean=[0.2, 0.3, 0.4], image_std=[0.5, 0.6, 0.7]
    )
    folder = tmp_path_factory.mktemp("transformers") / "vit"
    model.save_pretrained(folder), processor.save_pretrained(folder)
    return model, processor, folder


def test_a_classifier_of_transformers_has_its_normalization_inside(saved, monkeypatch, tmp_path):
    model, processor, folder = saved
    pixels = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    with torch.no_grad():
        expected = model(**processor(list(pixels), return_tensors="pt")).logits
    put_in_cache(monkeypatch, tmp_path, "somebody/vit", folder)
    for source in (folder, "hf_hub:somebody/vit"):
        ours = load_model(source)
        with torch.no_grad():
            assert torch.allclose(ours(pixels / 255), expected, atol=1e-6)
        assert not ours.training
    assert rv.resolve_model(folder).digest == rv.resolve_model("hf_hub:somebody/vit").digest
    result = rv.evaluate(folder, "digits", suite="pgd-2", threat=rv.LpBall("inf", "8/255"), images=16)
    assert result.num_images == 16
    assert result.provenance.checkpoint["rule"] == "the weights of transformers"


def test_what_a_folder_of_transformers_lacks_is_never_made_up(saved, tmp_path):
    import transformers

    model, _, folder = saved
    with pytest.raises(
        UserError, match="image processor has the mean and std 0.2,0.3,0.4 and 0.5,0.6,0.7, not 0 and 1"
    ):
        load_model(folder, mean=(0,), std=(1,))
    with pytest.raises(UserError, match="num_classes: .* knows its own"):
        load_model(folder, num_classes=3)
    model.save_pretrained(tmp_path / "bare")
    with pytest.raises(UserError, match="no image processor that can be read .* give mean and std"):
        load_model(tmp_path / "bare")
    x = torch.rand(2, 3, 8, 8)
    assert torch.allclose(load_model(tmp_path / "bare", mean=(0,), std=(1,))(x), model(x).logits)
    transformers.ViTModel(model.config).save_pretrained(tmp_path / "features")
    with pytest.raises(UserError, match="no weights for classifier.bias, classifier.weight, which would be random"):
        load_model(tmp_path / "features", mean=(0,), std=(1,))
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
    transformers.BertModel(config).save_pretrained(tmp_path / "text")
    with pytest.raises(UserError, match="can't load it as an image classifier"):
        load_model(tmp_path / "text")
