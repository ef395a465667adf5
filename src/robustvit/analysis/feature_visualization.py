"""Images that a model makes of noise: what it looks for in a class, or with a single activation of its last layer.

Figure 18 and appendix J of A Light Recipe to Train Robust Vision Transformers (Debenedetti et al. 2023), after
Santurkar et al. 2019.
"""

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from robustvit.analysis.base import network
from robustvit.analysis.checks import check_gradient
from robustvit.analysis.judges import check_judges, in_top, judges_for
from robustvit.analysis.streaming import State, accumulate
from robustvit.attacks import Search
from robustvit.attacks.ascent import PGD, StepSize
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.figures import Pictures, Table, percent
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count, Positive
from robustvit.core.streams import sample_streams
from robustvit.data.base import class_names
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.models import eval_mode
from robustvit.models.heads import network_of
from robustvit.models.reference import AnyModelRef
from robustvit.threats import LpBall

BOX = LpBall(norm="inf", eps=1.0)
"""All images: eps 15 of the paper is cut to it."""


@component("analysis", "feature_visualization")
class FeatureVisualization:
    """Images that gradient ascent makes of uniform noise, for random classes or single activations."""

    clean_only: ClassVar[str] = "it starts from noise, not from images"

    target: Literal["class", "activation"] = "class"
    """The probability of a random class, or one activation of the last layer before the classifier."""
    made: Count = 20
    """Images."""
    shown: Count = 8
    """Of these, in the pictures."""
    steps: Count = 100
    """Of the ascent."""
    step: Positive = 0.225
    """Size of a step in pixels of [0, 1]: 1.5 times the paper's eps of 15, divided among 100 steps."""
    classifiers: tuple[AnyModelRef, ...] = ()
    """Other models that judge the images made for classes."""

    def check(self, subject: Subject) -> None:
        if self.target == "activation":
            _last_layers(network(subject))
            if self.classifiers:
                raise UserError("feature_visualization.classifiers: judge images of classes, not of activations")
        check_judges(self.classifiers, subject, "feature_visualization.classifiers")
        check_gradient(subject)

    def contents(self, subject: Subject) -> dict[str, Any]:
        return {"classifiers": [ref.digest for ref in self.classifiers]}

    def passes(self, subject: Subject) -> int:
        return self.made * (2 * self.steps + 2 + 3 * len(self.classifiers))

    def __call__(self, subject: Subject, store: Store) -> Finding:
        x, _ = subject.batch(subject.indices[:1])
        shape = tuple(x.shape[1:])
        state: State = {
            "start": np.zeros((self.made, *shape), dtype=np.float32),
            "end": np.zeros((self.made, *shape), dtype=np.float32),
            "target": np.zeros(self.made, dtype=np.int64),
            "value": np.zeros((self.made, 2)),
        }

        def add(numbers: Tensor) -> int:
            random = sample_streams(subject.seed, numbers).child("feature visualization").to(x.device)
            start = random.uniform(shape, at="x", dtype=x.dtype)
            wanted = random.integers(self._choices(subject, start), at="target")
            end = self._ascended(subject, start, wanted)
            at = numbers.numpy()
            state["start"][at], state["end"][at] = start.float().cpu().numpy(), end.float().cpu().numpy()
            state["target"][at] = wanted.cpu().numpy()
            for column, images in enumerate((start, end)):
                state["value"][at, column] = self._value(subject, images, wanted)
            return len(numbers)

        steps = torch.split(torch.arange(self.made), subject.batch_size)
        accumulate(steps, state, add, store, "feature visualization", self.made, subject.quiet)
        return self._finding(subject, state, x)

    def _choices(self, subject: Subject, x: Tensor) -> int:
        """How many classes or activations there are."""
        if self.target == "class":
            return subject.num_classes
        with torch.no_grad():
            return _features(subject, x[:1]).shape[1]

    def _ascended(self, subject: Subject, start: Tensor, wanted: Tensor) -> Tensor:
        attack = PGD(self.steps, StepSize(self.step), "none")
        if self.target == "class":
            return attack(subject, start, wanted, BOX, Search(target=wanted))

        def loss(features: Tensor, rows: Tensor) -> Tensor:
            return features.gather(1, wanted[rows][:, None]).squeeze(1)

        return attack.ascend(lambda x: _features(subject, x), start, BOX, loss)

    def _value(self, subject: Subject, x: Tensor, wanted: Tensor) -> np.ndarray:
        with torch.no_grad():
            of = subject(x).double().softmax(1) if self.target == "class" else _features(subject, x)
        value: np.ndarray = of.gather(1, wanted[:, None]).squeeze(1).double().cpu().numpy()
        return value

    def _finding(self, subject: Subject, state: State, x: Tensor) -> Finding:
        is_class = self.target == "class"
        names = class_names(subject.images) if is_class else None
        shown = min(self.shown, self.made)
        rows = tuple(names[one] if names else f"{self.target} {one}" for one in state["target"][:shown])
        pictures = np.stack([state["start"][:shown], state["end"][:shown]], axis=1)
        start, end = state["value"].mean(0)
        what = "probability of the class" if is_class else "activation"
        texts = (percent(start), percent(end)) if is_class else (f"{start:.4g}", f"{end:.4g}")
        tables = [Table(f"Mean {what}", ("image", what), (("noise", texts[0]), ("optimized image", texts[1])))]
        if self.classifiers:
            tables.append(self._judged(state, x))
        return Finding(
            "Feature visualization",
            f"{self.made} images that {self.steps} steps of {self.step:g} make of uniform noise, each for a random "
            f"{self.target}. A model whose gradients mean something to people makes shapes; noise that gets full "
            "marks from this model alone shows features that no other sees.",
            tables=tuple(tables),
            pictures=(Pictures("Made of noise", "pictures", ("noise", "optimized image"), rows),),
            arrays={"pictures": pictures, "target": state["target"], "value": state["value"], "made": state["end"]},
        )

    def _judged(self, state: State, x: Tensor) -> Table:
        """With the classes of other images, and the noise, as controls."""
        wanted = torch.from_numpy(state["target"]).to(x.device)
        end, start = (torch.from_numpy(state[name]).to(x) for name in ("end", "start"))
        cases = ((end, wanted), (end, wanted.roll(1)), (start, wanted))
        rows = []
        for name, judge in judges_for(self.classifiers, x).items():
            with eval_mode(judge):
                rows.append((name, *(percent(in_top(judge, images, y, 1).mean()) for images, y in cases)))
        columns = ("classifier", "made of noise", "classes of other images", "noise")
        return Table("Seen as the class by other classifiers", columns, tuple(rows))


def _last_layers(model: nn.Module) -> list[nn.Linear]:
    """The last layer, or all linear ones of a network that doesn't say which is: the last that a pass calls is."""
    declared = getattr(network_of(model), "get_classifier", None)
    layer = declared() if callable(declared) else None
    layers = [layer] if isinstance(layer, nn.Linear) else [one for one in model.modules() if isinstance(one, nn.Linear)]
    if not layers:
        raise UserError("feature_visualization.target: 'activation' needs a linear last layer; take 'class'")
    return layers


def _features(subject: Subject, x: Tensor) -> Tensor:
    """(B, activations) that the last layer gets."""
    kept: dict[str, Tensor] = {}
    layers = _last_layers(network(subject))
    handles = [layer.register_forward_pre_hook(lambda _, args: kept.update(last=args[0])) for layer in layers]
    try:
        subject(x)
    finally:
        for handle in handles:
            handle.remove()
    return kept["last"].flatten(1)[: len(x)]
