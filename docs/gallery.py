"""Writes gallery.md and its pictures from models of the zoo: make gallery. Minutes; killed, it goes on from there."""

import argparse
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import robustvit as rv
from robustvit.analysis import analyze
from robustvit.core.finding import FIGURES, Finding
from robustvit.reporting.export import write_figures

HERE = Path(__file__).parent
PICTURES = Path("images") / "gallery"
MADE = "<!-- made by docs/gallery.py: make gallery -->\n"
THREAT = rv.LpBall("inf", 8 / 255)
MODELS = ("zoo:vit_trades", "zoo:vit_standard", "zoo:resnet_standard")
"""The robust one first; analyses leave out those that don't fit."""
LARGEST = 1_500_000
"""Bytes of all pictures together."""


@dataclass(frozen=True)
class Shown:
    """One analysis, and which of its figures are shown, by how their titles begin."""

    name: str
    text: str
    figures: tuple[str, ...]
    images: int = 256
    settings: dict[str, Any] = field(default_factory=dict)
    on: tuple[str, ...] = ("clean",)


ALL = (
    Shown("lesion", "What can be left out? Attention, MLP or the whole of one block, then several blocks at random.",
          ("Without one part", "Without several"), settings={"draws": 10}),
    Shown("layer_similarity", "How alike are the outputs of the blocks?", ("Similarity", "Correlation, all tokens",
          "Correlation, class token")),
    Shown("restricted_attention", "What is left where patches see only near ones, or as many random ones?",
          ("Attention to near patches", "No attention among patches")),
    Shown("attention_maps", "How far does attention reach, and where does it go?",
          ("Mean attention distance", "Attention to patches"), settings={"shown": 4}),
    Shown("eigen_cam", "Where is the strongest feature of the last block, on clean and on adversarial images?",
          ("EigenCAM",), images=64, settings={"shown": 4}, on=("clean", "pgd-10")),
    Shown("confusion", "Which classes fall to an attack, and what are they taken for?", ("Accuracy of each class",),
          on=("clean", "pgd-10")),
    Shown("boundary", "How far is the decision boundary, and which images are nearest to it?",
          ("Images whose", "Margins", "Most fragile"), images=64, settings={"steps": 10, "shown": 4}),
    Shown("loss_surface", "Is the loss around an image smooth?", ("Loss around",), images=64,
          settings={"shown": 1, "points": 15}),
    Shown("attack_strength", "How close do attacks of few steps come to a long one?", ("Relative difference",),
          images=64, settings={"reference": 50, "seeds": 2}),
    Shown("loss_along", "Where does the loss of a long attack converge, and to the same value from each start?",
          ("Image",), images=64, settings={"shown": 1, "steps": 100, "restarts": 5}),
    Shown("perturbations", "What does an attack add, and does it follow the patches?", ("Change", "Perturbations"),
          images=64, settings={"shown": 3}),
    Shown("gradient_paths", "Which path does the gradient of an attack take?",
          ("Accuracy under attacks", "Gradient through"), images=64, settings={"images": 64}),
    Shown("feature_visualization", "What does gradient ascent make of noise, for a class?", ("Made of noise",),
          images=64, settings={"made": 6, "shown": 6}),
)  # fmt: skip
SHORT = (
    Shown("confusion", "Classes.", ("Accuracy of each class",), images=8),
    Shown("eigen_cam", "Maps.", ("EigenCAM",), images=8, settings={"shown": 2}),
)


def main(arguments: Sequence[str] | None = None) -> None:
    given = _parsed(arguments)
    models = given.models or list(MODELS)
    folder = given.out / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    parts = ["# Gallery\n", MADE, _beginning(models)]
    made: list[Path] = []
    for one in SHORT if given.short else ALL:
        first, *others = fitting = [model for model in models if _fits(one, model, given.data)]
        options = {"compare": others, "run": given.run, "quiet": given.short}
        (finding,) = analyze(first, given.data, **_options(one), **options)
        paths = list(_copied(one, finding, folder, given.run))
        made += paths
        parts += [f"## {finding.title}\n", f"{one.text}\n", _command(one, fitting)]
        parts += [f"![{finding.title}]({path.relative_to(given.out).as_posix()})\n" for path in paths]
    size = sum(path.stat().st_size for path in made)
    if size > LARGEST:
        raise SystemExit(f"the pictures take {size:,} bytes, more than {LARGEST:,}")
    for path in set(folder.glob("*.svg")) - set(made):  # of a gallery before
        path.unlink()
    (given.out / "gallery.md").write_text("\n".join(parts))
    print(f"{len(made)} pictures, {size:,} bytes, in {folder}")


def _options(one: Shown) -> dict[str, Any]:
    return {
        "what": {"name": one.name, **one.settings},
        "on": list(one.on),
        "threat": THREAT,
        "images": one.images,
    }


def _fits(one: Shown, model: str, data: str) -> bool:
    """A ResNet has no attention to look at."""
    try:
        analyze(model, data, **_options(one), quiet=True, plan_only=True)
    except rv.UserError:
        return False
    return True


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="the first is compared with the others")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--run", type=Path, default=Path("runs/gallery"))
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--short", action="store_true", help="two analyses of a few images")
    return parser.parse_args(arguments)


def _beginning(models: Sequence[str]) -> str:
    names = ", ".join(f"`{model}`" for model in models)
    return (
        f"Pictures of every kind, of {names} on images of the CIFAR-10 test set, Linf 8/255: 256 images, 64 where an "
        "analysis attacks them. Bands and whiskers are 95 % intervals unless a note says otherwise. How to read them "
        "is in [Analyzing](analyzing.md), what they show in [What is seen inside](inside.md). Whole reports are in the "
        "[gallery of pages](gallery-pages.md).\n"
    )


def _command(one: Shown, models: Sequence[str]) -> str:
    words = ["robustvit analyze", models[0], "--data cifar10 --eps 8/255 --what", one.name]
    words += [f"--compare {other}" for other in models[1:]]
    words += [f"--on {kind}" for kind in one.on] if one.on != ("clean",) else []
    words += [f"--images {one.images}"] if one.images != 256 else []
    words += [f"-o {one.name}.{key}={value}" for key, value in one.settings.items()]
    return f"```bash\n{' '.join(words)} --run runs/gallery\n```\n"


def _copied(one: Shown, finding: Finding, folder: Path, run: Path) -> Iterator[Path]:
    made = run / "figures-of-the-gallery" / one.name
    shutil.rmtree(made, ignore_errors=True)
    write_figures(made, finding)
    wanted = tuple(_words(begin) for begin in one.figures)
    for path in sorted((made / FIGURES).glob("*.svg")):
        if path.name.partition("-")[2].startswith(wanted):
            target = folder / f"{one.name.replace('_', '-')}-{path.name}"
            shutil.copyfile(path, target)
            yield target


def _words(title: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower()).replace("--", "-").strip("-")


if __name__ == "__main__":
    main()
