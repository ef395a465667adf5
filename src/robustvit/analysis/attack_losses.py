"""The loss that attacks of some strength reach, for the analyses that compare strengths."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from robustvit.attacks import Search
from robustvit.attacks.base import Attack
from robustvit.attacks.hooks import label
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Line
from robustvit.core.streams import SampleStreams, sample_streams, seeded_globals
from robustvit.evaluation.attacked_images import clean_images
from robustvit.evaluation.subject import Subject
from robustvit.losses import cross_entropy, predicted_classes
from robustvit.models.modes import attacking
from robustvit.threats import LpBall

Mode = Literal["eval", "train"]


def starts(seed: int, indices: Tensor, restart: int, device: str) -> SampleStreams:
    """Of one restart, which draws what the same restart of an evaluation draws."""
    random = sample_streams(seed, indices).to(device)
    return random.child("restart", restart) if restart else random


def attacked_loss(
    subject: Subject, attack: Attack, indices: Tensor, threat: LpBall, restart: int, mode: Mode = "eval"
) -> np.ndarray:
    """(B,) cross-entropy in eval mode of the images that an attack in this mode ends with."""
    x, y = subject.batch(indices)
    search = Search(starts(subject.seed, indices, restart, str(x.device)))
    with attacking(subject.model, mode), seeded_globals(subject.seed, "attack strength", restart, int(indices[0])):
        x_adv = attack(subject, x, y, threat, search)
    return clean_loss(subject, x_adv, y)


def attacked_pair(subject: Subject, attack: Attack, indices: Tensor, threat: LpBall) -> tuple[Tensor, Tensor, Tensor]:
    """Clean images, adversarial ones and labels; where the subject's images are adversarial, these are they."""
    x_adv, y = subject.batch(indices)
    if clean_images(subject) is not None:
        return subject.batch(indices, clean_images(subject))[0], x_adv, y
    with seeded_globals(subject.seed, "perturbations", int(indices[0])):
        search = Search(starts(subject.seed, indices, 0, str(x_adv.device)))
        return x_adv, attack(subject, x_adv, y, threat, search), y


def attack_name(subject: Subject, attack: Attack) -> str:
    """Of the attack that `attacked_pair` takes."""
    return label(attack) if clean_images(subject) is None else "the attack"


def clean_loss(subject: Subject, x: Tensor, y: Tensor) -> np.ndarray:
    with torch.no_grad():
        loss: np.ndarray = cross_entropy(subject(x).double(), y).cpu().numpy()
    return loss


def first_correct(subject: Subject, count: int) -> Tensor:
    """The first images that the model classifies correctly, at most so many."""
    found: list[Tensor] = []
    for part in torch.split(subject.indices, subject.batch_size):
        x, y = subject.batch(part)
        with torch.no_grad():
            found.append(part[(predicted_classes(subject(x)) == y).cpu()])
        if sum(map(len, found)) >= count:
            break
    correct = torch.cat(found)[:count]
    if not len(correct):
        raise UserError(f"the model classifies none of {len(subject.indices)} images correctly: take more, or train it")
    return correct


def loss_chart(index: int, xs: tuple[float, ...], losses: np.ndarray, note: str, x_log: bool) -> Chart:
    """Of one image: the mean of (restarts, points), with the smallest and largest."""
    ranges = tuple(zip(losses.min(0).tolist(), losses.max(0).tolist(), strict=True))
    line = Line("cross-entropy", xs, tuple(losses.mean(0).tolist()), ranges=ranges)
    return Chart(f"Image {index}", "steps", (line,), y_title="loss", x_log=x_log, note=note)
