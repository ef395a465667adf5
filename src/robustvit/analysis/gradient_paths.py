"""Which path the gradient of an attack takes: through attention, MLPs, or the residual path alone.

Gradients are stopped at the output of a part, which leaves the logits as they are.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from robustvit.analysis.attack_losses import starts
from robustvit.analysis.base import network
from robustvit.analysis.checks import check_attacking, check_gradient, few_images, needing, required
from robustvit.analysis.streaming import State, accumulate
from robustvit.attacks import Search
from robustvit.attacks.ascent import PGD
from robustvit.attacks.base import AnyAttack, gradient_to, logits_with_gradient
from robustvit.attacks.hooks import label, passes_of
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Line, Table, percent
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count, mean_interval, wilson_interval
from robustvit.core.streams import seeded_globals
from robustvit.evaluation.attacked_images import clean_images
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.losses import cross_entropy, predicted_classes
from robustvit.models.attention_probe import attention_blocks, network_name
from robustvit.models.layout import short_names
from robustvit.models.lesions import ATTENTION, MLP, Block, Lesion, removable
from robustvit.threats import LpBall

EVERY = "gradients everywhere"
KINDS = (ATTENTION, MLP)


@component("analysis", "gradient_paths")
class GradientPaths:
    """How much of the input gradient passes through the attention or MLP of each block, and what attacks without do."""

    attack: AnyAttack = PGD(10)
    """That is run with gradients everywhere, without those of all attention, of all MLPs, and of both."""
    images: Count = 64
    """At most so many of those that are given."""
    threat: LpBall | None = None
    """Of the attack; null: that of the call."""

    def check(self, subject: Subject) -> None:
        instead = "lesion and layer_similarity take networks without attention"
        with needing("stops gradients at the attention of blocks", instead):
            attention_blocks(network(subject))
        if not any(block.part(ATTENTION) for block in self._blocks(subject)):
            name = network_name(network(subject))
            raise UserError(f"gradient_paths: no block of {name} adds its attention to a residual path; {instead}")
        threat = required(self.threat, "gradient_paths")
        if clean_images(subject) is None:
            check_attacking(subject, self.attack, threat)
        else:
            check_gradient(subject)

    def passes(self, subject: Subject) -> int | None:
        each, parts = passes_of(self.attack), len(_single(self._blocks(subject)))
        attacks = 4 if clean_images(subject) is None else 0
        return None if each is None else min(self.images, len(subject.indices)) * (attacks * (each + 1) + 3 * parts + 2)

    def __call__(self, subject: Subject, store: Store) -> Finding:
        threat, blocks = required(self.threat, "gradient_paths"), self._blocks(subject)
        indices, single = subject.indices[: self.images], _single(blocks)
        stopped = {EVERY: (), **{f"without {kind}": _parts(blocks, kind) for kind in KINDS}}
        stopped["residual path only"] = tuple(name for block in blocks for _, name in block.parts)
        if clean_images(subject) is not None:  # they are not attacked again
            stopped = {}
        total = len(indices)
        state: State = {
            "through": np.zeros((len(single), total)),
            "agreement": np.zeros((len(single), total)),
            "lesion": np.zeros((len(single), total)),
            "correct": np.zeros((len(stopped), total)),
        }

        def add(rows: Tensor) -> int:
            at, (x, y) = rows.numpy(), subject.batch(indices[rows])
            whole = _gradient(subject, x, y, ())
            for number, (_, _, name) in enumerate(single):
                without = _gradient(subject, x, y, (name,))
                state["through"][number, at] = part_through(whole, without)
                state["agreement"][number, at] = (whole.sign() == without.sign()).flatten(1).double().mean(1).cpu()
                with Lesion(parts=(name,))(network(subject)):
                    state["lesion"][number, at] = _correct(subject, x, y)
            for number, names in enumerate(stopped.values()):
                x_adv = self._attacked(subject, x, y, indices[rows], threat, names)
                state["correct"][number, at] = _correct(subject, x_adv, y)
            return len(rows)

        steps = torch.split(torch.arange(total), subject.batch_size)
        accumulate(steps, state, add, store, "gradient paths", total, subject.quiet)
        return self._finding(subject, threat, blocks, state, list(stopped))

    def _blocks(self, subject: Subject) -> list[Block]:
        return removable(network(subject), few_images(subject))

    def _attacked(
        self, subject: Subject, x: Tensor, y: Tensor, indices: Tensor, threat: LpBall, names: Sequence[str]
    ) -> Tensor:
        search = Search(starts(subject.seed, indices, 0, str(x.device)))
        with gradients_stopped(network(subject), names), seeded_globals(subject.seed, "paths", int(indices[0])):
            return self.attack(subject, x, y, threat, search)

    def _finding(
        self, subject: Subject, threat: LpBall, blocks: list[Block], state: State, attacks: list[str]
    ) -> Finding:
        single, names = _single(blocks), short_names([block.name for block in blocks])
        rows = tuple(
            (f"{kind} of block {number + 1} ({names[number]})", f"{state['through'][row].mean():.3f}",
             percent(state["agreement"][row].mean()), percent(state["lesion"][row].mean()))
            for row, (kind, number, _) in enumerate(single)
        )  # fmt: skip
        columns = ("path", "gradient through it", "signs that stay without", "accuracy with it left out")
        titles = {"through": "Gradient through a part", "lesion": "Accuracy with a part left out"}
        return Finding(
            "Paths of the gradient",
            f"Input gradients of the cross-entropy. {state['through'].shape[1]} images of {subject.images.title}. The "
            "gradient through a part is the length of what is missing where no gradient passes it, relative to the "
            f"whole. {self._said(threat) if attacks else ''}The accuracy with a part left out is that of the lesion "
            "study.",
            tables=(*_attack_table(attacks, state["correct"]), Table("Each path", columns, rows)),
            charts=(
                *_attack_chart(attacks, state["correct"]),
                *(_chart(title, single, state[name], name == "lesion") for name, title in titles.items()),
            ),
            arrays=dict(state),
        )

    def _said(self, threat: LpBall) -> str:
        return (
            f"The attacks are {label(self.attack)} of {threat}, judged on the model as it is: the path that an attack "
            "can't do without is the one that it uses. "
        )


UNDER_ATTACK = "Accuracy under attacks with some gradients stopped"


def _attack_table(attacks: Sequence[str], correct: np.ndarray) -> tuple[Table, ...]:
    rows = tuple((name, percent(correct[row].mean())) for row, name in enumerate(attacks))
    return (Table(UNDER_ATTACK, ("attack", "accuracy"), rows),) if rows else ()


def _attack_chart(attacks: Sequence[str], correct: np.ndarray) -> tuple[Chart, ...]:
    xs, values = tuple(map(float, range(len(attacks)))), tuple(correct.mean(1).tolist())
    intervals = tuple(wilson_interval(int(row.sum()), len(row)) for row in correct)
    line = Line("accuracy", xs, values, intervals)
    return (Chart(UNDER_ATTACK, "accuracy", (line,), True, "dots", tuple(attacks)),) if attacks else ()


def _single(blocks: Sequence[Block]) -> list[tuple[str, int, str]]:
    """Kind, number of the block, and name of each part."""
    found = ((kind, number, block.part(kind)) for kind in KINDS for number, block in enumerate(blocks))
    return [(kind, number, name) for kind, number, name in found if name is not None]


def _parts(blocks: Sequence[Block], kind: str) -> tuple[str, ...]:
    return tuple(name for other, _, name in _single(blocks) if other == kind)


@contextmanager
def gradients_stopped(model: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """What these modules put out is the same, but no gradient passes through it."""
    with ExitStack() as stack:
        for name in names:
            handle = model.get_submodule(name).register_forward_hook(lambda module, args, output: output.detach())
            stack.callback(handle.remove)
        yield


def _gradient(subject: Subject, x: Tensor, y: Tensor, names: Sequence[str]) -> Tensor:
    point = x.detach().requires_grad_()
    with gradients_stopped(network(subject), names), torch.enable_grad():
        return gradient_to(point, cross_entropy(logits_with_gradient(subject, point), y).sum())


def part_through(whole: Tensor, stopped: Tensor) -> np.ndarray:
    """(B,) length of what is missing, relative to the whole; 0 where there is no gradient at all."""
    whole, stopped = whole.double().flatten(1), stopped.double().flatten(1)
    length = whole.norm(dim=1)
    part: np.ndarray = (
        torch.where(length > 0, (whole - stopped).norm(dim=1) / length.clamp_min(1e-300), 0.0).cpu().numpy()
    )
    return part


def _correct(subject: Subject, x: Tensor, y: Tensor) -> np.ndarray:
    with torch.no_grad():
        correct: np.ndarray = (predicted_classes(subject(x)) == y).double().cpu().numpy()
    return correct


def _chart(title: str, single: Sequence[tuple[str, int, str]], values: np.ndarray, in_percent: bool) -> Chart:
    lines = []
    for kind in KINDS:
        rows = [(number, values[row]) for row, (other, number, _) in enumerate(single) if other == kind]
        means = tuple(float(of.mean()) for _, of in rows)
        most = 1.0 if in_percent else np.inf
        intervals = tuple(mean_interval(of, 0.0, most) or (m, m) for (_, of), m in zip(rows, means, strict=True))
        lines.append(Line(kind, tuple(number + 1.0 for number, _ in rows), means, intervals))
    return Chart(title, "block", tuple(line for line in lines if line.xs), in_percent)
