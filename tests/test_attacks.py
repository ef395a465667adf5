"""Laws that every attack obeys under every threat, and agreement with a reference on the same points."""

import pytest
import torch

from robustvit.attacks import FGSM, PGD, Restarts
from robustvit.core.component import build, registered
from robustvit.core.errors import UserError
from robustvit.core.streams import sample_streams
from robustvit.losses import is_fooled, margin
from robustvit.threats import LpBall

SMALL = {
    "restarts": {"inner": {"name": "pgd", "steps": 4}, "times": 2},
    "apgd": {"steps": 12},
    "fab": {"steps": 8},
    "square": {"queries": 300},
}
ATTACKS = [build("attack", {"name": name, **SMALL.get(name, {})}) for name in registered("attack")]
THREATS = [LpBall("inf", 0.1), LpBall("2", 1.0)]
every = [
    pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name),
    pytest.mark.parametrize("threat", THREATS, ids=str),
]


def over_all(test):
    for mark in every:
        test = mark(test)
    return test


@pytest.fixture
def points(digits):
    return digits[0][:48], digits[1][:48], sample_streams(0, range(48))


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


@over_all
def test_stays_inside_and_lowers_accuracy(attack, threat, trained, points):
    x, y, random = points
    x_adv = attack(trained, x, y, threat, random=random)
    assert threat.contains(x, x_adv).all()
    assert accuracy(trained, x_adv, y) < accuracy(trained, x, y) - 0.1


@over_all
def test_repeats_for_the_same_seed_and_leaves_all_as_it_was(attack, threat, trained, points):
    x, y, random = points
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    held, held_modes = x.clone(), [module.training for module in trained.modules()]
    global_state = torch.get_rng_state()
    first = attack(trained, x, y, threat, random=random)
    assert torch.equal(first, attack(trained, x, y, threat, random=random))
    assert torch.equal(x, held)
    assert torch.equal(torch.get_rng_state(), global_state)
    assert [module.training for module in trained.modules()] == held_modes
    assert all(parameter.grad is None for parameter in trained.parameters())
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())


@over_all
def test_an_image_does_not_depend_on_its_neighbours(attack, threat, trained, points):
    x, y, random = points
    model, x = trained.double(), x.double()
    try:
        whole = attack(model, x, y, threat, random=random)
        rows = torch.tensor([40, 3, 17])
        assert torch.allclose(attack(model, x[rows], y[rows], threat, random=random[rows]), whole[rows], atol=1e-12)
        assert torch.allclose(
            attack(model, x[7:8], y[7:8], threat, random=random[torch.tensor([7])]), whole[7:8], atol=1e-12
        )
    finally:
        trained.float()


@over_all
def test_a_sample_that_is_done_is_returned_as_it_stood(attack, threat, trained, points):
    x, y, random = points
    left = {}

    def done(x_adv, logits, rows):
        finished = margin(logits, y[rows]) > -3
        for row, image, over in zip(rows.tolist(), x_adv, finished.tolist(), strict=True):
            assert row not in left, "a sample came back after it had left"
            if over:
                left[row] = image.clone()
        return finished

    x_adv = attack(trained, x, y, threat, random=random, done=done)
    assert left
    for row, image in left.items():
        assert torch.equal(x_adv[row], image)
    assert threat.contains(x, x_adv).all()


@over_all
def test_observing_changes_nothing_and_sees_every_forward(attack, threat, trained, points):
    x, y, random = points
    seen = []
    forwards = []
    hook = trained.register_forward_hook(lambda module, inputs, output: forwards.append(len(output)))
    x_adv = attack(
        trained, x, y, threat, random=random, observe=lambda step, rows, *rest: seen.append((step, len(rows)))
    )
    hook.remove()
    assert torch.equal(x_adv, attack(trained, x, y, threat, random=random))
    assert seen[0][0] == 0
    # beyond them, Restarts compares its runs by a pass each, and FAB looks twice a step
    assert len(seen) <= len(forwards) <= 2 * len(seen)
    assert all(count == len(x) for _, count in seen), "without done, every sample takes every step"


@over_all
def test_a_target_draws_towards_its_class(attack, threat, trained, points):
    x, y, random = points
    target = (y + 1) % 10
    x_adv = attack(trained, x, y, threat, random=random, target=target)
    with torch.no_grad():
        before, after = -margin(trained(x), target), -margin(trained(x_adv), target)
    moved = (x_adv != x).flatten(1).any(1)  # FAB returns the image itself where no boundary is within reach
    assert moved.any()
    assert (after > before)[moved].float().mean() > 0.9
    assert threat.contains(x, x_adv).all()


@over_all
def test_eps_zero_changes_nothing(attack, threat, trained, points):
    x, y, random = points
    assert torch.allclose(attack(trained, x, y, threat.scaled(0), random=random), x, atol=1e-7)


@over_all
def test_pixels_outside_the_box_are_refused(attack, threat, trained, points):
    x, y, random = points
    for wrong in (x * 2 - 1, x * 255, x + float("nan")):
        with pytest.raises(UserError, match=r"\[0, 1\]"):
            attack(trained, wrong, y, threat, random=random)


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_more_steps_or_restarts_never_raise_robust_accuracy(threat, trained, points):
    x, y, random = points

    def robust(attack):
        fooled = torch.zeros(len(x), dtype=torch.bool)

        def done(x_adv, logits, rows):
            finished = is_fooled(logits, y[rows])
            fooled[rows[finished]] = True
            return finished

        x_adv = attack(trained, x, y, threat.scaled(0.5), random=random, done=done)
        with torch.no_grad():
            return 1 - (fooled | is_fooled(trained(x_adv), y)).float().mean().item()

    few, more = (PGD(steps=n, step="eps/4") for n in (5, 15))
    assert robust(more) <= robust(few)
    assert robust(Restarts(inner=few, times=3)) <= robust(few)
    assert robust(Restarts(inner=few, times=1)) == robust(few)


def test_the_first_restart_is_the_bare_attack(trained, points):
    x, y, random = points
    bare = PGD(steps=3)
    assert torch.equal(
        Restarts(inner=bare, times=1)(trained, x, y, THREATS[0], random=random),
        bare(trained, x, y, THREATS[0], random=random),
    )


def test_eot_averages_gradients_of_a_random_model(points):
    x = points[0]
    slopes = iter([3.0, -1.0, -1.0, -1.0] * 10)

    def noisy(images):  # one step in four is misleading, and larger
        shown = images.flatten(1)
        return torch.stack([shown.sum(1) * next(slopes), torch.zeros(len(images))], dim=1)

    from robustvit.attacks.base import input_gradient

    def away(logits, rows):
        return logits[:, 0]

    average, _, _ = input_gradient(noisy, x, torch.arange(len(x)), away, eot=4)
    assert torch.allclose(average, torch.zeros_like(x), atol=1e-6), "3 - 1 - 1 - 1 = 0"
    alone, _, _ = input_gradient(noisy, x, torch.arange(len(x)), away)
    assert torch.allclose(alone, 3 * torch.ones_like(x))


def test_fgsm_is_one_step_of_pgd(trained, points):
    x, y, random = points
    one = PGD(steps=1, step="eps", start="none")(trained, x, y, THREATS[0], random=random)
    assert torch.equal(FGSM()(trained, x, y, THREATS[0], random=random), one)


@pytest.mark.parametrize(("threat", "name"), [(THREATS[0], "LinfPGD"), (THREATS[1], "L2PGD")], ids=["inf", "2"])
@pytest.mark.parametrize("steps", [1, 10, 40])
def test_pgd_walks_as_foolbox_does(threat, name, steps, trained, points):
    foolbox = pytest.importorskip("foolbox")
    x, y, random = points
    ours = PGD(steps=steps, step="eps/8", start="none")(trained, x, y, threat, random=random)
    attack = getattr(foolbox.attacks, name)(abs_stepsize=threat.eps / 8, steps=steps, random_start=False)
    theirs = attack.run(foolbox.PyTorchModel(trained, bounds=(0, 1)), x, y, epsilon=threat.eps)
    # a sign flips where a gradient is all but zero, so a few pixels may part for good
    same = (ours - theirs).abs().flatten(1).amax(1) < 1e-4
    assert same.float().mean() > 0.9
    assert abs(accuracy(trained, ours, y) - accuracy(trained, theirs, y)) <= 1 / len(x)
