"""Several findings as one, and the figures of a finding as files."""

import re
import sys
import types
from xml.etree import ElementTree

import numpy as np
import pytest

from robustvit.core.figures import Chart, Heatmap, Line, Pictures, Table
from robustvit.core.finding import Finding, read_finding, write_finding
from robustvit.core.merging import merged, said
from robustvit.reporting.export import style, write_figures


def line(name, values=(0.5, 0.25)):
    return Line(name, tuple(range(len(values))), tuple(values))


def finding(seed=0, lines=("attention", "mlp"), **more):
    random = np.random.default_rng(seed)
    arrays = {"matrix": random.random((3, 3)), "pictures": random.random((2, 2, 3, 4, 4))}
    arrays["pictures"][:, 1] = 0.5  # the same in all
    parts = {
        "tables": (Table("Numbers", ("block", "value"), (("1", "50.0 %"),)),),
        "charts": (
            Chart("Accuracy", "block", tuple(map(line, lines)), in_percent=True, marks=((1.0, "half"),)),
            Heatmap("Similarity", (), (), array="matrix"),
        ),
        "pictures": (Pictures("Maps", "pictures", ("map", "image"), ("image 1", "image 2")),),
        **more,
    }
    return Finding("Lesions", f"Caption {seed}.", arrays=arrays, facts={"seed": seed}, **parts)


def test_one_finding_stays_as_it_is():
    only = finding()
    assert merged({"a": only}) is only


def test_models_share_charts_tables_and_pictures():
    both = {"a": finding(0), "b": finding(1)}
    whole = merged(both)
    chart, *maps = whole.charts
    assert [one.name for one in chart.lines] == ["attention, a", "mlp, a", "attention, b", "mlp, b"]
    assert chart.marks == ((1.0, "half"),)
    assert [one.title for one in maps] == ["Similarity: a", "Similarity: b"]
    values = [whole.arrays[one.array] for one in maps]
    np.testing.assert_array_equal(values[1], both["b"].arrays["matrix"])
    assert {one.limits for one in maps} == {(np.min(values), np.max(values))}
    (table,) = whole.tables
    assert table.columns == ("model", "block", "value")
    assert [row[0] for row in table.rows] == ["a", "b"]
    (pictures,) = whole.pictures
    assert pictures.columns == ("map, a", "map, b", "image")  # what is the same in all is shown once, where it was
    np.testing.assert_array_equal(whole.arrays[pictures.array][:, 1], both["b"].arrays["pictures"][:, 0])
    assert whole.caption == "a: Caption 0. b: Caption 1."
    assert whole.facts["cases"] == {"a": {"seed": 0}, "b": {"seed": 1}}


def test_a_merged_finding_is_written_and_read_back(tmp_path):
    whole = merged({"a": finding(0), "b / c": finding(1)})
    write_finding(tmp_path, whole)
    again = read_finding(tmp_path)
    assert again.charts == whole.charts
    assert sorted(again.arrays) == sorted(whole.arrays)
    assert len(whole.arrays) == 3  # two matrices and one set of pictures: none is there twice


def test_more_lines_than_colors_get_a_chart_for_each_name():
    whole = merged({name: finding(lines=("attention", "mlp", "block")) for name in "abc"})
    charts = [one for one in whole.charts if isinstance(one, Chart)]
    assert [one.title for one in charts] == ["Accuracy: attention", "Accuracy: mlp", "Accuracy: block"]
    assert all([one.name for one in chart.lines] == ["a", "b", "c"] for chart in charts)
    single = merged({name: finding(lines=("attention",)) for name in "abcdefgh"})
    assert [one.name for one in single.charts[0].lines] == list("abcdefgh")


def test_what_does_not_fit_stays_apart():
    other = finding(1, charts=(Chart("Accuracy", "depth", (line("attention"),), in_percent=True),))
    small = {**other.arrays, "pictures": np.zeros((2, 2, 3, 2, 2))}
    whole = merged({"a": finding(0), "b": Finding(**{**vars(other), "arrays": small})})
    assert [one.x_title for one in whole.charts if one.title == "Accuracy"] == ["block", "depth"]
    assert [one.title for one in whole.pictures] == ["Maps: a", "Maps: b"]


def test_every_figure_is_an_svg_file_of_its_own(tmp_path):
    paths = write_figures(tmp_path, merged({"a": finding(0), "b": finding(1)}))
    assert [path.name for path in paths] == [
        "01-accuracy.svg", "02-similarity-a.svg", "03-similarity-b.svg", "04-maps.svg",
    ]  # fmt: skip
    for path in paths:
        root = ElementTree.parse(path).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        text = path.read_text()
        assert "var(" not in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert paths[-1].read_text().count("<image ") == 2 * 3
    assert ".tone-1" in style()
    assert "#c2410c" in style()


def test_a_chart_without_values_makes_no_file(tmp_path):
    empty = finding(charts=(Chart("Nothing", "block", (Line("a", (0.0,), (None,)),)),), pictures=())
    assert write_figures(tmp_path, empty) == []


def test_figures_are_png_files_too_where_cairosvg_is_installed(tmp_path, monkeypatch):
    given = []
    fake = types.SimpleNamespace(svg2png=lambda bytestring, scale: given.append(bytestring) or b"png")
    monkeypatch.setitem(sys.modules, "cairosvg", fake)
    paths = write_figures(tmp_path, finding())
    assert [path.suffix for path in paths] == [".svg", ".png"] * 3
    assert paths[1].read_bytes() == b"png"
    assert given[0].decode() == paths[0].read_text()


@pytest.mark.parametrize("scale", ["sequential", "diverging"])
def test_maps_of_several_models_have_the_same_colors(scale):
    first, second = (Heatmap("m", (), (), values=((low, high),), scale=scale) for low, high in ((0.0, 1.0), (0.5, 3.0)))
    whole = merged({"a": finding(charts=(first,)), "b": finding(charts=(second,))})
    assert {one.limits for one in whole.charts} == {(0.0, 3.0) if scale == "sequential" else (-3.0, 3.0)}


def test_a_caption_says_once_what_all_models_have_in_common():
    captions = {
        "a": "10 images. Bands are 95 % wide. It has 3 blocks.",
        "b": "10 images. Bands are 95 % wide. No block.",
    }
    assert said(captions) == "10 images. Bands are 95 % wide. a: It has 3 blocks. b: No block."
    three = {**captions, "c": captions["b"]}
    assert said(three) == "10 images. Bands are 95 % wide. a: It has 3 blocks. b, c: No block."
    assert said({"a": "Same.", "b": "Same."}) == "Same."
    assert said({"a, x": "One.", "b, x": "One.", "a, y": "Two."}) == "a, x; b, x: One. a, y: Two."


def test_a_line_to_compare_with_is_drawn_once():
    def with_chance(values, lines):
        own = tuple(line(name, values) for name in lines)
        chance = Line("chance", (0.0, 1.0), (0.1, 0.1), is_reference=True)
        return finding(charts=(Chart("Accuracy", "block", (*own, chance)),))

    few = merged({"a": with_chance((0.5, 0.2), ["mlp"]), "b": with_chance((0.4, 0.3), ["mlp"])})
    assert [one.name for one in few.charts[0].lines] == ["a", "b", "chance"]
    several = ["attention", "mlp", "block"]
    many = merged({"a": with_chance((0.5, 0.2), several), "b": with_chance((0.4, 0.3), several)})
    assert [one.title for one in many.charts] == ["Accuracy: attention", "Accuracy: mlp", "Accuracy: block"]
    assert all([one.name for one in chart.lines] == ["a", "b", "chance"] for chart in many.charts)


def test_a_picture_that_some_models_share_is_shown_once():
    def with_image(seed, image):
        one = finding(seed)
        one.arrays["pictures"][:, 1] = image
        return one

    cases = {"a, clean": (0, 0.1), "b, clean": (1, 0.1), "a, pgd": (2, 0.2), "b, pgd": (3, 0.3)}
    whole = merged({name: with_image(*of) for name, of in cases.items()}, "model, images")
    assert whole.pictures[0].columns[4:] == ("image, clean", "image, a, pgd", "image, b, pgd")
    assert whole.arrays[whole.pictures[0].array][0, 4:, 0, 0, 0].tolist() == [0.1, 0.2, 0.3]


def test_long_names_of_pictures_take_several_lines(tmp_path):
    names = ("EigenCAM, vit_standard, pgd-10", "a" * 30), ("images 65711 and 90755", "image 2")
    pictures = Pictures("Maps", "maps", *names)
    whole = Finding("A", "b", pictures=(pictures,), arrays={"maps": np.zeros((2, 2, 3, 4, 4))})
    path = write_figures(tmp_path, whole)[0]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())
    assert texts[1:3] == ["EigenCAM,", "vit_standard,"]
    assert {"pgd-10", "images 65711 and", "90755", "image 2"} <= set(texts)
    assert any("…" in text for text in texts)  # what can't be wrapped
