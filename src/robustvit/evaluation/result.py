"""What an evaluation says, with everything the number depends on."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustvit.core.component import to_dict
from robustvit.core.numbers import format_fraction
from robustvit.threats import LpBall


@dataclass(frozen=True)
class AttackResult:
    """One stage: how many fell in it, and what was left standing after it."""

    name: str
    fell: int
    unverified: int
    robust_accuracy: float
    seconds: float
    passes: float
    """Forward and backward passes, each image's counted."""
    settings: dict[str, Any]


@dataclass(frozen=True)
class EvalResult:
    """Worst case over the suite, on the original model, over all images asked for."""

    suite: str
    threat: LpBall
    indices: np.ndarray
    """(N,) which images of the data."""
    is_correct: np.ndarray
    """(N,) the clean image is classified correctly."""
    is_robust: np.ndarray
    """(N,) and no stage that all images meet found an adversarial image."""
    attacks: tuple[AttackResult, ...]
    images_rule: str
    data: str
    seed: int
    precision: str
    processes: int
    threads: int
    """Of each process."""
    device: str
    model: dict[str, Any]
    checkpoint: dict[str, Any]
    warnings: tuple[str, ...]
    versions: dict[str, str]
    command: str = ""
    folder: str | None = None
    bound: dict[str, Any] | None = None
    """Of the suite `fast`: what AutoAttack, run on a sample of the survivors, could still take off."""
    quantized: bool = False
    """Adversarial images were kept to steps of 1/255."""
    curve: dict[str, Any] | None = None
    """Along an eps curve: how many images fell at the smaller eps, and how many of those attacked again withstood."""
    smaller_eps: tuple[float, ...] = ()
    """Those before this one on the curve."""
    attention: dict[str, Any] | None = None
    """Where attention was scaled: the protocol, each search with its factors, and what random ones leave standing."""
    stood_beside: np.ndarray | None = None
    """(N,) which images the suite's control left standing."""

    @property
    def num_images(self) -> int:
        return len(self.is_correct)

    @property
    def clean_accuracy(self) -> float:
        return float(self.is_correct.mean())

    @property
    def clean_interval(self) -> tuple[float, float]:
        return wilson_interval(int(self.is_correct.sum()), self.num_images)

    @property
    def robust_accuracy(self) -> float:
        return float(self.is_robust.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95 % for the robust accuracy, over the choice of images."""
        return wilson_interval(int(self.is_robust.sum()), self.num_images)

    def to_dict(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "clean_accuracy": self.clean_accuracy,
            "clean_interval": list(self.clean_interval),
            "robust_accuracy": self.robust_accuracy,
            "interval": list(self.interval),
            "num_images": self.num_images,
            "images_rule": self.images_rule,
            "data": self.data,
            "threat": {**to_dict(self.threat), "eps_text": format_fraction(self.threat.eps)},
            "attacks": [vars(attack) for attack in self.attacks],
            "seed": self.seed,
            "precision": self.precision,
            "quantized": self.quantized,
            "processes": self.processes,
            "threads": self.threads,
            "device": self.device,
            "model": self.model,
            "checkpoint": self.checkpoint,
            "warnings": list(self.warnings),
            **({"bound": self.bound} if self.bound else {}),
            **({"curve": self.curve} if self.curve else {}),
            **({"attention": self.attention} if self.attention else {}),
            "versions": self.versions,
            "command": self.command,
        }


def wilson_interval(hits: int, total: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson's score interval for a share; unlike the normal one it is right near 0 and 1."""
    share = hits / total
    scale = 1 + z * z / total
    centre = (share + z * z / (2 * total)) / scale
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / scale
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return (0.0 if hits == 0 else low, 1.0 if hits == total else high)
