"""Sweeps with several seeds: means, intervals over seeds, and differences paired by seed."""

import math

import numpy as np
import pytest
from scipy.stats import t

import robustvit as rv
from robustvit.core.result import Measure
from robustvit.training.sweep_finding import sweep_finding
from robustvit.training.sweep_grid import Point, sweep_from
from robustvit.training.sweep_seeds import difference_tables, grouped, seed_table

ROBUST = {  # by model and ratio, an accuracy for each seed
    ("vit", 0): (0.50, 0.54, 0.58),
    ("wrn", 0): (0.60, 0.62, 0.64),
    ("vit", 1): (0.60, 0.66, 0.69),
    ("wrn", 1): (0.61, 0.64, 0.64),
}


def runs(left_out: tuple = ()) -> list[tuple[Point, dict[str, Measure]]]:
    return [
        (Point({"seed": seed, "ratio": ratio, "model": model}), {"robust": Measure("robust", values[seed], (0.1, 0.9))})
        for seed in range(3)
        for (model, ratio), values in ROBUST.items()
        if (model, ratio, seed) not in left_out
    ]


def half_width(values) -> float:
    return t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))


def test_means_and_intervals_are_over_seeds():
    groups = grouped(runs())
    assert [group.point.settings for group in groups] == [{"ratio": ratio, "model": model} for model, ratio in ROBUST]
    mean = groups[0].mean()["robust"]
    assert mean.value == pytest.approx(0.54)
    low, high = mean.interval
    assert (high - low) / 2 == pytest.approx(half_width(ROBUST["vit", 0]))
    table = seed_table(groups)
    assert table.columns == ("ratio", "model", "robust", "95 % (robust)", "seeds")
    assert table.rows[0] == ("0", "vit", "54.0 %", f"{100 * low:.1f} % to {100 * high:.1f} %", "3")


def test_differences_are_paired_by_seed_and_compared_with_the_first_row():
    (table,) = difference_tables(grouped(runs()), "model")
    assert table.title == "robust, vit minus wrn in points, paired by seed"
    differences = {ratio: np.subtract(ROBUST["vit", ratio], ROBUST["wrn", ratio]) for ratio in (0, 1)}
    change = differences[1] - differences[0]
    for row, ratio in zip(table.rows, (0, 1), strict=True):
        low, high = np.array([-1, 1]) * half_width(differences[ratio]) + differences[ratio].mean()
        expected = (f"{100 * differences[ratio].mean():+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}")
        assert row[:3] == (str(ratio), *expected)
        assert row[-1] == "3"
    assert table.rows[0][3:5] == ("", "")
    low, high = np.array([-1, 1]) * half_width(change) + change.mean()
    assert table.rows[1][3:5] == (f"{100 * change.mean():+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}")


def test_what_is_missing_is_not_paired():
    (table,) = difference_tables(grouped(runs(left_out=(("wrn", 1, 2), ("vit", 1, 0)))), "model")
    assert [row[-1] for row in table.rows] == ["3", "1"]
    assert table.rows[1][1:3] == ("+2.0", "")  # seed 1 alone
    lost = tuple(("wrn", ratio, seed) for ratio in (0, 1) for seed in range(3))
    assert difference_tables(grouped(runs(left_out=lost)), "model") == ()
    assert difference_tables(grouped(runs()), None) == ()


def test_seeds_that_agree_have_no_interval_and_one_seed_has_that_over_images():
    same = [
        (Point({"seed": seed, "a": a}), {"clean": Measure("clean", 0.5, (0.4, 0.6))}) for seed in (0, 1) for a in "xy"
    ]
    assert [row[2] for row in seed_table(grouped(same)).rows] == ["", ""]
    alone = grouped(same[:2])
    assert [group.point.settings for group in alone] == [{"seed": 0, "a": "x"}, {"seed": 0, "a": "y"}]
    assert alone[0].mean()["clean"].interval == (0.4, 0.6)
    only_seeds = grouped([same[0], same[2]])
    assert [group.point.settings["seed"] for group in only_seeds] == [0, 1]


def test_the_finding_of_a_sweep_has_them(trained, digits, tmp_path):
    result = rv.evaluate(trained, digits, suite="fgsm", threat=rv.LpBall("inf", 0.1), images=20, quiet=True)
    sweep = sweep_from("digits/trades", ["seed=1,2", "epochs=1,2,3", "batch_size=16,32"])
    finding = sweep_finding(sweep, [(point, (result,)) for point in sweep.points()])
    assert "95 % intervals over seeds" in finding.caption
    assert [table.title.split(",")[0] for table in finding.tables] == ["digits-trades-sweep", "Means over seeds"]
    (chart,) = finding.charts
    assert chart.title == "Accuracy against epochs, means over seeds"
    assert [(line.name, line.xs) for line in chart.lines] == [(f"batch_size={n}", (1.0, 2.0, 3.0)) for n in (16, 32)]
    mix = sweep_from("sweeps/digits_mix_ratio", [])
    paired = sweep_finding(mix, [(point, (result,)) for point in mix.points()])
    assert len(mix.points()) == 30
    assert [table.title.split(" in ")[0] for table in paired.tables[2:]] == [
        f"{name}, digits/trades_generated minus digits/wrn_trades_generated" for name in ("clean", "robust")
    ]
    assert [row[:2] for row in paired.tables[3].rows] == [(ratio, "+0.0") for ratio in ("0", "0.2", "0.5", "0.8", "1")]
    assert [len(line.xs) for line in paired.charts[0].lines] == [5, 5]
