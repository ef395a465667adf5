"""Every analysis that takes long: killed and called again, it makes the same finding."""

import itertools

import numpy as np
import pytest

import robustvit as rv
from conftest import linear_digits, token_vit
from robustvit.analysis import analyze, streaming
from robustvit.core.component import registered

SETTINGS = {
    "attack_strength": {"steps": [1], "reference": 2, "seeds": 1},
    "attention_maps": {},
    "attention_scores": {"factors": 0.1},
    "boundary": {"steps": 2},
    "confusion": {},
    "eigen_cam": {"shown": 6},
    "feature_visualization": {"made": 12, "steps": 2},
    "gates": {"shown": 6},
    "gradient_paths": {"attack": "fgsm"},
    "input_gradients": {"shown": 6},
    "loss_along": {"shown": 3, "steps": 2, "restarts": 3},
    "loss_by_steps": {"shown": 3, "steps": [1, 2], "restarts": 2},
    "loss_surface": {"shown": 2, "points": 3},
    "perturbations": {"attack": {"name": "pgd", "steps": 1}},
    "semantic_perturbations": {"attack": {"name": "pgd", "steps": 1}, "top": 1},
}
"""Of those that keep their numbers in one file; `lesion`, `restricted_attention` and `attention_attacks` keep results
of evaluations, `layer_similarity` has a test of its own, and `learning_curves` computes nothing."""
ELSEWHERE = {"attention_attacks", "layer_similarity", "learning_curves", "lesion", "restricted_attention"}


@pytest.fixture(scope="module")
def judge():
    return linear_digits()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_killed_analysis_makes_the_same_finding(name, judge, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "SAVE_SECONDS", 0.0)
    settings = {"name": name, **SETTINGS[name]}
    if name == "semantic_perturbations":
        settings["classifiers"] = [judge]
    options = {"what": settings, "images": 12, "batch_size": 4, "threat": rv.LpBall("inf", 0.1), "quiet": True}
    model, write = token_vit({"name": "tora"} if name == "gates" else None), streaming.write_arrays
    x, _ = rv.load_data("digits", 12)
    data = (x, model(x).argmax(1))  # so that it is right
    (whole,) = analyze(model, data, **options)
    written = itertools.count(1)

    def dies(path, arrays):
        write(path, arrays)
        if next(written) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(streaming, "write_arrays", dies)
        with pytest.raises(KeyboardInterrupt):
            analyze(model, data, run=tmp_path, **options)
    assert list(tmp_path.glob("analysis/*/partial.npz"))
    further = []
    monkeypatch.setattr(streaming, "write_arrays", lambda *given: further.append(given) or write(*given))
    (again,) = analyze(model, data, run=tmp_path, **options)
    assert again.tables == whole.tables
    assert again.charts == whole.charts
    assert {key: array.tobytes() for key, array in again.arrays.items()} == {
        key: np.asarray(array).tobytes() for key, array in whole.arrays.items()
    }
    restarted = [arrays["done"][0] for _, arrays in further]
    assert restarted[0] == 3  # the two steps before weren't taken again


def test_no_analysis_is_forgotten():
    own = {name for name, made in registered("analysis").items() if made.__module__.startswith("robustvit.")}
    assert own == {*SETTINGS, *ELSEWHERE}
