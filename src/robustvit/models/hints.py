"""What a user says of a model in addition to its name."""

from robustvit.core.component import settings
from robustvit.core.config import apply_overrides, validated
from robustvit.core.errors import UserError
from robustvit.models.create import ModelSettings


@settings
class ModelHints:
    """What the user knows of a model that its file doesn't say."""

    model: str | None = None
    """The timm model that a bare checkpoint belongs to."""
    num_classes: int | None = None
    img_size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    random_weights: bool = False
    checkpoint: str | None = None
    """Of a run: best, last or an epoch's; None: what its recipe selects."""
    weights_key: str | None = None
    """The entry of a checkpoint that holds the weights, if several do."""
    overrides: tuple[str, ...] = ()
    """Further settings of the model, such as patch_size=4."""
    command_line: bool = False
    """Whether messages name the options of the command line."""

    def option(self, name: str) -> str:
        return f"--{name.replace('_', '-')}" if self.command_line else name

    def refuse(self, why: str, *names: str) -> None:
        """An error about the first of these that the user gave."""
        for name in names:
            if value := getattr(self, name):
                given = f"-o model.{value[0]}" if name == "overrides" else self.option(name)
                raise UserError(f"{given}{f' {value}' if isinstance(value, str) else ''}: {why}")

    def refuse_of_file(self) -> None:
        self.refuse("only a run folder has several", "checkpoint")
        self.refuse("only a checkpoint (.pt, .pth) has entries", "weights_key")

    def settings(self, name: str) -> ModelSettings:
        given = {key: getattr(self, key) for key in ("num_classes", "img_size", "mean", "std")}
        tree = {"name": name, **{key: value for key, value in given.items() if value is not None}}
        made: ModelSettings = validated(ModelSettings, apply_overrides(tree, self.overrides), "model")
        return made
