"""An attack on a single picture: what the command line and the playground do alike."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from robustvit.attacks import Attack, Search
from robustvit.attacks.base import Classifier
from robustvit.attacks.fab import nearest_boundaries
from robustvit.attacks.hooks import check_attack, follows_gradients, judges_changed_model, passes_of, prepare_attacks
from robustvit.core.errors import UserError
from robustvit.core.examples import magnified_change
from robustvit.core.streams import sample_streams, seeded_globals
from robustvit.data.base import as_pixels
from robustvit.evaluation.plan import Plan, Stage
from robustvit.evaluation.runner import LEAD, ranked_classes
from robustvit.evaluation.subject import Subject, open_subject, spread_of_each
from robustvit.evaluation.suite import suite_from
from robustvit.losses import margin
from robustvit.threats import LpBall


@dataclass(frozen=True)
class Seen:
    """How far an attack has come, after a forward pass of its search."""

    stage: str
    stage_number: int
    """From 1."""
    stages: int
    steps: int
    """Forward passes of this stage so far."""
    most_steps: int | None
    """None where the attack doesn't tell."""
    lead: float
    """Of the wrong class, or of the target, over the best other logit: above 0 the attack has its aim."""
    predicted: int


@dataclass(frozen=True)
class AttackedPicture:
    """A picture before and after an attack, in the levels that a file stores."""

    clean: np.ndarray
    """(H, W, 3) uint8, as the model gets it."""
    adversarial: np.ndarray
    """(H, W, 3) uint8; inside of the threat's ball around `clean`."""
    before: np.ndarray
    """(K,) probabilities of the classes for the clean picture."""
    after: np.ndarray
    """(K,) for exactly `adversarial`."""
    label: int
    """The class to get away from: the one given, or that of the clean picture."""
    target: int | None
    suite: str
    threat: LpBall
    distance: float
    """Of the two, in the threat's norm."""

    @property
    def predicted(self) -> int:
        return int(self.after.argmax())

    @property
    def is_fooled(self) -> bool:
        """Whether the attack has its aim: another class, or the target."""
        return self.predicted != self.label if self.target is None else self.predicted == self.target

    def change(self) -> tuple[np.ndarray, float]:
        """(H, W, 3) uint8, magnified around gray; and how often."""
        clean, adversarial = (one.astype(np.float32) / 255 for one in (self.clean, self.adversarial))
        change, magnified = magnified_change(clean, adversarial, self.threat.norm, self.threat.eps)
        return np.round(change.clip(0, 1) * 255).astype(np.uint8), magnified


def attack_picture(
    model: Classifier,
    picture: np.ndarray,
    suite: str,
    threat: LpBall,
    *,
    label: int | None = None,
    target: int | None = None,
    seed: int = 0,
    device: str = "auto",
    observe: Callable[[Seen], None] | None = None,
) -> AttackedPicture:
    """Search the ball around an (H, W, 3) uint8 picture; stages of a suite follow each other until one succeeds.

    What is returned is stored in whole levels: it was rounded inside of the ball, and judged after that. Where no stage
    succeeds, it is the one that came closest. `observe` is called after every pass of the search, and ends the attack
    by an exception.
    """
    plan = suite_from(suite).plan(threat)
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]
    data = (pixels, torch.zeros(1, dtype=torch.int64))
    opened = open_subject(model, data, seed=seed, batch_size=1, device=device, quiet=True)
    with opened.ready() as subject:
        x, _ = subject.batch(subject.indices)
        with torch.no_grad(), seeded_globals(seed, "picture"):
            before = subject(x)
        if not bool(torch.isfinite(before).all()):
            raise UserError("the model's logits for this picture aren't finite, so that no class is the right one")
        for name, number in (("label", label), ("target", target)):
            if number is not None and not 0 <= number < subject.num_classes:
                raise UserError(f"{name} {number}: the model has the classes 0 to {subject.num_classes - 1}")
        own = int(before.argmax()) if label is None else label
        if target == own:
            raise UserError(f"target {target}: the picture has this class already; name another one")
        plan, _ = plan.fitted(subject.num_classes, threat)
        search = _Search(subject, x, threat, own, target, seed, observe)
        stored = search.run(_prepared(plan, subject), before)
        judged = as_pixels(stored.byte(), subject.dtype)  # exactly what a file holds
        with torch.no_grad(), seeded_globals(seed, "picture"):
            after = subject(judged)
        if not bool(threat.contains(x, judged).all()):
            raise AssertionError(f"a picture outside of {threat}")
        return AttackedPicture(
            clean=picture,
            adversarial=stored[0].permute(1, 2, 0).byte().cpu().numpy(),
            before=before.softmax(1)[0].double().cpu().numpy(),
            after=after.softmax(1)[0].double().cpu().numpy(),
            label=own,
            target=target,
            suite=plan.name,
            threat=threat,
            distance=float(threat.distance(x, judged)),
        )


def _prepared(plan: Plan, subject: Subject) -> list[tuple[Stage, Attack, tuple[str, int]]]:
    """Each stage with its attack ready to search, and what names its random numbers."""
    for stage in plan.every:
        if judges_changed_model(stage.attack):
            raise UserError(
                f"{stage.name}: judges a changed model; use an attack on the model as it is, such as pgd-20"
            )
        check_attack(stage.attack, subject)
    uses = plan.uses()
    ready = prepare_attacks([stage.attack for stage in plan.every], subject, None)
    return [(stage, attack, uses[stage.name]) for stage, attack in zip(plan.every, ready, strict=True)]


@dataclass(frozen=True)
class _Search:
    """The attack on one picture."""

    subject: Subject
    x: Tensor
    threat: LpBall
    label: int
    target: int | None
    seed: int
    observe: Callable[[Seen], None] | None

    def run(self, stages: list[tuple[Stage, Attack, tuple[str, int]]], before: Tensor) -> Tensor:
        """(1, 3, H, W) levels of the first that succeeds, else of the one that came closest."""
        closest, best = (self.x * 255).round(), self._lead(before)
        y = self._of(self.label)
        for number, (stage, attack, use) in enumerate(stages, start=1):
            if bool(best > 0):
                break
            place = (number, len(stages))
            with seeded_globals(self.seed, stage.name, 0):  # for models that are random
                found = attack(self.subject, self.x, y, self.threat, self._asked(stage, attack, place, use, before))
                stored = self.threat.quantized(self.x, found)
                with torch.no_grad():
                    lead = self._lead(self.subject(stored))
            if bool(lead > best) or number == 1:
                closest, best = (stored * 255).round(), lead
        return closest

    def _asked(
        self, stage: Stage, attack: Attack, place: tuple[int, int], use: tuple[str, int], before: Tensor
    ) -> Search:
        steps = 0
        passes = passes_of(attack)
        most = None if passes is None else max(1, passes // 2 if follows_gradients(attack) else passes)

        def seen(step: int, rows: Tensor, x_adv: Tensor, loss: Tensor, logits: Tensor) -> None:
            nonlocal steps
            steps += 1
            if self.observe is not None:
                lead, predicted = float(self._lead(logits[:1])), int(logits[0].argmax())
                self.observe(Seen(stage.name, *place, steps, most, lead, predicted))

        def done(x_adv: Tensor, logits: Tensor, rows: Tensor) -> Tensor:
            finished = torch.isfinite(logits).all(1) & (self._lead(logits) > LEAD * spread_of_each(logits))
            if bool(finished.any()):
                with torch.no_grad():
                    finished &= self._lead(self.subject(self.threat.quantized(self.x, x_adv))) > 0
            return finished

        random = sample_streams(self.seed, [0]).child(*use).to(self.x.device)
        return Search(random, self._aim(stage, before), done, seen)

    def _aim(self, stage: Stage, before: Tensor) -> Tensor | None:
        """The class that a search is for: the user's, or the one that the stage is about."""
        if self.target is not None or stage.target_rank is None:
            return None if self.target is None else self._of(self.target)
        if stage.target_order == "nearest":
            order = nearest_boundaries(self.subject, self.x, self._of(self.label), self.threat)
            return order[:, stage.target_rank - 2]
        return ranked_classes(before, stage.target_rank)[:, stage.target_rank - 1]

    def _lead(self, logits: Tensor) -> Tensor:
        """(1,) above 0 where the aim is reached; never where logits aren't finite."""
        lead = margin(logits, self._of(self.label)) if self.target is None else -margin(logits, self._of(self.target))
        return torch.where(torch.isfinite(logits).all(1), lead, -torch.inf)

    def _of(self, number: int) -> Tensor:
        return torch.tensor([number], device=self.x.device)
