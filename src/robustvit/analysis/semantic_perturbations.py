"""Whether what an attack adds looks like something: do other classifiers see in it the class that it evades?

Table VIII and Figure 8 of A Light Recipe to Train Robust Vision Transformers (Debenedetti et al. 2023).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustvit.analysis.attack_losses import attack_name, attacked_pair
from robustvit.analysis.checks import check_attacking, required
from robustvit.analysis.judges import check_judges, in_top, judges_for
from robustvit.analysis.streaming import State, accumulate
from robustvit.attacks.ascent import PGD
from robustvit.attacks.base import AnyAttack
from robustvit.attacks.hooks import passes_of
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Line, Pictures, Table, percent
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count, wilson_interval
from robustvit.core.streams import sample_streams, seeded_order
from robustvit.evaluation.attacked_images import clean_images
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.models import eval_mode
from robustvit.models.reference import AnyModelRef
from robustvit.threats import LpBall

PERTURBED, SHUFFLED, NOISE, IMAGES = "perturbations", "other images' labels", "random noise", "clean images"


@component("analysis", "semantic_perturbations")
class SemanticPerturbations:
    """Accuracy of other classifiers on what an attack adds to images, with shuffled labels and noise as controls."""

    classifiers: tuple[AnyModelRef, ...] = ()
    """Other models that judge, at least one; trained as usual, since robust ones need not know unusual images."""
    attack: AnyAttack = PGD(100)
    """That makes the perturbations, unless the images are adversarial ones already."""
    top: Count = 5
    """A judge is right if the label is among so many of its classes."""
    shown: Count = 6
    """Images in the pictures."""
    threat: LpBall | None = None
    """Of the attack; null: that of the call."""

    def check(self, subject: Subject) -> None:
        if not self.classifiers:
            raise UserError("semantic_perturbations.classifiers: name at least one other model that judges")
        check_judges(self.classifiers, subject, "semantic_perturbations.classifiers")
        if self.top >= subject.num_classes:
            raise UserError(f"semantic_perturbations.top: below the number of classes ({subject.num_classes})")
        threat = required(self.threat, "semantic_perturbations")
        if clean_images(subject) is None:
            check_attacking(subject, self.attack, threat)

    def contents(self, subject: Subject) -> dict[str, Any]:
        return {"classifiers": [ref.digest for ref in self.classifiers]}

    def passes(self, subject: Subject) -> int | None:
        each = passes_of(self.attack) if clean_images(subject) is None else 0
        return None if each is None else len(subject.indices) * (each + 4 * len(self.classifiers))

    def __call__(self, subject: Subject, store: Store) -> Finding:
        threat, total = required(self.threat, "semantic_perturbations"), len(subject.indices)
        others = subject.indices[_other_rows(total, subject.seed)]
        judges = judges_for(self.classifiers, subject.batch(subject.indices[:1])[0])
        names = list(judges)
        state: State = {
            "hits": np.zeros((len(names), 4, total), dtype=np.int64),
            "kept": np.zeros((min(self.shown, total), 3, *subject.batch(subject.indices[:1])[0].shape[2:]), np.float32),
        }

        def add(rows: Tensor) -> int:
            at, indices = rows.numpy(), subject.indices[rows]
            shuffled = subject.batch(others[rows])[1]
            x, seen, noise, y = self._made(subject, indices, threat)
            for number, judge in enumerate(judges.values()):
                with eval_mode(judge):
                    cases = ((seen, y), (seen, shuffled), (noise, y), (x, y))
                    for case, (images, labels) in enumerate(cases):
                        state["hits"][number, case, at] = in_top(judge, images, labels, self.top)
            first = at[at < len(state["kept"])]
            state["kept"][first] = seen[: len(first)].float().cpu().numpy()
            return len(rows)

        steps = torch.split(torch.arange(total), subject.batch_size)
        accumulate(steps, state, add, store, "semantic perturbations", total, subject.quiet)
        return self._finding(subject, threat, names, state)

    def _made(self, subject: Subject, indices: Tensor, threat: LpBall) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Clean images, what the attack adds and uniform noise as pictures, and labels."""
        x, x_adv, y = attacked_pair(subject, self.attack, indices, threat)
        control = sample_streams(subject.seed, indices).child("semantic").to(x.device)
        made = (x_adv - x, threat.random_start(x, control) - x)
        seen, noise = (_as_picture(one, threat) for one in made)
        return x, seen, noise, y

    def _scale(self, threat: LpBall) -> str:
        return "[-eps, eps]" if threat.norm == "inf" else "each image's largest change down to its negative"

    def _finding(self, subject: Subject, threat: LpBall, names: list[str], state: State) -> Finding:
        cases = (PERTURBED, SHUFFLED, NOISE, IMAGES)
        hits, total = state["hits"].sum(2), state["hits"].shape[2]
        rows = tuple((name, *(percent(count / total) for count in hits[row])) for row, name in enumerate(names))
        lines = tuple(
            Line(case, tuple(map(float, range(len(names)))), tuple((hits[:, column] / total).tolist()),
                 tuple(wilson_interval(int(count), total) for count in hits[:, column]))
            for column, case in enumerate(cases)
        )  # fmt: skip
        shown = subject.indices[: len(state["kept"])]
        images, _ = subject.batch(shown, clean_images(subject))
        pictures = np.stack([images.float().cpu().numpy(), state["kept"]], axis=1)
        chance, attack = percent(self.top / subject.num_classes), attack_name(subject, self.attack)
        return Finding(
            "Semantic perturbations",
            f"Top-{self.top} accuracy of other classifiers on what {attack} of {threat} adds, "
            f"{self._scale(threat)} as [0, 1]: how often they see the class that the perturbation evades. {total} "
            f"images of {subject.images.title}. Controls: the labels of other images, which chance and the classes "
            f"that a judge prefers explain, and uniform noise. Any label would be right in {chance}.",
            tables=(Table(f"Top-{self.top} accuracy", ("classifier", *cases), rows),),
            charts=(Chart(f"Top-{self.top} accuracy", "accuracy", lines, True, "dots", tuple(names)),),
            pictures=(
                Pictures("What is judged", "pictures", ("image", "perturbation"),
                         tuple(f"image {index}" for index in shown.tolist())),
            ),
            arrays={"hits": state["hits"], "pictures": pictures.astype(np.float32)},
        )  # fmt: skip


def _as_picture(delta: Tensor, threat: LpBall) -> Tensor:
    """No change is 0.5; the ends are eps, or the largest change of the image where eps bounds no single pixel."""
    scale = threat.eps if threat.norm == "inf" else delta.abs().amax((1, 2, 3), keepdim=True).clamp_min(1e-30)
    return ((delta + scale) / (2 * scale)).clamp(0, 1)


def _other_rows(total: int, seed: int) -> Tensor:
    """For each row another one, at random."""
    order = seeded_order(total, seed, "shuffled labels")
    others = torch.empty_like(order)
    others[order] = order.roll(1)
    return others
