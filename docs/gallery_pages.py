"""Writes gallery-pages.md and its screenshots from models of the zoo: make gallery. Minutes; killed, it goes on.

Needs chromium. `--made` takes screenshots of pages that are there, `--text` writes the text alone.
"""

import argparse
import io
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

HERE = Path(__file__).parent
PAGE = "gallery-pages.md"
PICTURES = Path("images") / "pages"
MADE = "<!-- made by docs/gallery_pages.py: make gallery -->\n"
WIDTH = 1200
COLORS = 256
FRAME = "#aaaaaa"
LARGEST = 150_000
"""Bytes of a screenshot."""
PATIENCE = 600_000
"""Milliseconds that an attack in the playground may take."""
PLAYED = 30
"""The photograph that is attacked in the playground."""


@dataclass(frozen=True)
class Page:
    """A page, the command that makes it, and what has to be there before."""

    name: str
    title: str
    text: str
    command: str
    made: str = ""
    """Where the command writes it; nothing: it serves it."""
    height: int = 1500
    before: tuple[str, ...] = ()


ZOO = ("speedrun", "vit_standard", "resnet_standard")
ON = "--data cifar10_sample --eps 8/255"
EVALUATED = tuple(f"robustvit evaluate zoo:{name} {ON} --suite pgd-20 --run runs/{name}" for name in ZOO)
GENERATED = ("robustvit train digits/edm", "robustvit generate runs/digits-edm --images 5000 --out generated/digits")
BEGINNING = """\
What the commands write as HTML, or show in a browser, each with its command and what it needs before. The pages are
single files that need no network. Models are those of the [zoo](zoo.md) on the 100 photographs of the package, where
nothing else is said. What an analysis shows on a report is in the [gallery of analyses](gallery.md).
"""

ALL = (
    Page("report", "Report of a run", "How robust is this model, and can the number be believed? How to read it is in "
         "[Reading a report](reading-a-report.md).", "robustvit report runs/speedrun --out report.html", "report.html",
         before=EVALUATED[:1]),
    Page("comparison", "Comparison", "Which of these models is better, and is the difference chance?",
         "robustvit report runs/speedrun runs/vit_standard runs/resnet_standard --out comparison.html",
         "comparison.html", before=EVALUATED),
    Page("card", "Robustness card", "All evaluations of a preset on one page, which is also a check in CI. Here a "
         "model that was trained as usual and a robust one, on 10 photographs: [Robustness card](card.md).",
         f"robustvit card zoo:vit_standard zoo:speedrun {ON} --images 10 --run runs/card",
         "runs/card/card.html"),
    Page("leaderboard", "Leaderboard", "Who is ahead, next to RobustBench's published models? The results are those of "
         "the zoo, AutoAttack on 1,000 test images: [Leaderboard](leaderboard.md).",
         "robustvit leaderboard zoo:speedrun zoo:vit_standard zoo:resnet_standard --out leaderboard.html",
         "leaderboard.html"),
    Page("sweep", "Sweep", "Which setting is best, and is it more than chance? Here six short trainings on the "
         "handwritten digits: [Sweeps](training.md#sweeps).", "robustvit sweep digits/standard -o model.patch_size=2,4 "
         "-o seed=0,1,2 -o epochs=4 -o threat.eps=0.03 --suite pgd-10 --images 200 --run runs/patches",
         "runs/patches/report.html"),
    Page("quality", "Quality of generated images", "Are generated images any good? [Generating "
         "images](synthesis.md#quality).",
         "robustvit quality generated/digits --reference digits",
         "generated/digits/quality.html", 1800, before=GENERATED),
    Page("playground", "Playground", "What does an attack do to this picture? [Playground](playground.md).",
         "robustvit playground zoo:speedrun zoo:vit_standard"),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="which pages; default: all")
    parser.add_argument("--folder", type=Path, default=Path("runs/gallery-pages"), help="where the commands are run")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--made", action="store_true", help="run no command")
    parser.add_argument("--text", action="store_true", help="no screenshots")
    given = parser.parse_args(arguments)
    wanted = [one for one in ALL if not given.names or one.name in given.names]
    if not given.text:
        (given.out / PICTURES).mkdir(parents=True, exist_ok=True)
        given.folder.mkdir(parents=True, exist_ok=True)
        with browser() as opened:
            for one in wanted:
                if one.made and not given.made:
                    make(one, given.folder)
                picture = given.out / PICTURES / f"{one.name}.png"
                picture.write_bytes(compressed(_shown(one, given.folder, opened), one.name))
                print(f"{picture}: {picture.stat().st_size:,} bytes")
    (given.out / PAGE).write_text(page())


def page() -> str:
    """The text of the gallery."""
    parts = ["# Gallery of pages\n", MADE, BEGINNING]
    for one in ALL:
        commands = "\n".join(("```bash", *one.before, one.command, "```")) + "\n"
        parts += [f"## {one.title}\n", f"{one.text}\n", commands]
        parts.append(f"![{one.title}]({(PICTURES / one.name).as_posix()}.png)\n")
    return "\n".join(parts)


def compressed(png: bytes, name: str) -> bytes:
    """With a frame, and a palette, which keeps what a page consists of: text, lines and few colors, also rare ones."""
    file, picture = io.BytesIO(), Image.open(io.BytesIO(png)).convert("RGB")
    ImageDraw.Draw(picture).rectangle((0, 0, picture.width - 1, picture.height - 1), outline=FRAME)
    picture.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    if len(file.getvalue()) > LARGEST:
        raise SystemExit(f"{name}: {len(file.getvalue()):,} bytes, more than {LARGEST:,}; show less of the page")
    return file.getvalue()


@contextmanager
def browser() -> Iterator[Any]:
    """Opens an address in a window of so many pixels; it is closed with the others."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        raise SystemExit("there is no chromium to take screenshots with")
    with sync_playwright() as started:
        options = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
        opened = started.chromium.launch(executable_path=path, args=options)

        def tab(address: str, height: int) -> Any:
            made = opened.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="light")
            made.set_default_timeout(PATIENCE)
            made.goto(address)
            return made

        yield tab
        opened.close()


def make(one: Page, folder: Path) -> None:
    """Its commands, one after the other; each goes on from what is there."""
    for command in (*one.before, one.command):
        subprocess.run(_words(command), cwd=folder, check=True)


def _shown(one: Page, folder: Path, tab: Callable[[str, int], Any]) -> bytes:
    if one.made:
        opened = tab((folder / one.made).resolve().as_uri(), one.height)
        end = opened.evaluate("document.body.getBoundingClientRect().bottom")
        return bytes(opened.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": min(one.height, int(end))}))
    words = [*_words(one.command), "--no-browser", "--port", "0"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            return played(tab(server.stdout.readline().strip(), one.height))
        finally:
            server.terminate()


def played(opened: Any) -> bytes:
    """The playground after an attack on two models."""
    opened.get_by_label(f"photograph {PLAYED}", exact=True).click()
    opened.locator("#status", has_text="Ready.").wait_for()
    opened.locator("#second").select_option(index=2)
    opened.locator("#go").click()
    opened.locator("#status", has_text="Done.").wait_for()
    return bytes(opened.screenshot(full_page=True))


def _words(command: str) -> list[str]:
    return [sys.executable, "-m", *shlex.split(command)]


if __name__ == "__main__":
    main()
