"""Similarities of layers: those of numpy on features that are kept, whatever the batches, after a kill too."""

import itertools

import numpy as np
import pytest
import timm
import torch

import robustvit as rv
from robustvit.analysis import LayerSimilarity, analyze, streaming
from robustvit.analysis.block_outputs import BlockOutputs
from robustvit.analysis.similarity_sums import CorrelationSums, KernelSums, MinibatchKernelSums
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart
from robustvit.models import Normalized
from robustvit.models.attention_probe import recording
from test_lesions import tiny_vit_of

OPTIONS = {"images": 40, "quiet": True}


def features_of(model, x, names):
    with recording(model, names) as seen, torch.no_grad():
        model(x)
        return [seen[name].double().numpy() for name in names]


def kept(model, names, count=40):
    x, _ = rv.load_data("digits", count)
    return features_of(model, x, names)


@pytest.mark.parametrize("batch_size", [40, 7])
def test_correlations_are_numpys_whatever_the_batches(batch_size):
    model, (x, y) = tiny_vit_of(3).double(), rv.load_data("digits", 40)
    features = features_of(model, x.double(), [f"backbone.blocks.{number}" for number in range(3)])
    (finding,) = analyze(model, (x.double(), y), what="layer_similarity", batch_size=batch_size, **OPTIONS)
    whole = np.abs(np.corrcoef([one.ravel() for one in features]))
    np.testing.assert_allclose(finding.arrays["correlation-all-tokens"], whole, rtol=0, atol=1e-12)
    token = np.abs(np.corrcoef([one[:, 0].ravel() for one in features]))
    np.testing.assert_allclose(finding.arrays["correlation-class-token"], token, rtol=0, atol=1e-12)
    each = [np.abs(np.corrcoef([one[image].ravel() for one in features])) for image in range(40)]
    mean = finding.arrays["correlation-mean-over-images"]
    np.testing.assert_allclose(mean, np.mean(each, axis=0), rtol=0, atol=1e-12)


def test_correlations_do_not_depend_on_scale_and_shift_of_a_layer():
    features = torch.randn(6, 3, 20, dtype=torch.float64)
    features[:, 1] += features[:, 0]
    found = []
    for scale, shift in ((1, 0), (-3, 50)):
        sums = CorrelationSums(3)
        moved = features.clone()
        moved[:, 1] = scale * moved[:, 1] + shift
        for part in moved.split(2):
            sums.add(part.clone())
        found.append((sums.correlation(), sums.mean_of_images()))
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.diag(found[0][0]), 1, atol=1e-12)


def cka(features):
    centered = [one - one.mean(0) for one in (f.reshape(len(f), -1) for f in features)]
    kernels = [one @ one.T for one in centered]
    products = np.array([[(a * b).sum() for b in kernels] for a in kernels])
    return products / np.sqrt(np.outer(np.diag(products), np.diag(products)))


@pytest.mark.parametrize("memory", [1.0, 1e-4])
def test_cka_is_that_of_whole_kernels_by_pairs_of_blocks_too(memory):
    model, (x, y) = tiny_vit_of(3).double(), rv.load_data("digits", 40)
    what = LayerSimilarity(measures=("cka",), estimator="exact", memory=memory)
    (finding,) = analyze(model, (x.double(), y), what=what, batch_size=8, **OPTIONS)
    expected = cka(features_of(model, x.double(), [f"backbone.blocks.{number}" for number in range(3)]))
    np.testing.assert_allclose(finding.arrays["linear-cka"], expected, rtol=0, atol=1e-10)


def test_cka_does_not_depend_on_rotation_and_scale():
    features = [torch.randn(30, size, dtype=torch.float64) for size in (5, 8, 12)]
    rotation, _ = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))
    turned = [features[0], 7 * features[1] @ rotation + 3, features[2]]
    found = []
    for one in (features, turned):
        sums = KernelSums(3, 30)
        for first, second in itertools.combinations_with_replacement((0, 10, 20), 2):
            sums.add([f[first : first + 10] for f in one], [f[second : second + 10] for f in one], (first, second))
        found.append(sums.cka())
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found[0], cka([f.numpy() for f in features]), rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.diag(found[0]), 1, atol=1e-12)


def test_minibatches_estimate_it():
    base = torch.randn(512, 6, dtype=torch.float64)
    features = [base, base @ torch.randn(6, 9, dtype=torch.float64), torch.randn(512, 7, dtype=torch.float64)]
    sums = MinibatchKernelSums(3)
    for rows in torch.arange(512).split(32):
        sums.add([one[rows] for one in features])
    np.testing.assert_allclose(sums.cka(), cka([one.numpy() for one in features]), rtol=0, atol=0.03)
    np.testing.assert_allclose(np.diag(sums.cka()), 1, atol=1e-12)


def test_networks_whose_blocks_differ_in_shape_are_compared_by_cka():
    resnet = Normalized(timm.create_model("resnet18", num_classes=10), (0.0,), (1.0,)).eval()
    (finding,) = analyze(resnet, "digits", what="layer_similarity", images=16, quiet=True)
    assert finding.arrays["linear-cka"].shape == (8, 8)
    names = [f"backbone.layer{stage}.{number}" for stage in range(1, 5) for number in range(2)]
    expected = cka(kept(resnet, names, 16))
    np.testing.assert_allclose(finding.arrays["linear-cka"], expected, rtol=0, atol=1e-5)


def test_where_exact_needs_too_many_passes_the_estimate_says_so():
    model = tiny_vit_of(2)
    what = LayerSimilarity(measures=("cka",), memory=1e-6)
    (finding,) = analyze(model, "digits", what=what, **OPTIONS)
    assert finding.charts[0].title == "Similarity to the last block"
    assert finding.charts[1].title == "Linear CKA, estimated"
    assert "minibatches of 4 images" in finding.caption


def test_clean_against_adversarial_images(trained_vit, tmp_path):
    threat = rv.LpBall("inf", 0.1)
    what = {"what": "layer_similarity", "on": "pgd-3", "run": tmp_path}
    (finding,) = analyze(trained_vit, "digits", threat=threat, **what, **OPTIONS)
    names = [f"backbone.blocks.{number}" for number in range(2)]
    clean = kept(trained_vit, names)
    (arrays,) = (np.load(path) for path in tmp_path.glob("analysis/adversarial-*/adversarial-parts/*.npz"))
    attacked = features_of(trained_vit, torch.from_numpy(arrays["images"]), names)
    expected = np.abs(np.corrcoef([one.ravel() for one in (*clean, *attacked)]))
    across = finding.arrays["correlation-all-tokens-clean-against-adversarial"]
    np.testing.assert_allclose(across, expected[:2, 2:], rtol=0, atol=1e-5)
    np.testing.assert_allclose(finding.arrays["correlation-all-tokens"], expected[2:, 2:], atol=1e-5)
    assert finding.charts[1].lines[0].ys == pytest.approx(np.diag(across).tolist())


@pytest.mark.parametrize(("measure", "batches"), [("correlation", 4), ("cka", 12)])
def test_a_kill_changes_no_bit(measure, batches, tmp_path, monkeypatch):
    model = tiny_vit_of(2)
    what = LayerSimilarity(measures=(measure,), memory=3e-4, estimator="exact")
    options = {**OPTIONS, "what": what, "batch_size": 8}
    (whole,) = analyze(model, "digits", run=tmp_path / "a", **options)
    monkeypatch.setattr(streaming, "SAVE_SECONDS", 0.0)
    calls, batch = itertools.count(), BlockOutputs.of

    def dies(layers, indices):
        if next(calls) == batches:
            raise KeyboardInterrupt
        return batch(layers, indices)

    with monkeypatch.context() as patch:
        patch.setattr(BlockOutputs, "of", dies)
        with pytest.raises(KeyboardInterrupt):
            analyze(model, "digits", run=tmp_path / "b", **options)
    assert list(tmp_path.glob("b/analysis/*/partial.npz"))
    counted = []
    monkeypatch.setattr(BlockOutputs, "of", lambda *given: counted.append(given) or batch(*given))
    (again,) = analyze(model, "digits", run=tmp_path / "b", **options)
    fresh = len(counted)
    analyze(model, "digits", **options)
    assert fresh < len(counted) - fresh  # not all of it was computed again
    assert not list(tmp_path.glob("b/analysis/*/partial.npz"))
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)


def test_partial_sums_that_are_damaged_or_of_another_computation_begin_again(tmp_path, capsys):
    path = tmp_path / "partial.npz"
    state = {"sum": np.zeros(3)}
    path.write_bytes(b"torn")
    assert streaming._restored(path, state, 5) == (0, 0)
    for arrays in ({"sum": np.ones(4), "done": np.array([2, 2, 5])}, {"sum": np.ones(3), "done": np.array([2, 2, 6])}):
        np.savez(path, **arrays)
        assert streaming._restored(path, state, 5) == (0, 0)
    assert not state["sum"].any()
    np.savez(path, sum=np.ones(3), done=np.array([2, 16, 5]))
    assert streaming._restored(path, state, 5) == (2, 16)
    assert state["sum"].all()
    assert "begins again" in capsys.readouterr().err


def test_memory_bounds_the_images_at_once():
    model = tiny_vit_of(3)
    sizes = []
    record = BlockOutputs.outputs

    def outputs(layers, x):
        sizes.append(len(x))
        return record(layers, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockOutputs, "outputs", outputs)
        analyze(model, "digits", what=LayerSimilarity(memory=1e-4), **OPTIONS)
    entries = 3 * 17 * 16 * (4 + 8)
    assert max(sizes) == int(1e5 / entries)


@pytest.mark.parametrize(("estimator", "expected"), [("exact", 40 + 10 * (4 + 6)), ("minibatch", 40)])
def test_passes_are_planned_as_they_are_made(estimator, expected, monkeypatch):
    """Exact CKA of four blocks of ten images: the center, each block once, and each pair's second block."""
    seen, record = [], BlockOutputs.of

    def of(layers, indices):
        seen.append(len(indices))
        return record(layers, indices)

    what = LayerSimilarity(measures=("cka",), estimator=estimator, memory=10 * 3 * 17 * 16 * (4 + 2 * 8) / 1e9)
    monkeypatch.setattr(BlockOutputs, "of", of)
    planned, passes = [], LayerSimilarity.passes
    monkeypatch.setattr(LayerSimilarity, "passes", lambda *given: planned.append(passes(*given)) or planned[0])
    analyze(tiny_vit_of(3), "digits", what=what, **OPTIONS)
    assert planned[0] == sum(seen) == expected


def test_every_image_counts_in_an_estimate_and_no_more_at_once_than_fit(monkeypatch):
    seen, record = [], BlockOutputs.of

    def of(layers, indices):
        seen.append(len(indices))
        return record(layers, indices)

    monkeypatch.setattr(BlockOutputs, "of", of)
    size = 3 * 17 * 16 * (4 + 2 * 8) / 1e9  # of an image
    for estimator, rows, expected in (
        ("minibatch", 8, [8] * 5),
        ("minibatch", 7, [7] * 4 + [6] * 2),
        ("exact", 20, [20] * 4),
    ):
        seen.clear()
        what = LayerSimilarity(measures=("cka",), estimator=estimator, memory=(rows + 0.5) * size)
        analyze(tiny_vit_of(3), "digits", what=what, images=40, quiet=True)
        assert seen[: len(expected)] == expected
        assert max(seen) <= rows


def test_too_few_images_are_refused():
    with pytest.raises(UserError, match="at least 4 images"):
        analyze(tiny_vit_of(1), "digits", what=LayerSimilarity(measures=("cka",)), images=3, quiet=True)


def test_blocks_of_another_shape_are_apart_and_still_compared_with_their_clean_selves():
    from robustvit.models import create_model

    model = create_model("stem_vit_32", num_classes=10, mean=(0.5,), std=(0.5,), depth=2).eval()
    x, y = torch.rand(12, 3, 32, 32), torch.arange(12) % 10
    torch.nn.init.normal_(model.backbone.head.weight)
    options = {"what": "layer_similarity", "threat": rv.LpBall("inf", 0.1), "quiet": True}
    (finding,) = analyze(model, (x, y), on=["clean", "fgsm"], **options)
    lines = {chart.title: chart.lines for chart in finding.charts if isinstance(chart, Chart)}
    assert {line.xs for line in lines["Similarity to the last block of the same shape"]} == {(2.0, 3.0)}
    moved = lines["Clean against adversarial images, the same block"]
    assert sorted({place for line in moved for place in line.xs}) == [1.0, 2.0, 3.0]
