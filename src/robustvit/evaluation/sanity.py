"""Signs that a robust accuracy is not what it seems: each has a name, says what was seen, and what to do."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robustvit.attacks import FGSM, PGD, Search, follows_gradients, innermost, is_independent_check
from robustvit.attacks.base import logits_with_gradient
from robustvit.core.devices import is_out_of_memory
from robustvit.core.errors import UserError, first_line
from robustvit.core.generators import seeded_globals
from robustvit.core.streams import sample_streams, seeded_subset
from robustvit.data.base import known_labels
from robustvit.evaluation.result import AttackResult, wilson_interval
from robustvit.evaluation.stages import Suite
from robustvit.evaluation.subject import STEADY_ROWS, Subject
from robustvit.losses import cross_entropy, is_fooled
from robustvit.models import Normalized

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
    "attention-masks-gradients": "softmax inside attention saturates and hides gradients: quote the worst case over "
    "plain and scaled attacks, suite autoattack+aas",
    "black-box-beats-gradients": "gradients hide something or had too few steps: raise the steps, use autoattack, and "
    "look for a part of the model that isn't differentiable",
    "training-mode": "nothing is wrong if you meant the model as it is used; call model.eval() to say so",
    "normalised-inputs": "models take pixels in [0, 1], so that eps means one thing: put mean and std inside with "
    "rv.normalized(model, mean, std) (--mean and --std), and give the images as they are",
    "at-chance": "wrong normalisation (mean, std), classes numbered in another order, or channels not red, green and "
    "blue?",
    "gradient-masking": "a larger ball holds every smaller one, so the attack fails where it could succeed: raise the "
    "steps or use autoattack",
}
"""What to do about each."""

NORMALISATIONS = {
    "ImageNet's mean and std": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CIFAR-10's mean and std": ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
    "mean 0.5 and std 0.5": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""What people normalise with; a model that does better so was meant to be fed so."""


def told(name: str, seen: str) -> str:
    """`name: what was seen; what to do`."""
    return f"{name}: {seen}; {ADVICE[name]}"


def signs_before(subject: Subject, suite: Suite) -> list[str]:
    """What a few passes over some images tell of the model; over fewer, where memory is short."""
    count = min(PROBED, max(subject.batch_size, 16), len(subject.indices))
    while True:
        try:
            return _signs(subject, suite, count)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if count == 1:
                raise UserError(f"out of memory with a single image: {first_line(error)}") from None
            count //= 2


def _signs(subject: Subject, suite: Suite, count: int) -> list[str]:
    chosen = seeded_subset(len(subject.indices), count, subject.seed, "sanity")
    x, y = subject.batch(subject.indices[chosen])
    found = []
    if subject.came_training:
        found.append(told("training-mode", "the model came in training mode; it was evaluated in eval mode"))
    with seeded_globals(subject.seed, "sanity"):
        random = _is_random(subject, x[:STEADY_ROWS])
        if random:
            found.append(told("random-outputs", "the model is random: it answers the same images differently"))
        with torch.no_grad():
            logits = subject.model(x)
        found += _probabilities(logits)
        found += _normalised(subject, x, y, logits)
        if any(follows_gradients(stage.attack) for stage in suite.stages):
            found += _vanishing(subject, x, y)
            right = ~is_fooled(logits, y) & torch.isfinite(logits).all(1)
            one_step = subject.threat.norm in FGSM.norms and subject.threat.eps > 0
            if one_step and not random and bool(right.any()):
                found += _rising(subject, x[right][:ATTACKED], y[right][:ATTACKED])
    return found


def chance_sign(subject: Subject, hits: int) -> list[str]:
    """A clean accuracy that can't be told from guessing, or from always saying the most frequent class."""
    total = len(subject.indices)
    guess = 1 / subject.num_classes
    labels = known_labels(subject.images, subject.indices)
    counts = labels.bincount().tolist() if labels is not None else []
    frequent = max(counts, default=0) / max(total, 1)
    if frequent == 1:  # of one class alone, even a perfect model says nothing else
        frequent = 0.0
    if hits == total or wilson_interval(hits, total)[0] > max(guess, frequent):
        return []
    most = f", {100 * frequent:.1f} % by always saying the most frequent class" if frequent else ""
    seen = f"clean accuracy {100 * hits / total:.1f} % is no better than chance ({100 * guess:.1f} % by guessing{most})"
    return [told("at-chance", seen)]


def signs_after(suite: Suite, results: Sequence[AttackResult], num_images: int) -> list[str]:
    """What the stages' outcomes tell: attacks that are blind to gradients should come home with nothing."""
    found, followed = [], False
    fell: dict[str, int] = {}
    for stage, result in zip((*suite.stages, *suite.sampled), results, strict=True):
        if is_independent_check(stage.attack):
            name = getattr(innermost(stage.attack), "name", stage.name)
            fell[name] = fell.get(name, 0) + (result.fell if followed else 0)
        else:
            followed = followed or follows_gradients(stage.attack)
    for name, count in fell.items():
        if count > _many(num_images):
            found.append(
                told("black-box-beats-gradients", f"{name} took {count} images that gradients had left standing")
            )
    return found


def attention_signs(
    suite: Suite, results: Sequence[AttackResult], attention: dict[str, Any], robust: int, num_images: int
) -> list[str]:
    """Images that fall to scaled attention after the model's own gradients, and more of them than to random factors."""
    took: dict[str, int] = {}
    followed = False
    fell = {result.name: result.fell for result in results}
    for stage in suite.stages:
        followed = followed or follows_gradients(stage.attack)
        if followed and getattr(stage.attack, "is_attention_check", False):
            took[stage.name] = fell[stage.name]
    many, control = _many(num_images), attention.get("control")
    more = sum(took.values()) if control is None else round(control["robust_accuracy"] * num_images) - robust
    if sum(took.values()) <= many or more <= many:
        return []
    seen = f"{' and '.join(took)} took {sum(took.values())} images that gradients had left standing"
    beside = "" if control is None else f", {more} more than with random factors"
    return [told("attention-masks-gradients", seen + beside)]


def _many(num_images: int) -> float:
    """The share that AutoAttack's authors warn from."""
    return max(1, 0.002 * num_images)


def _is_random(subject: Subject, x: Tensor) -> bool:
    """Two passes over the same images, as two draws of whatever the model draws."""
    draws = []
    for draw in range(2):
        with torch.no_grad(), seeded_globals(subject.seed, "repeat", draw):
            draws.append(subject.model(x))
    spread = draws[0].amax() - draws[0].amin()
    return bool((draws[0] - draws[1]).abs().amax() > 1e-3 * spread)


def _probabilities(logits: Tensor) -> list[str]:
    if not bool(((logits >= 0) & (logits <= 1)).all()):
        return []
    sums = " and sum to 1" if bool(((logits.sum(1) - 1).abs() < 1e-3).all()) else ""
    return [told("probabilities", f"the model's outputs lie in [0, 1]{sums}, as probabilities do")]


def _normalised(subject: Subject, x: Tensor, y: Tensor, logits: Tensor) -> list[str]:
    """Images that were scaled twice, or a model that knows more of them once they are normalised."""
    brightest = float(x.amax())
    if 0 < brightest <= 2 / 255:
        return [told("normalised-inputs", f"no pixel is above {brightest:.2g}, as if divided by 255 twice")]
    if isinstance(subject.model, Normalized) and bool(subject.model.mean.any()):
        return []
    right = logits.argmax(1) == y
    best: tuple[int, str] | None = None
    for name, (mean, std) in NORMALISATIONS.items():
        shift, scale = (torch.tensor(values, dtype=x.dtype, device=x.device).view(1, 3, 1, 1) for values in (mean, std))
        try:
            with torch.no_grad():
                other = subject.model((x - shift) / scale).argmax(1) == y
        except Exception:  # a foreign model may refuse what isn't pixels: then it isn't meant to be fed so
            return []
        gained, lost = int((other & ~right).sum()), int((right & ~other).sum())
        # a tenth of the images, and four deviations of what chance alone would move
        if gained - lost > max(0.1 * len(y), 4 * (gained + lost) ** 0.5) and (best is None or gained - lost > best[0]):
            best = (gained - lost, name)
    if best is None:
        return []
    count = int(right.sum())
    seen = f"{count} of {len(y)} images are classified correctly as they are, {count + best[0]} after {best[1]}"
    return [told("normalised-inputs", seen)]


def _vanishing(subject: Subject, x: Tensor, y: Tensor) -> list[str]:
    point = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = logits_with_gradient(subject.model, point)
        (gradient,) = torch.autograd.grad(cross_entropy(logits, y).sum(), point, allow_unused=True)
    if gradient is None:
        return []  # the attack will say so in a sentence of its own
    flat = gradient.flatten(1)
    # below these, most pixels' share is lost to underflow; steps in L2 divide by the length plus 1e-12
    size, least = (flat.norm(dim=1), 1e-11) if subject.threat.norm == "2" else (flat.abs().amax(1), 1e-30)
    gone = int((~(size >= least)).sum())  # what isn't a number is gone, too
    if gone <= 0.1 * len(y):
        return []
    seen = f"the cross-entropy's gradient is zero, or not a number, for {gone} of {len(y)} images"
    return [told("vanishing-gradients", seen)]


def _rising(subject: Subject, x: Tensor, y: Tensor) -> list[str]:
    """Images that one step fools and five do not."""
    random = sample_streams(subject.seed, range(len(x))).to(x.device)
    fallen = []
    for attack in (FGSM(), PGD(steps=5, step="eps/2", start="none")):  # type: ignore[arg-type]
        x_adv = attack(subject.model, x, y, subject.threat, Search(random))
        with torch.no_grad():
            fallen.append(int(is_fooled(subject.model(x_adv), y).sum()))
    one, five = fallen
    if one - five <= 2:
        return []
    seen = f"of {len(y)} images, {one} fall to one gradient step and {five} to five steps"
    return [told("accuracy-rises-with-steps", seen)]
