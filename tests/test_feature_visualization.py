"""What models make of noise."""

import numpy as np
import pytest
import torch
from torch import nn

from conftest import linear_digits, tiny_vit
from robustvit.analysis import FeatureVisualization, analyze
from robustvit.core.errors import UserError

OPTIONS = {"images": 4, "quiet": True}


def test_the_largest_activation_of_a_linear_layer_is_a_corner_of_the_box():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Linear(5, 10))
    what = FeatureVisualization(target="activation", made=6, steps=6)
    (found,) = analyze(model, "digits", what=what, **OPTIONS)
    weights = model[1].weight.detach().numpy()[found.arrays["target"]]
    np.testing.assert_array_equal(found.arrays["made"].reshape(6, -1), (weights > 0).astype(np.float32))
    features = model[1](torch.from_numpy(found.arrays["made"]).flatten(1)).detach().numpy()
    np.testing.assert_allclose(found.arrays["value"][:, 1], features[np.arange(6), found.arrays["target"]], rtol=1e-4)


def test_noise_becomes_the_class_for_the_model_and_judges_are_asked(trained):
    what = FeatureVisualization(made=12, shown=5, steps=20, step=0.1, classifiers=(linear_digits(),))
    (found,) = analyze(trained, "digits", what=what, batch_size=11, **OPTIONS)
    made, target = torch.from_numpy(found.arrays["made"]), found.arrays["target"]
    assert made.min() >= 0
    assert made.max() <= 1
    probability = trained(made).softmax(1).detach().numpy()[np.arange(12), target]
    np.testing.assert_allclose(found.arrays["value"][:, 1], probability, atol=1e-4)
    assert (found.arrays["value"][:, 1] > 0.99).all()
    assert found.arrays["value"][:, 0].mean() < 0.5
    assert len(set(target.tolist())) > 3
    assert found.arrays["pictures"].shape == (5, 2, 3, 8, 8)
    hits = (linear_digits()(made).argmax(1).numpy() == target).mean()
    assert found.tables[1].rows[0][1] == f"{100 * hits:.1f} %"
    assert found.tables[1].rows[0][2] != found.tables[1].rows[0][1]


def test_what_has_no_activations_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 10, 8), nn.Flatten())
    with pytest.raises(UserError, match="linear last layer"):
        analyze(model, "digits", what=FeatureVisualization(target="activation"), **OPTIONS)
    what = FeatureVisualization(target="activation", classifiers=(linear_digits(),))
    with pytest.raises(UserError, match="not of activations"):
        analyze(linear_digits(), "digits", what=what, **OPTIONS)


@pytest.mark.parametrize(("judge", "message"), [("same", "is the attacked model"), ("other", "has 7 classes, not 10")])
def test_judges_that_do_not_fit_are_refused(vit, judge, message):
    classifiers = (vit if judge == "same" else tiny_vit(num_classes=7),)
    with pytest.raises(UserError, match=message):
        analyze(vit, "digits", what=FeatureVisualization(classifiers=classifiers), **OPTIONS)
