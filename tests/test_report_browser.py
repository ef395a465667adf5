"""The report in a real browser: it can be read, complains of nothing and asks nothing of the outside."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from robustvit.core.finding import write_finding
from robustvit.reporting import report
from test_report import Page, keep_examples, make_run, metrics_rows, result
from test_report_figures import noise_finding

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium to open the page in")

QUIETLY = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND"


def opened(page: Path) -> tuple[str, list[str]]:
    """The document as the browser has it, with its complaints and the addresses that the page asked for."""
    log = page.with_suffix(".netlog")
    options = (*QUIETLY, OFFLINE, f"--user-data-dir={page.parent / 'profile'}", f"--log-net-log={log}")
    done = subprocess.run(
        ["chromium", *options, "--enable-logging=stderr", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        check=True,
    )
    events = json.loads(log.read_text())["events"]
    asked = [event["params"] for event in events if "initiator" in event.get("params", {})]
    outside = [params["url"] for params in asked if params["initiator"] != "not an origin"]  # that is the browser's own
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line] + outside


def test_a_browser_reads_the_table_without_complaint(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, rows=metrics_rows(), evaluation=result()) for name in ("one", "two")]
    keep_examples(runs[0], 8 / 255)
    write_finding(runs[0] / "analysis" / "a", noise_finding(2))
    text, complaints = opened(report(runs))
    assert not complaints
    page = Page(text)
    assert [row.split()[0] for row in page.rows[2:4]] == ["one", "two"]
    assert all("80.0 % 75.6 to 83.8" in row for row in page.rows[2:4])
    buttons = page.classed("button", "copy")
    assert buttons
    assert not any("hidden" in button for button in buttons)  # the page's script was allowed to run


def test_complaints_would_be_heard(tmp_path: Path) -> None:
    path = report([make_run(tmp_path / "run", evaluation=result())])
    spoilt = '<img src="http://outside.invalid/x.png"><script>console.error("a mistake")</script></body>'
    text = path.read_text().replace("</body>", spoilt)
    path.write_text(text.replace("Content-Security-Policy", "nothing"))
    mistake, asked = opened(path)[1]
    assert "a mistake" in mistake
    assert asked == "http://outside.invalid/x.png"
