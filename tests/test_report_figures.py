"""How the report draws charts and heat maps: numbers are where the values are, and pictures share one budget."""

import base64
import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from robustvit.core.figures import Chart, Fit, Heatmap, Line, Pictures
from robustvit.core.finding import Finding, write_finding
from robustvit.core.result import ConditionResult, Measure
from robustvit.reporting import findings, pictures, report
from robustvit.reporting.axes import Scale, log_ticks, padded_scale
from robustvit.reporting.colors import color_indices, color_table, ink_on
from robustvit.reporting.drawing import drawn
from robustvit.reporting.heatmaps import heatmap, limits_of
from test_report import Page, keep_examples, make_run, result


def lightness(colors: np.ndarray) -> np.ndarray:
    """L* of CIELAB, another measure than the one that the tables are made by."""
    levels = colors / 255
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    y = linear @ np.array([0.2126, 0.7152, 0.0722])
    return 116 * np.where(y > 0.008856, np.cbrt(y), 7.787 * y + 16 / 116) - 16


def test_sequential_colors_darken_evenly():
    table = color_table("sequential")
    assert table.shape == (256, 3)
    steps = -np.diff(lightness(table)[::8])  # neighbors differ by less than bytes can tell
    assert (steps > 0).all()
    assert steps.max() < 1.5 * steps.min()
    assert len(np.unique(table, axis=0)) > 240


def test_diverging_colors_are_as_light_on_both_sides_and_white_in_the_middle():
    table = color_table("diverging")
    light = lightness(table)
    assert np.abs(light - light[::-1]).max() < 6
    assert (np.diff(light[:128]) > 0).all()
    assert np.ptp(table[127].astype(int)) <= 3
    assert light[127] > 95
    assert table[0, 2] > table[0, 0]  # blue below the center, orange above
    assert table[-1, 0] > table[-1, 2]


def test_numbers_in_cells_can_be_read():
    for scale in ("sequential", "diverging"):
        for color in color_table(scale):
            ink = np.array([0.0] * 3 if ink_on(color) == "black" else [255.0] * 3)
            light, dark = sorted(((lightness(np.stack([color, ink])) + 16) / 116) ** 3, reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 3.7


def test_values_outside_of_the_limits_have_the_last_colors():
    assert color_indices(np.array([-5.0, 0.0, 0.5, 1.0, 9.0]), (0, 1)).tolist() == [0, 0, 128, 255, 255]


def heat(values: Any, **more: Any) -> Heatmap:
    rows, columns = len(values), len(values[0])
    names = [tuple(f"{word} {number}" for number in range(count)) for word, count in (("row", rows), ("col", columns))]
    return Heatmap("map", *names, tuple(map(tuple, values)), **more)


def cells(text: str) -> list[tuple[str, str, str]]:
    """Title, color and number of each."""
    found = re.findall(
        r'<g><title>([^<]*)</title><rect [^>]*?(?:fill="([^"]*)"|class="empty")/>(?:<text[^>]*>([^<]*))?', text
    )
    return [(title, color, number) for title, color, number in found]


def test_a_cell_has_its_number_its_color_and_its_title():
    shown = cells(drawn(heat([[0.0, 0.5], [1.0, None]])))
    table = color_table("sequential")
    colors = ["#" + "".join(f"{level:02x}" for level in table[place]) for place in (0, 128, 255)]
    assert shown == [
        ("row 0, col 0: 0 %", colors[0], "0.0"),
        ("row 0, col 1: 50 %", colors[1], "50.0"),
        ("row 1, col 0: 100 %", colors[2], "100.0"),
        ("row 1, col 1: none", "", "-"),
    ]


def test_narrow_cells_have_shorter_numbers():
    numbers = [
        number for *_, number in cells(drawn(heat(np.full((1, 12), 0.256).tolist(), row_title="a long title here")))
    ]
    assert numbers == ["26"] * 12


@pytest.mark.parametrize(
    ("values", "more", "limits"),
    [
        ([[0.2, 0.4]], {}, (0.2, 0.4)),
        ([[0.2, 0.4]], {"limits": (0.0, 1.0)}, (0.0, 1.0)),
        ([[-0.1, 0.3]], {"scale": "diverging"}, (-0.3, 0.3)),
        ([[-0.1, 0.3]], {"scale": "diverging", "center": 0.5}, (-0.1, 1.1)),
        ([[0.2, None]], {}, (0.0, 1.0)),
        ([[7.0, 7.0]], {"in_percent": False}, (6.5, 7.5)),
    ],
)
def test_limits_are_those_of_the_values_unless_they_are_given(values, more, limits):
    chart = heat(values, **more)
    assert limits_of(chart, np.array(values, float)) == pytest.approx(limits)


def picture(text: str) -> np.ndarray:
    data = re.search(r'<image [^>]*href="data:image/png;base64,([^"]*)"', text)[1]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_a_large_matrix_is_one_picture_of_the_same_colors():
    matrix = np.random.default_rng(0).random((21, 20))
    assert len(cells(drawn(heat(matrix[:20].tolist())))) == 400
    text = drawn(heat(matrix.tolist()))
    assert not cells(text)
    expected = color_table("sequential")[color_indices(matrix, (matrix.min(), matrix.max()))]
    assert np.array_equal(picture(text), expected)


def test_a_matrix_of_a_finding_may_be_larger_than_a_picture_and_have_gaps():
    matrix = np.repeat(np.linspace(-1, 1, 900)[None], 2, axis=0)
    matrix[1] = np.nan
    chart = Heatmap("big", (), (), array="m", scale="diverging", in_percent=False)
    assert picture(drawn(chart, {"m": matrix[:1]})).shape == (1, 400, 3)
    small = picture(drawn(chart, {"m": matrix[:, ::3]}))
    assert (small[1] == 128).all()
    assert small[0, 0].tolist() == color_table("diverging")[0].tolist()


def test_a_heat_map_without_a_number_says_so():
    assert "no finite values" in drawn(heat([[None, float("nan")]]))


@pytest.mark.parametrize(("low", "high"), [(5e6, 1e9), (0.11, 0.31), (1, 1e12), (1, 1.01), (3e-7, 4e-3), (1, 10)])
def test_logarithmic_ticks_are_round_few_and_inside(low, high):
    found = log_ticks(low, high)
    assert 2 <= len(found) <= 7
    assert all(low * (1 - 1e-9) <= tick <= high * (1 + 1e-9) for tick in found)
    assert found == sorted(set(found))
    assert all(len(f"{tick:.10g}".strip("0.").replace(".", "")) <= 4 or "e" in f"{tick:g}" for tick in found)


def test_equal_factors_are_equal_distances_on_a_logarithmic_axis():
    scale = padded_scale(1.0, 100.0, 0.0, 400.0, is_log=True)
    assert scale(10) - scale(1) == pytest.approx(scale(100) - scale(10))
    assert 0 < scale(1) < scale(100) < 400
    assert scale(0.0) == pytest.approx(0.0)  # a whisker that reaches 0 ends at the frame
    linear = Scale(0.0, 10.0, 0.0, 100.0, ())
    assert linear(5) == 50


POINTS = Line(
    "ViT", (1e6, 1e8), (0.4, 0.1), ((0.3, 0.5), (0.05, 0.2)), labels=("Ti", "B"), fit=Fit(-0.301, 1.4, (-0.4, -0.2))
)  # fmt: skip
SCATTER = Chart(
    "s", "parameters", (POINTS, Line("RN", (1e7,), (0.3,), labels=("R50",))), in_percent=True, kind="scatter",
    x_log=True, y_log=True, y_title="error",
)  # fmt: skip


def circles(text: str) -> list[tuple[float, float, float]]:
    return [tuple(map(float, one)) for one in re.findall(r'<circle cx="([^"]*)" cy="([^"]*)" r="([^"]*)"', text)]


def test_a_large_marker_at_0_leaves_the_name_of_its_row_free():
    line = Line("a", (0.0,), (0.0,), sizes=(5.0,))
    text = drawn(Chart("t", "accuracy", (line,), True, "dots", ("some row",)))
    ((left, _, radius),) = circles(text)
    end = float(re.search(r'x="([^"]*)" y="[^"]*" text-anchor="end">some row', text)[1])
    assert radius == 12
    assert end < left - radius


def test_points_of_a_scatter_plot_lie_where_their_values_are():
    (x1, y1, _), (x2, y2, _), (x3, y3, _) = circles(drawn(SCATTER))
    assert x3 == pytest.approx((x1 + x2) / 2, abs=0.11)  # 1e7 is halfway between 1e6 and 1e8
    assert (y3 - y1) / (y2 - y1) == pytest.approx(np.log(0.4 / 0.3) / np.log(4), abs=0.01)
    text = drawn(SCATTER)
    assert all(f">{label}</text>" in text for label in ("Ti", "B", "R50", "error"))
    assert "slope -0.30 (-0.40 to -0.20)" in text
    assert "<title>ViT, Ti, 1M, 40 %</title>" in text


def test_a_fitted_line_goes_through_points_that_lie_on_it():
    fit = Fit(float(np.log10(0.25) / 2), float(np.log10(0.4) - 6 * np.log10(0.25) / 2))
    text = drawn(replace(SCATTER, lines=(replace(POINTS, fit=fit),)))
    ends = [float(one) for one in re.findall(r"[\d.]+", re.search(r'class="fit [^"]*" d="([^"]*)"', text)[1])]
    (x1, y1, _), (x2, y2, _) = circles(text)
    assert ends == pytest.approx([x1, y1, x2, y2], abs=0.11)


def test_areas_of_markers_are_in_proportion_to_sizes():
    line = replace(POINTS, fit=None, sizes=(25.0, 100.0))
    (_, _, small), (_, _, large) = circles(drawn(replace(SCATTER, lines=(line,))))
    assert large == pytest.approx(2 * small, abs=0.11)


def test_names_of_points_that_would_overlap_are_left_out():
    many = Line("g", (1.0,) * 12, (0.5,) * 12, labels=tuple(f"name {number}" for number in range(12)))
    text = drawn(Chart("c", "x", (many,), kind="scatter"))
    assert 1 <= text.count('class="name') <= 4
    assert text.count("<title>") == 12


def test_a_place_without_size_has_no_marker_but_a_line():
    front = Line("front", (1e6, 1e8), (0.4, 0.1), sizes=(0.0, 0.0), joined=True)
    text = drawn(replace(SCATTER, lines=(replace(POINTS, fit=None), front)))
    assert len(circles(text)) == len(POINTS.xs)
    assert len(re.findall(r'class="fit ', text)) == 1


def test_names_of_points_lie_outside_of_whiskers():
    line = Line("l", (1.0, 2.0), (1.0, 2.0), ((0.5, 1.5), (1.5, 2.5)), labels=("one", "two"),
                x_intervals=((0.5, 1.5), (1.5, 2.5)))  # fmt: skip
    text = drawn(Chart("c", "x", (line,), kind="scatter"))
    for (x, y, _), label in zip(circles(text), line.labels, strict=True):
        left, base, anchor = re.search(rf'x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">{label}<', text).groups()
        assert anchor == "start"
        assert float(left) > x
        assert not y - 1 < float(base) < y + 9, "above or below the horizontal whisker"


def test_a_scatter_plot_of_one_point_or_none_is_drawn_or_says_so():
    one = Line("g", (3.0,), (0.5,))
    assert len(circles(drawn(Chart("c", "x", (one,), kind="scatter")))) == 1
    assert "no finite values" in drawn(Chart("c", "x", (replace(one, ys=(None,)),), kind="scatter"))


def test_a_range_is_drawn_around_the_interval_and_fits_into_the_chart():
    line = Line("l", (1.0, 2.0), (1.0, 2.0), ((0.9, 1.1), (1.8, 2.2)), ranges=((0.5, 3.0), (1.0, 7.0)))
    text = drawn(Chart("c", "x", (line,)))
    ranged = [float(y) for y in re.findall(r" ([\d.]+)", re.search(r'class="range [^"]*" d="([^"]*)"', text)[1])]
    banded = [float(y) for y in re.findall(r" ([\d.]+)", re.search(r'class="band [^"]*" d="([^"]*)"', text)[1])]
    assert min(ranged) < min(banded)
    assert max(ranged) > max(banded)
    assert min(ranged) >= 20
    dots = drawn(Chart("c", "", (replace(line, xs=(0.0, 1.0)),), kind="dots", rows=("a", "b")))
    assert len(re.findall(r'<path class="range"', dots)) == 2


def corruptions(accuracy: float, **changes: Any) -> Any:
    conditions = tuple(
        ConditionResult(name, ("weather",), count, accuracy, (accuracy - 0.1, accuracy + 0.1))
        for name, count in (("fog/1", 100), ("snow/1", 80))
    )
    given = {
        "kind": "fog", "title": "fog", "threat": None, "stages": (), "conditions": conditions,
        "measures": (
            Measure("mean_accuracy", accuracy, (0.2, 0.7), "over two", kind="accuracy"),
            Measure("fog_accuracy", 0.125, is_detail=True, kind="accuracy"),
            Measure("mCE", 55.5),
        ),
        "settings": {"name": "fog", "severities": [1]}, "notes": ("Images were saved as JPEG.",),
    }  # fmt: skip
    return result(**(given | changes))


def test_results_of_one_evaluator_are_compared_in_one_table(tmp_path):
    runs = [make_run(tmp_path / name, evaluation=corruptions(value)) for name, value in (("one", 0.5), ("two", 0.25))]
    page = Page(report(runs))
    assert page.row("Measure").split() == ["Measure", "one", "two"]
    assert (
        " ".join(page.row("mean accuracy").split()) == "mean accuracy 50.0 % 20.0 to 70.0 25.0 % 20.0 to 70.0 over two"
    )
    assert page.row("mCE").split() == ["mCE", "55.5", "55.5"]
    assert page.rows.index(page.row("mCE")) < page.rows.index(page.row("fog accuracy", "12.5 %"))
    assert "1 further measure" in page.text
    assert page.row("images per condition").split()[-6:] == ["80", "to", "100", "80", "to", "100"]
    assert " ".join(page.row("snow/1").split()) == "snow/1 50.0 % 40.0 to 60.0 of 80 25.0 % 15.0 to 35.0 of 80"
    assert "Images were saved as JPEG." in page.text
    assert "severities: [1]" in page.text
    assert page.text.count("Shifts, corruptions and other conditions") == 1
    assert len(circles(str(tmp_path.joinpath("report.html").read_text()))) == 4  # a dot for each run and condition


@pytest.mark.parametrize("change", [{"settings": {"severities": [2]}}, {"data_sha256": "other"}, {"seed": 1}])
def test_only_results_of_the_same_settings_and_images_share_a_table(tmp_path, change):
    runs = [
        make_run(tmp_path / "one", evaluation=corruptions(0.5)),
        make_run(tmp_path / "two", evaluation=corruptions(0.5, **change)),
    ]
    rows = [row for row in Page(report(runs)).rows if "mean accuracy" in row]
    assert len(rows) == (1 if "seed" in change else 2)


def test_heat_maps_of_two_runs_have_the_same_colors_for_the_same_values(tmp_path):
    for name, values in (("one", [[0.0, 0.5]]), ("two", [[0.5, 1.0]])):
        make_run(tmp_path / name, evaluation=corruptions(0.5, figures=(heat(values),)))
    shown = cells(report([tmp_path / "one", tmp_path / "two"]).read_text())
    assert [number for *_, number in shown] == ["0.0", "50.0", "50.0", "100.0"]
    assert shown[1][1] == shown[2][1]
    assert len({color for _, color, _ in shown}) == 3


def test_text_of_figures_stays_text(tmp_path):
    evil = '<script>alert("x")</script>'
    figures = (
        Heatmap(evil, (evil,), (evil,), ((0.5,),), evil, evil, note=evil),
        Chart(evil, evil, (Line(evil, (1.0,), (0.5,), labels=(evil,)),), kind="scatter", y_title=evil, note=evil),
    )
    run = make_run(tmp_path / "run", evaluation=corruptions(0.5, figures=figures, notes=(evil,), settings={"x": evil}))
    page = Page(report([run]))
    assert [tag for tag, _ in page.tags].count("script") == 1


def noise_finding(rows: int) -> Finding:
    images = np.random.default_rng(0).random((rows, 2, 3, 32, 32))
    names = tuple(map(str, range(rows)))
    matrix = np.random.default_rng(0).random((30, 30))
    charts = (Heatmap("matrix", (), (), array="m"),)
    return Finding(
        "f", "", charts=charts, pictures=(Pictures("Maps", "p", ("a", "b"), names),), arrays={"p": images, "m": matrix}
    )


def test_pictures_of_a_page_share_one_budget(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", evaluation=result())
    keep_examples(run, 8 / 255)
    write_finding(run / "analysis" / "a", noise_finding(4))
    write_finding(run / "analysis" / "b", noise_finding(4))
    whole = report([run]).read_text()
    used = sum(map(len, re.findall(r'(?:src|href)="(data:image[^"]*)"', whole)))
    assert "left out" not in whole
    assert len(re.findall('alt="a, ', whole)) == 8
    budget = pictures.Budget
    monkeypatch.setattr("robustvit.reporting.page.Budget", lambda: budget(used // 2))
    half = report([run]).read_text()
    assert sum(map(len, re.findall(r'(?:src|href)="(data:image[^"]*)"', half))) <= used // 2
    shown = len(re.findall('alt="a, ', half))
    assert 0 < shown < 8
    assert "left out to keep the page small" in half
    monkeypatch.setattr("robustvit.reporting.page.Budget", lambda: budget(0))
    none = Page(report([run]))
    assert "Left out to keep the page small; its numbers are in arrays.npz" in none.text
    assert "Maps: all pictures are left out" in none.text
    assert not [tag for tag, _ in none.tags if tag in ("img", "image")]


def test_more_rows_of_pictures_than_a_finding_may_show_are_counted(tmp_path):
    run = make_run(tmp_path / "run", evaluation=result())
    write_finding(run / "analysis" / "a", noise_finding(findings.MOST_PICTURES + 3))
    assert "Maps: 3 more rows are left out" in Page(report([run])).text


@pytest.mark.parametrize(("classes", "has_cells"), [(20, True), (21, False)])
def test_a_matrix_of_twenty_classes_is_drawn_cell_by_cell(classes, has_cells):
    names = tuple(f"class {number}" for number in range(classes))
    svg = str(heatmap(Heatmap("Confusion", names, names, array="confusion"), np.eye(classes)))
    assert (svg.count("<image") == 0) == has_cells
    assert (svg.count("<rect") >= classes**2) == has_cells
    (width,) = re.findall(r'viewBox="0 0 (\d+)', svg)
    assert (int(width) > 444) == has_cells  # cells with numbers take the width of the page
