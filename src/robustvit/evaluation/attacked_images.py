"""Adversarial images of a model in place of the clean ones, for analyses of what the model does with them."""

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustvit.attacks import Search, attacks_inside, judges_changed_model
from robustvit.attacks.fab import nearest_boundaries
from robustvit.core.errors import UserError
from robustvit.core.files import hash8
from robustvit.core.progress import Progress, say
from robustvit.core.result import ResultWarning
from robustvit.core.streams import sample_streams, seeded_globals
from robustvit.core.world import World
from robustvit.data.base import Images, class_names
from robustvit.evaluation.attacked import Attacked, AttackedEvaluation
from robustvit.evaluation.batches import batches, in_memory
from robustvit.evaluation.plan import Stage
from robustvit.evaluation.runner import ranked_classes
from robustvit.evaluation.saved import Saver
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.evaluation.suite import Suite
from robustvit.losses import is_fooled
from robustvit.threats import LpBall

KEPT_PARTS = 4
"""Files that are held in memory at once."""


class _Kept:
    """The images made so far: files, or arrays in memory where there is no folder."""

    def __init__(self, folder: Path | None) -> None:
        self._saver = None if folder is None else Saver(folder)
        self._memory: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.places: dict[int, tuple[str, int]] = {}
        """By image: its part and row."""
        if self._saver is not None:
            for name, index, _ in self._saver.parts():
                self._remember(name, index)
        self._read = lru_cache(maxsize=KEPT_PARTS)(self._part)

    def keep(self, batch: Tensor, x_adv: Tensor) -> None:
        name, index = f"{int(batch[0]):08d}.npz", batch.numpy()
        if self._saver is None:
            self._memory[name] = index, x_adv.float().cpu().numpy()
        else:
            self._saver.offer(batch, x_adv, x_adv, batch, x_adv, torch.ones(len(batch), dtype=torch.bool))
        self._remember(name, index)

    def take(self, indices: Tensor) -> Tensor:
        missing = [i for i in indices.tolist() if i not in self.places]
        if missing:
            raise UserError(f"image {missing[0]} was not attacked: only those that were chosen are")
        places = [self.places[i] for i in indices.tolist()]
        return torch.from_numpy(np.stack([self._read(name)[row] for name, row in places]))

    def _remember(self, name: str, index: np.ndarray) -> None:
        self.places |= {image: (name, row) for row, image in enumerate(index.tolist())}

    def _part(self, name: str) -> np.ndarray:
        part = self._memory[name] if self._saver is None else self._saver.part(name)
        if part is None:
            raise UserError(f"adversarial images were damaged while they were in use ({name}); start again")
        return part[1]


@dataclass(frozen=True, eq=False)
class AttackedImages:
    """What a suite made of images; those that are only looked up by number are the clean ones, `of`."""

    of: Images
    title: str
    key: str
    """Tells them from those of another model, suite, threat or seed."""
    kept: _Kept | None = field(repr=False)
    """None: not made yet; the clean ones stand in for them, where work is only planned."""

    @property
    def num_classes(self) -> int | None:
        return self.of.num_classes

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return class_names(self.of)

    def __len__(self) -> int:
        return len(self.of)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        clean, labels = self.of.take(indices)
        return clean if self.kept is None else self.kept.take(indices), labels

    def describe(self, indices: Tensor) -> list[str]:
        return [f"{self.key} {index}" for index in indices.tolist()]


def clean_images(subject: Subject) -> Images | None:
    """What the adversarial images of a subject were made of; None where its images are clean ones."""
    return subject.images.of if isinstance(subject.images, AttackedImages) else None


@dataclass(frozen=True)
class AttackOnImages:
    """A suite that makes an adversarial image of each image of a subject, fooled or not, on the model as it is."""

    subject: Subject
    suite: Suite
    threat: LpBall

    @cached_property
    def evaluation(self) -> AttackedEvaluation:
        made = Attacked(threat=self.threat, suite=self.suite).begin(self.subject)
        if not made.plan.stages:
            raise UserError(f"'{made.plan.name}' attacks nothing; clean images are named 'clean'")
        if any(judges_changed_model(part) for stage in made.plan.every for part in attacks_inside(stage.attack)):
            raise UserError(f"'{made.plan.name}' is judged on a changed model; adversarial images are of the original")
        return made

    @property
    def title(self) -> str:
        return f"{self.evaluation.plan.name} at {self.threat}"

    @property
    def identity(self) -> dict[str, Any]:
        return {"adversarial": self.evaluation.identity}

    def store(self, root: Path | None) -> Store:
        return Store.open(root, f"adversarial-{self.evaluation.title}", self.identity, self.subject, World())

    def planned(self) -> Subject:
        """The subject as it will be, for whoever counts passes."""
        return replace(self.subject, images=AttackedImages(self.subject.images, self.title, "", None))

    def passes(self) -> int | None:
        return self.evaluation.passes()

    def is_done(self, root: Path | None) -> bool:
        store = self.store(root)
        if store.folder is None or not store.folder.is_dir():
            return False
        return set(self.subject.indices.tolist()) <= set(_Kept(store.folder).places)

    def __call__(self, root: Path | None) -> Subject:
        """The subject on adversarial images, which are kept below `root`; what is there isn't made again."""
        store = self.store(root)
        with store.lock("attacking", wait=True):  # another analysis may need the same images
            kept = _Kept(store.folder)
            evaluation = self.evaluation.prepare(store.folder)
            todo = [i for i in self.subject.indices.tolist() if i not in kept.places]
            total = len(self.subject.indices)
            with Progress(self.title, total, total - len(todo), quiet=self.subject.quiet) as progress:
                for batch in batches(todo, self.subject.batch_size):
                    for part, x_adv in in_memory(batch, lambda part: self._made(evaluation, part), self._warn):
                        kept.keep(part, x_adv)
                        progress.advance(len(part))
        key = "" if store.identity is None else hash8({k: v for k, v in store.identity.items() if k != "logits"})
        title = f"{self.subject.images.title} under {self.title}"
        return replace(self.subject, images=AttackedImages(self.subject.images, title, key or title, kept))

    def _warn(self, warning: ResultWarning) -> None:
        if not self.subject.quiet:
            say(f"warning: {warning}")

    def _made(self, evaluation: AttackedEvaluation, batch: Tensor) -> Tensor:
        """Stage after stage on what the stages before didn't fool; what resists all is as the last one left it."""
        x, y = self.subject.batch(batch)
        x_adv, left = x.clone(), torch.arange(len(x))
        for stage in evaluation.plan.stages:
            if not len(left):
                break
            rows = left.to(x.device)
            with seeded_globals(self.subject.seed, stage.name, int(batch[0])):  # for models that are random
                random = sample_streams(self.subject.seed, batch[left]).child(*evaluation.plan.uses()[stage.name])
                search = Search(random.to(x.device), self._targets(stage, x[rows], y[rows]))
                made = stage.attack(self.subject, x[rows], y[rows], self.threat, search).detach()
                inside = self.threat.contains(x[rows], made)
                x_adv[rows[inside]] = made[inside].to(x_adv.dtype)
                with torch.no_grad():
                    left = left[~is_fooled(self.subject(x_adv[rows]), y[rows]).cpu()]
        return x_adv

    def _targets(self, stage: Stage, x: Tensor, y: Tensor) -> Tensor | None:
        if stage.target_rank is None:
            return None
        if stage.target_order == "nearest":
            return nearest_boundaries(self.subject, x, y, self.threat)[:, stage.target_rank - 2]
        with torch.no_grad():
            ranked = ranked_classes(self.subject(x), stage.target_rank)
        return torch.where(ranked[:, -1] == y, ranked[:, 0], ranked[:, -1])  # y, where the model is wrong already
