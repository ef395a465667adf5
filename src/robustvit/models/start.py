"""Weights to start from: a run's, a file's or timm's pretrained ones, fitted to a model that may differ a little."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from robustvit.core.component import settings
from robustvit.core.errors import UserError
from robustvit.models.create import describe
from robustvit.models.foreign import fit_state, misfits, shape_text, shortened
from robustvit.models.normalize import Normalization, Normalized, backbone_of, matches
from robustvit.models.reference import resolve_model
from robustvit.models.weights import extra_state, load_extra_state, load_state, stored_settings, unknown_normalization


@dataclass(frozen=True)
class Started:
    """What became of every tensor."""

    source: str
    matched: int
    resized: tuple[str, ...]
    """Each with its shape before and after."""
    new: tuple[str, ...]
    """Drawn at random, as the recipe allows, or added to the network: heads as copies of its own."""
    unused: tuple[str, ...]
    extra_state: Mapping[str, Any] = field(default_factory=dict)
    """The checkpoint's own, which the model has now."""
    renormalized: str = ""
    """The mean and std that the weights were trained with, where the recipe has others."""
    copied: tuple[str, ...] = ()
    """Of the new ones, those that begin as copies of tensors that the weights have."""

    @property
    def random(self) -> frozenset[str]:
        """Names of new tensors that hold nothing of the weights."""
        return frozenset(self.new) - frozenset(self.copied)

    def __str__(self) -> str:
        parts = [f"{self.matched} tensors as they were"]
        groups = {"resized": self.resized, "new": self.new, "left out": self.unused}
        parts += [f"{len(names)} {what} ({shortened(names)})" for what, names in groups.items() if names]
        parts += [f"{len(value)} {name.replace('_', ' ')}" for name, value in self.extra_state.items()]
        parts += [f"trained with mean and std {self.renormalized}"] if self.renormalized else []
        return f"{self.source}: {', '.join(parts)}"


@settings
class Start:
    """Where a model's weights come from; what doesn't fit is an error unless it is named."""

    weights: str
    """Any reference to a model (run folder, checkpoint, timm name ...), or `pretrained`: timm's own for this one."""
    key: str | None = None
    """The entry of a file that holds the weights, where several do."""
    fresh: tuple[str, ...] = ()
    """Patterns of tensors that start anew, such as `head.*` for other classes."""
    resize: bool = True
    """Patch and position embeddings, and tables of relative positions, are resampled to another image or patch size."""
    renormalize: bool = False
    """Weights that were trained with another mean and std go on under the recipe's own."""

    def __call__(self, model: Normalized) -> Started:
        backbone = model.backbone
        source, known, facts = self._source(model)
        state, stored = fit_state(source, backbone)
        renormalized = self._check_normalization(model, known or stored)
        own = backbone.state_dict()
        new = self._new(backbone, own, state)
        changed = self._resize(state, {name: value for name, value in own.items() if name not in new}, backbone)
        unused = sorted(name for name in state if name not in own and matches(name, self.fresh))
        state = {name: value for name, value in state.items() if name not in unused}
        state |= {name: own[name] for name in new}
        sources = getattr(backbone, "copied_parameters", {})
        copies = {name: sources[name] for name in new if name in sources and not matches(name, self.fresh)}
        state |= {name: state[source] for name, source in copies.items()}
        problems = misfits(state, backbone, "model.num_classes")
        if problems:
            raise UserError(
                f"start.weights: {self.weights} doesn't fit model '{describe(model)['name']}': {problems}; name in "
                "start.fresh what shall start anew"
            )
        backbone.load_state_dict(state)
        load_extra_state(model, facts, f"start.weights: {self.weights}")
        matched, extra = len(own) - len(new) - len(changed), extra_state(model)
        copied = tuple(name for name, source in copies.items() if source not in new)
        return Started(self.weights, matched, tuple(changed), tuple(new), tuple(unused), extra, renormalized, copied)

    def _new(self, backbone: nn.Module, own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
        """What the recipe names, and what a wrapper adds to the network whose weights these are."""
        if self.fresh and not any(matches(name, self.fresh) for name in own):
            raise UserError(f"start.fresh: no tensor of the model is called {' or '.join(self.fresh)}")
        added: tuple[str, ...] = getattr(backbone, "added_parameters", ())
        return [name for name in own if matches(name, self.fresh) or (name not in state and matches(name, added))]

    def _source(self, model: Normalized) -> tuple[dict[str, Tensor], Normalization | None, dict[str, Any]]:
        """The tensors, the normalization that they were trained with, where it is known, and the extra state."""
        try:
            is_own = self.weights == "pretrained" and model.settings is not None
            ref = resolve_model(model.settings.name if is_own else self.weights)
        except UserError as error:
            raise UserError(f"start.weights: {error}") from None
        if ref.file is None:
            module = ref.module()
            known = module.normalization if isinstance(module, Normalized) else None
            return dict(backbone_of(module).state_dict()), known, extra_state(module)
        state, facts = load_state(ref.file, self.key, "start.key")
        made = stored_settings(facts, ref.file)
        return state, made.normalization if made else None, facts

    def _check_normalization(self, model: Normalized, known: Normalization | None) -> str:
        """Weights belong to the normalization that they were trained with; the other one, where it may be so."""
        mine = model.normalization
        if known is None and model.has_default_normalization and not self.renormalize:
            advice = "set model.mean and model.std: [0] and [1]"
            raise unknown_normalization(f"start.weights: {self.weights}", advice, model)
        if known is None or known.agrees(mine):
            return ""
        if not self.renormalize:
            mean, std = ([round(value, 6) for value in values] for values in known)
            raise UserError(
                f"start.weights: {self.weights} was trained with mean and std {known}, the recipe's model has {mine}; "
                f"set model.mean: {mean} and model.std: {std}, or start.renormalize: true to go on under the recipe's"
            )
        return str(known)

    def _resize(self, state: dict[str, Tensor], own: Mapping[str, Tensor], backbone: nn.Module) -> list[str]:
        from robustvit.models.resize import resized

        changes = []
        for name, wanted in own.items() if self.resize else ():
            theirs = state.get(name, wanted)
            changed = resized(name, theirs, wanted, backbone) if theirs.shape != wanted.shape else None
            if changed is not None:
                state[name] = changed
                changes.append(f"{name} {shape_text(theirs)} to {shape_text(wanted)}")
        return changes
