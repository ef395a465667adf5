"""Signs that a robust accuracy is not what it seems: each has a name, an observation, and an advice."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from robustvit.attacks import FGSM, PGD, Search, Suspect, follows_gradients, suspect_of
from robustvit.attacks.base import logits_with_gradient
from robustvit.core.numbers import wilson_interval
from robustvit.core.progress import Progress
from robustvit.core.result import AT_CHANCE, ResultWarning, StageResult
from robustvit.core.streams import sample_streams, seeded_globals, seeded_subset
from robustvit.data.base import known_labels
from robustvit.evaluation.batches import in_memory
from robustvit.evaluation.ledger import CLEAN
from robustvit.evaluation.plan import Plan
from robustvit.evaluation.probes import PROBES, Probed, probe_warnings
from robustvit.evaluation.sampling import Sample
from robustvit.evaluation.subject import STEADY_ROWS, Subject
from robustvit.losses import cross_entropy, is_correct, is_fooled
from robustvit.models import Normalized
from robustvit.models.heads import whole
from robustvit.threats import LpBall

PROBED = 64
"""Images, chosen at random, that the model is tried on before the first stage."""
ATTACKED = 32
"""Of them, those that are attacked."""

ADVICE = {
    "random-outputs": "each verdict is one draw of it, and attacks need gradients averaged over several: suite "
    "'autoattack-rand'; or switch off what is random (dropout left on?)",
    "probabilities": "a softmax flattens gradients and changes what margins and DLR mean: return the logits before it",
    "vanishing-gradients": "attacks that follow them see nothing there: add losses that don't saturate (cw-100, "
    "autoattack) and Square, and look for rounding or a huge scale of the logits",
    "accuracy-rises-with-steps": "a longer search can only help the attacker, so the gradients mislead: judge it by "
    "autoattack with Square, or attack a form of it that is differentiable",
    "training-mode": "nothing is wrong if you meant the model as it is used; call model.eval() to say so",
    "normalized-inputs": "models take pixels in [0, 1], so that eps means one thing: put mean and std inside with "
    "rv.normalized(model, mean, std) (--mean and --std), and give the images as they are",
    AT_CHANCE: "wrong normalization (mean, std), classes numbered in another order, or channels not red, green and "
    "blue?",
    "unverified": "take the accuracy as an upper bound, and look for low precision or randomness in the model, or for "
    "an attack that leaves its ball",
    "not-finite": "look for overflow in the model (half precision, a missing normalization): no attack learns anything "
    "from such images",
    "gradient-masking": "a larger ball holds every smaller one, so the attack fails where it could succeed: raise the "
    "steps or use autoattack",
}
"""What to do about each."""

INFLATES = frozenset({
    "random-outputs", "probabilities", "vanishing-gradients", "accuracy-rises-with-steps", "unverified",
    "gradient-masking",
})  # fmt: skip
"""Those that say that attacks may have failed where a better one succeeds."""

NORMALIZATIONS = {
    "ImageNet's mean and std": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CIFAR-10's mean and std": ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
    "mean 0.5 and std 0.5": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""What people normalize with; a model that does better so was meant to be fed so."""


def warning(name: str, observation: str) -> ResultWarning:
    return ResultWarning(name, observation, ADVICE[name], name in INFLATES)


def probe_model(subject: Subject, plan: Plan | None = None, threat: LpBall | None = None) -> list[ResultWarning]:
    """What a few passes over some images tell of the model, its gradients only where attacks follow them."""
    count = min(PROBED, max(subject.batch_size, 16), len(subject.indices))
    chosen = subject.indices[seeded_subset(len(subject.indices), count, subject.seed, "sanity")]
    follows = plan is not None and any(follows_gradients(stage.attack) for stage in plan.stages)
    of_gradients = ("gradients", *(probe.name for probe in PROBES), "steps") if follows else ()
    names = ("outputs", "normalization", *of_gradients)
    with Progress("checks", len(names), unit="checks", quiet=subject.quiet) as progress:

        def begin(name: str) -> None:
            progress.update(names.index(name), now=name)

        checked = threat if follows else None
        parts = in_memory(chosen, lambda part: list(_probed(subject, checked, part, begin)), lambda halved: None)
        return next(warnings for _, warnings in parts)


def _probed(
    subject: Subject, threat: LpBall | None, indices: Tensor, begin: Callable[[str], None]
) -> Iterator[ResultWarning]:
    """`threat`: None where no attack follows gradients; `begin` is called with the name of each check."""
    x, y = subject.batch(indices)
    begin("outputs")
    if subject.was_training:
        yield warning("training-mode", "the model came in training mode; it was evaluated in eval mode")
    with seeded_globals(subject.seed, "sanity"):
        random = _is_random(subject, x[:STEADY_ROWS])
        if random:
            yield warning("random-outputs", "the model is random: it answers the same images differently")
        with torch.no_grad():
            logits = subject.model(x)
        if bool(((logits >= 0) & (logits <= 1)).all()):
            sums = " and sum to 1" if bool(((logits.sum(1) - 1).abs() < 1e-3).all()) else ""
            yield warning("probabilities", f"the model's outputs lie in [0, 1]{sums}, as probabilities do")
        begin("normalization")
        yield from _normalized_inputs(subject, x, y, logits)
        if threat is not None:
            begin("gradients")
            yield from _vanishing(subject, threat, x, y)
            yield from probe_warnings(Probed(subject, threat, x, y, logits, random), begin)
            begin("steps")
            right = is_correct(logits, y).nonzero().squeeze(1)[:ATTACKED]
            if threat.norm in FGSM.norms and threat.eps > 0 and not random and len(right):
                yield from _rising(subject, threat, x[right], y[right])


def chance_warning(subject: Subject, hits: int) -> Iterator[ResultWarning]:
    """A clean accuracy no better than guessing, or than always predicting the most frequent class."""
    total = len(subject.indices)
    guess = 1 / subject.num_classes
    labels = known_labels(subject.images, subject.indices)
    frequent = 0.0 if labels is None else max(labels.bincount().tolist(), default=0) / max(total, 1)
    if frequent == 1:  # of one class alone, even a perfect model says nothing else
        frequent = 0.0
    if hits == total or wilson_interval(hits, total)[0] > max(guess, frequent):
        return
    most = f", {100 * frequent:.1f} % by always saying the most frequent class" if frequent else ""
    chance = f"chance ({100 * guess:.1f} % by guessing{most})"
    yield warning(AT_CHANCE, f"clean accuracy {100 * hits / total:.1f} % is no better than {chance}")


def not_finite_warning(counts: Mapping[str, int]) -> Iterator[ResultWarning]:
    """Images without an answer, by the condition that they met."""
    found = {name: count for name, count in counts.items() if count}
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        where = "clean images" if list(found) == [CLEAN] else f"images ({', '.join(list(found)[:3])}{more})"
        observation = f"{sum(found.values())} {where} gave logits that aren't finite and count as wrong"
        yield warning("not-finite", observation)


def stage_warnings(
    plan: Plan,
    stages: Sequence[StageResult],
    robust: int,
    num_images: int,
    control: tuple[str, int] | None,
    sample: Sample,
) -> Iterator[ResultWarning]:
    """Attacks that should find nothing after gradients have searched say themselves what it means if they do.

    `control`: its name, and how many images it left robust; an attack with a control must also have beaten that. A
    sampled stage speaks for all survivors that the sample was drawn from.
    """
    fooled: dict[Suspect, int] = {}
    of_all: dict[Suspect, float] = {}
    followed = False
    for stage, result in zip(plan.every, stages, strict=True):
        suspect = suspect_of(stage.attack)
        if suspect is None:
            followed = followed or follows_gradients(stage.attack)
        elif followed:
            stands_for = sample.survivors / max(len(sample.images), 1) if result.is_sampled else 1.0
            fooled[suspect] = fooled.get(suspect, 0) + result.num_fooled
            of_all[suspect] = of_all.get(suspect, 0.0) + result.num_fooled * stands_for
    many = max(1, 0.002 * num_images)  # the fraction of all images that AutoAttack's authors warn from
    for suspect, count in fooled.items():
        compared = control if suspect.has_control else None
        more = of_all[suspect] if compared is None else compared[1] - robust
        if count > 1 and of_all[suspect] > many and more > many:
            observation = f"{suspect.attack} fooled {count} images that gradients had left robust"
            if round(of_all[suspect]) > count:
                observation += f" in a sample, which stand for {of_all[suspect]:.0f} of {num_images}"
            observation += "" if compared is None else f", {more} more than with {compared[0]}"
            yield ResultWarning(suspect.name, observation, suspect.advice, inflates=True)


def _is_random(subject: Subject, x: Tensor) -> bool:
    """Two passes over the same images, as two draws of whatever the model draws.

    Measured class by class, by how much the logits of different images differ: a class that is masked by a logit of
    -1e9, or any other constant, says nothing of the others. Nor do images without an answer (NaN).
    """
    draws = []
    for draw in range(2):
        with torch.no_grad(), seeded_globals(subject.seed, "repeat", draw):
            draws.append(subject.model(x))
    answered = ~torch.stack(draws).isnan().any(0).any(1)  # (B,)
    if not bool(answered.any()):
        return False
    first, second = (logits[answered] for logits in draws)
    differ = first.amax(0) - first.amin(0)  # (K,)
    typical = differ[differ > 0].median() if bool((differ > 0).any()) else 0.0
    rounding = 1e-5 * first.abs().amax(0)
    return bool(((first - second).abs().amax(0) > rounding.clamp_min(1e-3 * typical)).any())


def _normalized_inputs(subject: Subject, x: Tensor, y: Tensor, logits: Tensor) -> Iterator[ResultWarning]:
    """Images that were scaled twice, or a model that knows more of them once they are normalized."""
    brightest = float(x.amax())
    if 0 < brightest <= 2 / 255:
        yield warning("normalized-inputs", f"no pixel is above {brightest:.2g}, as if divided by 255 twice")
        return
    model = whole(subject.model) if isinstance(subject.model, nn.Module) else None
    if isinstance(model, Normalized) and bool(model.mean.any()):
        return
    right = is_correct(logits, y)
    best, best_name = 0, ""
    for name, (mean, std) in NORMALIZATIONS.items():
        shift, scale = (torch.tensor(values, dtype=x.dtype, device=x.device).view(1, 3, 1, 1) for values in (mean, std))
        try:
            with torch.no_grad():
                other = is_correct(subject.model((x - shift) / scale), y)
        except Exception:  # a foreign model may refuse what isn't pixels: then it isn't meant to be fed so
            return
        gained, lost = int((other & ~right).sum()), int((right & ~other).sum())
        # a tenth of the images, and four deviations of what chance alone would move
        if gained - lost > max(0.1 * len(y), 4 * (gained + lost) ** 0.5, best):
            best, best_name = gained - lost, name
    if best:
        as_is = f"{int(right.sum())} of {len(y)} images are classified correctly as they are"
        yield warning("normalized-inputs", f"{as_is}, {int(right.sum()) + best} after {best_name}")


def _vanishing(subject: Subject, threat: LpBall, x: Tensor, y: Tensor) -> Iterator[ResultWarning]:
    point = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = logits_with_gradient(subject.model, point)
        (gradient,) = torch.autograd.grad(cross_entropy(logits, y).sum(), point, allow_unused=True)
    if gradient is None:
        return  # the attack raises its own error
    flat = gradient.flatten(1)
    # below these, most of the gradient is lost to underflow; steps in L2 divide by the length plus 1e-12
    size, least = (flat.norm(dim=1), 1e-11) if threat.norm == "2" else (flat.abs().amax(1), 1e-30)
    gone = int((~(size >= least)).sum())  # what isn't a number is gone, too
    if gone > 0.1 * len(y):
        observation = f"the cross-entropy's gradient is zero, or not a number, for {gone} of {len(y)} images"
        yield warning("vanishing-gradients", observation)


def _rising(subject: Subject, threat: LpBall, x: Tensor, y: Tensor) -> Iterator[ResultWarning]:
    """Images that one step fools and five do not."""
    random = sample_streams(subject.seed, range(len(x))).to(x.device)
    counts = []
    for attack in (FGSM(), PGD(steps=5, step="eps/2", start="none")):  # type: ignore[arg-type]
        x_adv = attack(subject.model, x, y, threat, Search(random))
        with torch.no_grad():
            counts.append(int(is_fooled(subject.model(x_adv), y).sum()))
    one, five = counts
    if one - five > 2:
        observation = f"of {len(y)} images, {one} are fooled by one gradient step and {five} by five steps"
        yield warning("accuracy-rises-with-steps", observation)
