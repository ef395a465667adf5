"""All kinds of masking on a robust ViT, with AutoAttack; and every healthy model that can be had."""

import pytest

from healthy import available_models
from masking import attacked_twin, overstated, warned_before
from planted import KINDS

pytestmark = pytest.mark.slow
MODELS = {healthy.title: healthy for healthy in available_models()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def robust(runs):
    healthy = MODELS["ViT, trades, digits"]
    return healthy, healthy.load(runs)


@pytest.fixture(scope="module")
def twin(robust, runs):
    healthy, model = robust
    return attacked_twin(model, healthy.data, healthy.threat, runs / "twin")


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.fits("ViT")])
def test_masking_is_caught_or_refused_or_does_no_harm(name, robust, twin, tmp_path):
    kind, (healthy, model) = KINDS[name], robust
    planted = kind.plant(model)
    before = warned_before(planted, healthy.data, healthy.threat)
    if kind.outcome in before:
        return
    result, hidden = overstated(planted, twin, healthy.data, healthy.threat, tmp_path)
    print(f"{name}: {hidden} of {result.num_images} hidden, warnings {[warning.name for warning in result.warnings]}")
    if hidden > 1:  # a kind that masks elsewhere may do no harm to this model
        assert kind.outcome in {warning.name for warning in result.warnings}


@pytest.mark.parametrize("title", MODELS)
def test_no_healthy_model_is_warned_of(title, runs):
    healthy = MODELS[title]
    assert warned_before(healthy.load(runs), healthy.data, healthy.threat) == []
