"""The playground and the leaderboard in a real browser: dropped pictures, two tabs, a server that ends."""

import base64
import io
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to open the page in")

import robustvit as rv  # noqa: E402
from robustvit.evaluation.picture_model import PictureModel  # noqa: E402
from robustvit.playground.server import Playground  # noqa: E402
from robustvit.reporting import leaderboard  # noqa: E402
from test_leaderboard import judged, robust_images  # noqa: E402
from test_one_picture import Linear  # noqa: E402
from test_playground import Gate  # noqa: E402
from test_report import make_run  # noqa: E402

PATIENCE = 60_000
DROP = """(file) => {
  const bytes = Uint8Array.from(atob(file.content), letter => letter.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], file.name));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true }));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        options = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
        opened = started.chromium.launch(executable_path=CHROMIUM, args=options)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A tab whose complaints fail the test."""
    opened, complaints = browser.new_page(), []
    opened.set_default_timeout(PATIENCE)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    opened.close()
    assert not complaints


def serving(module: Any) -> Playground:
    server = Playground([PictureModel(rv.resolve_model(module))], ["the model"])
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


@pytest.fixture(scope="module")
def server() -> Iterator[Playground]:
    started = serving(Linear())
    yield started
    started.stop()
    started.server_close()


def drop(page: Any, name: str, content: bytes) -> None:
    page.evaluate(DROP, {"name": name, "content": base64.b64encode(content).decode()})


def status(page: Any, text: str) -> None:
    playwright.expect(page.locator("#status")).to_contain_text(text, timeout=PATIENCE)


def picture(seed: int = 0, side: int = 32) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (side, side, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def first_class(page: Any, when: str) -> str:
    return str(page.locator(f".{when} div span").first.inner_text())


def test_a_dropped_picture_is_attacked_and_its_class_changes(page: Any, server: Playground) -> None:
    page.goto(server.address)
    drop(page, "noise.png", picture())
    status(page, "Ready.")
    before = first_class(page, "before")
    page.locator("#eps").fill("16")
    page.click("#go")
    status(page, "Done.")
    assert first_class(page, "before") == before
    assert first_class(page, "after") != before
    assert "fooled" in page.inner_text(".verdict")
    assert page.inner_text(".result pre") == (
        "robustvit attack noise.png --model 'the model' --attack pgd-20 --norm inf --eps 16/255"
    )
    sizes = page.eval_on_selector_all(".three img", "images => images.map(image => image.naturalWidth)")
    assert sizes == [32, 32, 32]


def test_a_broken_picture_is_said_to_be_one_and_the_next_works(page: Any, server: Playground) -> None:
    page.goto(server.address)
    drop(page, "broken.png", b"\x89PNG nothing")
    status(page, "broken.png: not a readable picture")
    page.locator("#samples button").nth(30).click()
    status(page, "Ready.")


def test_a_second_tab_waits_for_the_first_and_gets_its_turn_when_that_is_closed(browser: Any, page: Any) -> None:
    gate = Gate()
    gated = serving(gate)
    try:
        first = browser.new_page()
        first.goto(gated.address)
        first.locator("#samples button").nth(30).click()
        status(first, "Ready.")
        first.locator("#steps").fill("2000")
        first.locator("#eps").fill("0")
        first.click("#go")
        assert gate.reached.wait(PATIENCE / 1000)
        page.goto(gated.address)
        page.locator("#samples button").nth(3).click()
        status(page, "Waiting: 1 attack is before this one")
        first.close()
        gate.open.set()
        status(page, "Ready.")
        assert gate.passes < 2000
    finally:
        gate.open.set()
        gated.stop()
        gated.server_close()


def test_a_server_that_ends_in_the_middle_leaves_a_sentence(page: Any) -> None:
    gate = Gate()
    gated = serving(gate)
    page.goto(gated.address)
    page.locator("#samples button").nth(30).click()
    status(page, "Ready.")
    page.locator("#eps").fill("0")
    page.click("#go")
    assert gate.reached.wait(PATIENCE / 1000)
    threading.Thread(target=gated.stop, daemon=True).start()
    assert gated.stopping.wait(PATIENCE / 1000)
    gate.open.set()
    status(page, "the server was stopped")
    gated.server_close()
    page.click("#go")
    status(page, "The server has stopped; start robustvit playground again")


def test_an_answer_that_is_cut_off_is_no_success(
    page: Any, server: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the server is killed: its last messages never come."""
    monkeypatch.setattr("robustvit.playground.server.run", lambda *asked: None)
    page.goto(server.address)
    page.locator("#samples button").nth(30).click()
    status(page, "The server has stopped")


def test_a_leaderboard_is_sorted_and_filtered(page: Any, tmp_path: Path) -> None:
    for name, count in (("strong", 8000), ("weak", 100)):
        make_run(tmp_path / name, evaluation=judged(name, robust_images(count)))
    page.goto(leaderboard(tmp_path, tmp_path / "page.html").page.as_uri())
    shown = page.locator("table.board tbody tr:visible")
    names = shown.locator("th")
    assert names.nth(0).get_attribute("data-value") == "strong"
    page.get_by_role("button", name="Robust").click()
    assert names.nth(0).get_attribute("data-value") == "Amini2024MeanSparse_S-WRN-70-16"  # 87.28 % in L2
    page.get_by_role("button", name="Robust").click()
    robust = shown.locator("td[data-label=Robust]")
    values = [value for value in robust.evaluate_all("cells => cells.map(cell => cell.dataset.value)") if value]
    assert values == sorted(values, key=float)
    page.locator("select[name=source]").select_option("here")
    assert shown.count() == 2
    page.locator("input[name=text]").fill("wea")
    assert shown.count() == 1
    assert "1 of " in page.inner_text("form output")
