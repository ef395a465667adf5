"""The curves of a training, and what is marked in them."""

import json

import numpy as np
import pytest

from conftest import tiny_vit
from robustvit.analysis import LearningCurves, analyze
from robustvit.analysis.learning_curves import curves, find_signs
from robustvit.core.errors import UserError
from robustvit.models import save_model


def rows_of(held_out, training=None, clean=None, loss=None, images=10000, phase="main", spread=0.0, per_epoch=2):
    """Rows of training for each epoch, which average to the given values, then one of validation.

    The robust accuracies of the rows differ by `spread` to both sides of what the clean ones do.
    """
    rows = []
    for number, robust in enumerate(held_out):
        for part in range(per_epoch):
            row = {"total_step": 1, "phase": phase, "epoch": number + (part + 1) / per_epoch, "kind": "train"}
            off, sign = 0.01 * (2 * part / (per_epoch - 1) - 1), 1 if part % 2 else -1
            given = {"robust_accuracy": training, "clean_accuracy": clean, "loss": loss}
            values = {name: of[number] + off for name, of in given.items() if of is not None}
            if training is not None:
                values["robust_accuracy"] += sign * spread
            rows.append({**row, **values})
        row = {"total_step": 1, "phase": phase, "epoch": number + 1.0, "kind": "validation", "images": images}
        rows.append({**row, "clean_accuracy": 0.8, "robust_accuracy": robust})
    return rows


def marked(*args, drop=0.01, **settings):
    return [(sign.name, sign.epoch) for sign in find_signs(*curves(rows_of(*args, **settings)), drop)]


RISING = (0.3, 0.4, 0.5, 0.6)


LEAKING = {"training": (0.3, 0.4, 0.505, 0.5), "clean": (0.35, 0.41, 0.495, 0.55), "per_epoch": 8}


@pytest.mark.parametrize(
    ("held_out", "settings", "expected"),
    [
        ((0.3, 0.4, 0.45, 0.5), {"training": RISING}, []),
        ((0.3, 0.5, 0.45, 0.4), {"training": RISING}, [("robust overfitting", 2.0)]),
        ((0.3, 0.5, 0.45, 0.4), {"loss": RISING[::-1]}, [("robust overfitting", 2.0)]),
        ((0.3, 0.5, 0.45, 0.4), {"training": (0.3, 0.5, 0.45, 0.4)}, []),  # training gets worse, too
        ((0.3, 0.5, 0.45, 0.4), {"training": RISING, "images": 100}, []),  # chance
        ((0.3, 0.5, 0.45, 0.4), {"training": RISING, "drop": 0.2}, []),
        ((0.3, 0.5, 0.1, 0.0), {"training": RISING}, [("catastrophic overfitting", 3.0)]),
        ((0.3, 0.4, 0.45, 0.5), {"training": RISING, "clean": (0.7,) * 4}, []),
        ((0.3, 0.4, 0.45, 0.5), {**LEAKING, "spread": 0.002}, [("label leaking", 3.0)]),
        ((0.3, 0.4, 0.45, 0.5), {**LEAKING, "spread": 0.05}, []),  # chance
        ((0.3, 0.4, 0.45, 0.5), {**LEAKING, "spread": 0.011}, []),  # by chance in one epoch of so many that are tested
        ((0.3, 0.4, 0.45, 0.5), {**LEAKING, "spread": 0.002, "per_epoch": 2}, []),  # too few rows to tell
    ],
)
def test_what_is_marked(held_out, settings, expected):
    assert marked(held_out, **settings) == expected


def test_few_rows_of_an_epoch_are_tested_with_those_that_follow():
    given = {"training": (0.3, *(0.52,) * 5), "clean": (0.4, *(0.5,) * 5), "spread": 0.002}
    assert marked((0.3,) * 6, **given) == [("label leaking", 2.0)]  # four epochs have eight rows
    assert marked((0.3,) * 3, **{**given, "spread": 0.02}) == []


def test_values_of_an_epoch_are_means_and_phases_follow_each_other():
    rows = rows_of((0.3, 0.4), training=(0.2, 0.3)) + rows_of((0.5,), training=(0.4,), phase="tuning")
    rows.insert(2, {"total_step": 1, "kind": "event", "epoch": 1.0})
    training, held_out = curves(rows)
    np.testing.assert_allclose(training["robust_accuracy"].values, [0.2, 0.3, 0.4])
    assert training["robust_accuracy"].epochs.tolist() == held_out["robust_accuracy"].epochs.tolist() == [1, 2, 3]
    assert held_out["robust_accuracy"].values.tolist() == [0.3, 0.4, 0.5]


def test_the_curves_of_a_run(tmp_path):
    save_model(tiny_vit(), tmp_path / "checkpoints" / "last.safetensors")
    (tmp_path / "recipe.yaml").write_text("name: mine\ndata: digits\nthreat: {norm: inf, eps: 0.1}\n")
    options = {"what": LearningCurves(), "run": tmp_path, "quiet": True}
    with pytest.raises(UserError, match="no rows of a training"):
        analyze(str(tmp_path), **options)
    rows = rows_of((0.3, 0.5, 0.4), training=RISING, loss=RISING[::-1])
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = analyze(str(tmp_path), **options)
    accuracy, loss = found.charts
    assert [line.name for line in accuracy.lines] == ["robust, training", "clean, held out", "robust, held out"]
    assert accuracy.marks == loss.marks == ((2.0, "robust overfitting"),)
    assert "from 50.0 % to 40.0 % at the end" in found.caption
    assert "paired t test" not in found.caption  # no row has both accuracies
    low, high = accuracy.lines[2].intervals[1]
    assert 0.48 < low < 0.5 < high < 0.52
    metrics.write_text(metrics.read_text() + json.dumps(rows[-1] | {"epoch": 4.0, "robust_accuracy": 0.6}) + "\n")
    (after,) = analyze(str(tmp_path), **options)  # not what is stored for a shorter training
    assert after.charts[0].marks == ()
    with pytest.raises(UserError, match="takes no|no images"):
        analyze(str(tmp_path), on="fgsm", **options)
    with pytest.raises(UserError, match="name it by its run folder"):
        analyze(tiny_vit(), "digits", what="learning_curves", quiet=True)
