"""The reference's own walk, on the same points: pyautoattack carries the attack files of auto-attack unchanged."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch

from conftest import tiny_vit
from robustvit.attacks import APGD, FAB, Restarts, Search, Square
from robustvit.attacks.apgd import SparseRule, _start, check_steps, run_walk
from robustvit.attacks.base import attack_loss
from robustvit.attacks.fab import to_hyperplane
from robustvit.attacks.square import _bump, square_side
from robustvit.core.streams import sample_streams
from robustvit.evaluation import evaluate, suite_from
from robustvit.losses import dlr, targeted_dlr
from robustvit.threats import LpBall

autopgd = pytest.importorskip("pyautoattack.autopgd_base")
from pyautoattack import fab_projections, square  # noqa: E402
from pyautoattack.fab_pt import FABAttack_PT  # noqa: E402

L1 = LpBall("1", 6.0)
THREATS = [(LpBall("inf", 0.1), "Linf"), (LpBall("2", 1.0), "L2")]
NORMS = pytest.mark.parametrize(("threat", "norm"), THREATS, ids=["inf", "2"])
ALL_NORMS = pytest.mark.parametrize(("threat", "norm"), [*THREATS, (L1, "L1")], ids=["inf", "2", "1"])


class Recorded:
    """A model that keeps what it was shown."""

    def __init__(self, model):
        self.model, self.points = model, []

    def __call__(self, x):
        self.points.append(x.detach().clone())
        return self.model(x)


@pytest.fixture
def points(trained, digits):
    """Correctly classified images, the model in float64."""
    right = trained(digits[0]).argmax(1) == digits[1]
    return digits[0][right][:32], digits[1][right][:32], sample_streams(0, range(32))


@pytest.fixture
def double(trained):
    torch.set_default_dtype(torch.float64)  # the reference keeps its record of losses in the default type
    yield trained.double()
    trained.float()
    torch.set_default_dtype(torch.float32)


def largest_gap(ours, theirs):
    assert len(ours) == len(theirs)
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


@NORMS
@pytest.mark.parametrize("loss", ["ce", "dlr", "dlr-targeted"])
@pytest.mark.parametrize("kind", ["perceptron", "vit"])
def test_apgd_walks_as_the_reference_for_100_steps(threat, norm, loss, kind, double, points):
    x, y, random = points[0].double(), points[1], points[2]
    model = double if kind == "perceptron" else tiny_vit().double()
    ours, theirs = Recorded(model), Recorded(model)
    target = model(x).sort(1).indices[:, -3] if loss == "dlr-targeted" else None
    APGD(loss=loss.partition("-")[0])(ours, x, y, threat, Search(random, target=target))
    settings = {"n_iter": 100, "norm": norm, "eps": threat.eps, "device": "cpu"}
    if target is None:
        reference = autopgd.APGDAttack(theirs, loss=loss, **settings)
    else:
        reference = autopgd.APGDAttack_targeted(theirs, **settings)
    reference.init_hyperparam(x)
    reference.y_target = target
    reference.attack_single_run(x, y, x_init=_start(x, threat, random))
    assert largest_gap(ours.points, theirs.points) < 1e-9
    assert len(ours.points) == 101


def test_defaults_are_those_of_the_reference(trained):
    judge = pytest.importorskip("pyautoattack").AutoAttack(trained, norm="Linf", eps=0.1)
    apgd, fab, square_attack = APGD(), FAB(), Square()
    reference = judge.apgd
    assert (apgd.steps, apgd.eot, apgd.rho) == (reference.n_iter, reference.eot_iter, reference.thr_decr)
    reference = judge.fab
    assert (fab.steps, fab.alpha_max, fab.eta, fab.beta) == (
        reference.n_iter, reference.alpha_max, reference.eta, reference.beta
    )  # fmt: skip
    assert (square_attack.queries, square_attack.p_init) == (judge.square.n_queries, judge.square.p_init)


def test_apgd_reconsiders_its_step_when_the_paper_does():
    assert list(check_steps(100).items())[:4] == [(22, 22), (41, 19), (57, 16), (70, 13)]
    assert set(list(check_steps(100).values())[6:]) == {6}


def test_dlr_losses_are_the_references(points):
    _, y, _ = points
    logits = sample_streams(1, range(32)).normal((10,), at=0, dtype=torch.float64)
    reference = autopgd.APGDAttack_targeted(None, eps=1)
    assert torch.allclose(dlr(logits, y), reference.dlr_loss(logits, y), rtol=1e-12)
    reference.y_target = (y + 3) % 10
    assert torch.allclose(targeted_dlr(logits, y, (y + 3) % 10), reference.dlr_loss_targeted(logits, y), rtol=1e-12)


@ALL_NORMS
def test_the_way_to_a_hyperplane_is_the_references(threat, norm):
    streams = sample_streams(0, range(300))
    x = streams.uniform((3, 4, 4), at="x", dtype=torch.float64)
    slope = streams.normal((3, 4, 4), at="w", dtype=torch.float64)
    slope[:, 0, 0] = 0
    offset = (slope * streams.uniform((3, 4, 4), at="z", dtype=torch.float64)).flatten(1).sum(1)
    offset += streams.normal((), at="far", dtype=torch.float64) * 6 * (torch.arange(300) % 2)  # some out of reach
    project = getattr(fab_projections, f"projection_{norm.lower()}")
    ours = to_hyperplane(x, slope, offset, threat).flatten(1)
    assert torch.allclose(ours, project(x.flatten(1), slope.flatten(1), offset), atol=1e-12)
    assert ((x.flatten(1) + ours >= -1e-12) & (x.flatten(1) + ours <= 1 + 1e-12)).all()


@ALL_NORMS
@pytest.mark.parametrize("targeted", [True, False])
def test_fab_walks_as_the_reference_for_20_steps(threat, norm, targeted, trained, points):
    x, y, random = points
    trained = copy.deepcopy(trained)  # the reference leaves gradients on the weights
    ours, theirs = Recorded(trained), Recorded(trained)
    target = trained(x).sort(1).indices[:, -2]
    FAB(steps=20)(ours, x, y, threat, Search(random, target=target if targeted else None))
    reference = FABAttack_PT(theirs, norm=norm, n_iter=20, eps=threat.eps, device="cpu", targeted=targeted)
    reference.target_class = 2
    reference.attack_single_run(x, y, is_targeted=targeted)
    before = 2 if targeted else 1  # looks at the clean images, which our evaluator has already
    assert largest_gap(ours.points, theirs.points[before:]) < 1e-4


@pytest.mark.parametrize("size", [(8, 8), (32, 32), (224, 224), (30, 17)])
def test_squares_shrink_by_the_references_schedule(size):
    reference = square.SquareAttack(None, eps=1, resc_schedule=False)
    for query in (0, 10, 11, 50, 51, 200, 201, 501, 1001, 2001, 4001, 4999, 6001, 8001):
        fraction = reference.p_selection(query)
        side = max(round((fraction * size[0] * size[1]) ** 0.5), 1)
        assert square_side(0.8, query, *size, LpBall("inf", 1)) == min(side, *size)
        side = max(side, 3)
        assert square_side(0.8, query, *size, LpBall("2", 1)) == min(side + (side % 2 == 0), *size)


@pytest.mark.parametrize("norm", ["2", "1"])
@pytest.mark.parametrize("side", [1, 2, 3, 5, 6, 7, 9, 45])
def test_bumps_are_the_references(side, norm):
    reference = square.SquareAttack(None, norm=f"L{norm}", eps=1, device="cpu")
    shown = reference.eta(side)
    ours = _bump(side, torch.zeros(1), LpBall(norm, 1))
    assert min((shown - ours).abs().max(), (shown - ours.T).abs().max()) < 1e-6


class SameDraws(square.SquareAttack):
    """The reference on one image, given the random numbers that ours draws for it, in the order of its own calls."""

    def __init__(self, model, random, threat, shape, queries):
        super().__init__(model, norm=f"L{threat.norm}", eps=threat.eps, n_queries=queries, device="cpu", seed=0)
        channels, height, width = shape
        self.threat, self.numbers, self.rescale_schedule = threat, [], False
        side = max(1, height // 5)
        if threat.norm == "inf":
            self.numbers += [random.uniform((channels, 1, width), at="stripes")[0]]
        else:
            first = (height - 5 * side) // 2
            tiles = [-(-(length - first) // side) for length in (height, width)]
            drawn = random.uniform((channels + 1, *tiles), at="tiles")[0]
            for i in range(height // side):
                for j in range(width // side):
                    inside = drawn[:, i, j] if i < tiles[0] and j < tiles[1] else torch.zeros(channels + 1)
                    self.numbers += [inside[-1], inside[:-1]]  # turned, signs
        for query in range(queries):
            drawn = random.uniform((50, 5 + channels), at=query // 50)[0, query % 50]
            self.numbers += [*drawn[:2]] if threat.norm == "inf" else [*drawn[:5]]
            self.numbers += [drawn[5:]]

    def random_choice(self, shape):
        return (self.numbers.pop(0) - 0.5).sign().view(shape).double()

    def random_int(self, low=0, high=1):
        return (low + (high - low) * self.numbers.pop(0)).long()

    def eta(self, side):
        bump = _bump(side, torch.zeros(1, dtype=torch.float64), self.threat)
        return bump.T if self.numbers.pop(0) > 0.5 else bump


def projected_in_float32(x, delta, eps):
    """The reference's projection mixes types where the default one is float64."""
    torch.set_default_dtype(torch.float32)
    try:
        return autopgd.L1_projection(x, delta, eps).double()
    finally:
        torch.set_default_dtype(torch.float64)


@ALL_NORMS
@pytest.mark.parametrize("size", [8, 15, 32])
def test_square_walks_as_the_reference_on_the_same_draws(size, threat, norm, double, monkeypatch):
    monkeypatch.setattr(square, "L1_projection", projected_in_float32)
    shape, random = (3, size, size), sample_streams(3, [0])
    threat = threat.scaled(size / 8)
    x = random.uniform(shape, at="x", dtype=torch.float64) * 0.98 + 0.01
    weight = random.normal((10, x.numel()), at="model", dtype=torch.float64)[0]
    weight[0] = 0
    bias = torch.eye(10)[0] * 1e4  # so that nothing is fooled and the walk goes on
    ours, theirs = (Recorded(lambda z: z.flatten(1) @ weight.T + bias) for _ in range(2))
    Square(queries=120)(ours, x, torch.tensor([0]), threat, Search(random))
    reference = SameDraws(theirs, random, threat, shape, 120)
    reference.init_hyperparam(x)
    reference.attack_single_run(x, torch.tensor([0]))
    assert not reference.numbers
    gaps = [(a - b).abs().max().item() for a, b in zip(ours.points, theirs.points, strict=True)]
    # the reference projects onto the L1 ball in float32, and stretches what rounding leaves in an unchanged window
    assert sorted(gaps)[110 if norm == "L1" else 120] < (1e-3 if norm == "L1" else 1e-9)
    assert gaps[0] < 1e-6


@NORMS
def test_a_restart_of_fab_begins_half_way_to_the_border_as_the_references(threat, norm, trained, points):
    x, y, random = points[0].clamp(0.3, 0.7), points[1], points[2]
    for streams, distance in ((random, 0.0), (random.child("restart", 1), threat.eps / 2)):
        ours = Recorded(trained)
        FAB(steps=1)(ours, x, y, threat, Search(streams))
        expected = torch.full((len(x),), distance, dtype=torch.float64)
        assert torch.allclose(threat.distance(x, ours.points[0]), expected, atol=1e-6)


@pytest.mark.parametrize("eps", [0.5, 6.0, 40.0, 200.0])
def test_the_nearest_image_of_an_l1_ball_is_the_references(eps):
    streams = sample_streams(0, range(200))
    x = streams.uniform((3, 8, 8), at="x", dtype=torch.float64)
    x[:, 0, 0] = 0
    x[:, 1, 0] = 1
    delta = streams.normal((3, 8, 8), at="d", dtype=torch.float64) * streams.uniform((1, 1, 1), at="s") * 2
    ours = LpBall("1", eps).project(x, x + delta)
    theirs = x + delta + autopgd.L1_projection(x, delta, eps)
    assert (ours - theirs).abs().max() < 1e-4, "theirs is in float32"
    assert LpBall("1", eps).contains(x, ours).all()


@pytest.mark.parametrize("kind", ["perceptron", "vit"])
@pytest.mark.parametrize("loss", ["ce", "dlr-targeted"])
def test_apgd_in_l1_walks_as_the_reference(loss, kind, trained, points):
    x, y, random = points
    model = copy.deepcopy(trained) if kind == "perceptron" else tiny_vit()
    ours, theirs = Recorded(model), Recorded(model)
    target = model(x).sort(1).indices[:, -3] if loss != "ce" else None
    start = L1.project(x, x + random.normal(x.shape[1:], at="start", dtype=x.dtype))
    rule = partial(SparseRule.begin, ball=L1, steps=40)
    run_walk(ours, x, y, attack_loss(loss.partition("-")[0], y, target), start, rule, steps=40)
    settings = {"n_iter": 40, "norm": "L1", "eps": L1.eps, "device": "cpu"}
    reference = (autopgd.APGDAttack if target is None else autopgd.APGDAttack_targeted)(theirs, **settings)
    reference.init_hyperparam(x)
    reference.y_target = target
    reference.attack_single_run(x, y, x_init=start)
    assert len(ours.points) == len(theirs.points) == 41
    # a step moves as many pixels as the best point has changed: one that rounding left off by 1e-8 parts the walks
    same = [(a - b).abs().flatten(1).amax(1) < 1e-4 for a, b in zip(ours.points, theirs.points, strict=True)]
    assert all(step.float().mean() > (0.6 if kind == "perceptron" else 0.95) for step in same)
    assert same[1].all()


def test_apgd_in_l1_shrinks_its_ball_as_the_reference(trained, points, monkeypatch):
    """Of 11 steps 4 lie in the ball of 3 eps, 4 in that of 2 eps, and 3 are left for eps."""
    x, y, random = points
    ours, theirs = Recorded(trained), Recorded(trained)
    APGD(steps=11)(ours, x, y, L1, Search(random=random))
    reference = autopgd.APGDAttack(theirs, n_iter=11, norm="L1", eps=L1.eps, device="cpu", use_largereps=True)
    noise = random.normal(x.shape[1:], at="start", dtype=x.dtype)
    monkeypatch.setattr(torch, "randn_like", lambda _: noise.clone())
    reference.perturb(x, y)
    theirs.points.pop(0)  # the clean images
    assert len(ours.points) == len(theirs.points) == 5 + 5 + 4
    gaps = [(a - b).abs().flatten(1).amax(1) for a, b in zip(ours.points, theirs.points, strict=True)]
    # as above, pixels that rounding left off by 1e-8 part the walks, and a larger ball has more of them
    assert all((gap < 1e-4).float().mean() > 0.3 for gap in gaps)
    assert gaps[0].max() < 1e-4
    lengths = [L1.distance(x, point).amax().item() / L1.eps for point in ours.points]
    assert lengths == pytest.approx([3] * 5 + [2] * 5 + [1] * 4, rel=1e-5)


@NORMS
def test_apgd_starts_where_the_reference_does(threat, norm, trained, points, monkeypatch):
    x, y, random = points
    drawn = {"rand": random.uniform(x.shape[1:], at="start"), "randn": random.normal(x.shape[1:], at="start")}
    for name, noise in drawn.items():
        monkeypatch.setattr(torch, name, lambda _, noise=noise: noise)
    theirs = Recorded(trained)
    reference = autopgd.APGDAttack(theirs, n_iter=1, norm=norm, eps=threat.eps, device="cpu")
    reference.init_hyperparam(x)
    reference.attack_single_run(x, y)
    assert (_start(x, threat, random) - theirs.points[0]).abs().max() < 1e-6


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
@pytest.mark.parametrize("version", ["standard", "plus", "rand"])
def test_versions_of_autoattack_are_the_references(version, norm, trained):
    """Stages in order, with their steps, restarts, targets and averaged passes."""
    if norm == "1" and version != "standard":
        pytest.skip("the reference itself asks whether these are meant")
    judge = pytest.importorskip("pyautoattack").AutoAttack(trained, norm=f"L{norm}", eps=0.1, version=version)
    apgd, fab, queries = judge.apgd, judge.fab, judge.square.n_queries
    targets = {"apgd-t": judge.apgd_targeted.n_target_classes, "fab-t": fab.n_target_classes}
    runs = {
        "apgd-ce": (APGD(loss="ce", steps=apgd.n_iter, eot=apgd.eot_iter), apgd.n_restarts),
        "apgd-dlr": (APGD(loss="dlr", steps=apgd.n_iter, eot=apgd.eot_iter), apgd.n_restarts),
        "fab": (FAB(steps=fab.n_iter), fab.n_restarts),
        "square": (Square(queries=queries), judge.square.n_restarts),
        "apgd-t": (APGD(loss="dlr", steps=judge.apgd_targeted.n_iter), 1),
        "fab-t": (FAB(steps=fab.n_iter), 1),
    }
    expected = []
    for name in judge.attacks_to_run:
        attack, times = runs[name]
        ranks = range(2, targets[name] + 2) if name in targets else [None]
        expected += [(attack if times == 1 else Restarts(inner=attack, times=times), rank) for rank in ranks]
    suite = suite_from("autoattack" if version == "standard" else f"autoattack-{version}")
    plan = suite.plan(LpBall(norm, 0.1))
    assert [(stage.attack, stage.target_rank) for stage in plan.stages] == expected
    assert plan.name == suite.title == ("autoattack" if version == "standard" else f"autoattack-{version}")
    assert (plan.sampled, plan.precision) == ((), None)
    assert replace(suite, title=None).plan(LpBall(norm, 0.1)) == plan
    assert replace(suite, title="mine").plan(LpBall(norm, 0.1)) == replace(plan, name="mine")


def test_verdicts_in_l1_are_the_references(trained, points):
    x, y = points[0][:24], points[1][:24]
    model, threat = copy.deepcopy(trained), LpBall("1", 4.0)
    judge = pytest.importorskip("pyautoattack").AutoAttack(model, norm="L1", eps=threat.eps, seed=0)
    judge.square.n_queries = 50
    judge.verbose = False
    _, labels = judge.run_standard_evaluation(x, y, batch_size=24)
    suite = suite_from("autoattack").plan(threat)
    short = replace(suite, stages=(*suite.stages[:-1], replace(suite.stages[-1], attack=Square(queries=50))))
    ours = evaluate(trained, (x, y), suite=short, threat=threat, quiet=True)
    assert [stage.name for stage in ours.stages][:2] == ["apgd-ce-x5", "apgd-t/1"]
    assert len(ours.stages) == 1 + 5 + 9 + 1
    robust = (labels == y).numpy()
    assert 4 < robust.sum() < 20
    assert (ours.is_robust != robust).sum() <= 1
