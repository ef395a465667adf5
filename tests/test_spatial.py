"""The worst case over rotations and shifts: what the variants are, and that leaving early changes nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from robustvit.cli.table import print_results
from robustvit.core.errors import UserError
from robustvit.core.result_files import read_result
from robustvit.core.world import World
from robustvit.data import Cifar10Sample
from robustvit.evaluation import Accuracy, Condition, Spatial, evaluate
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.spatial import GRIDS, Grid, Moved, rotated


@pytest.fixture(scope="module")
def photographs():
    x, y = Cifar10Sample().open("test").take(torch.arange(0, 100, 5))
    return x.double() / 255, y


def moved(x, angle, shift):
    """One variant, by the warp itself."""
    return rotated(x, angle, shift)


@pytest.mark.parametrize(
    ("side", "settings", "expected"),
    [
        (224, {}, Grid(16, 9, 30, 31)),
        (384, {}, Grid(16, 9, 30, 31)),
        (32, {}, Grid(3, 9, 30, 31)),
        (28, {}, Grid(3, 9, 30, 31)),
        (8, {}, Grid(1, 9, 30, 31)),
        (3, {}, Grid(1, 9, 30, 31)),
        (32, {"shift": 16}, Grid(16, 9, 30, 31)),
        (224, {"grid": "engstrom"}, Grid(24, 5, 30, 31)),
        (32, {"grid": "engstrom"}, Grid(3, 5, 30, 31)),
        (224, {"grid": "foolbox"}, Grid(3, 5, 30, 5)),
        (224, {"grid": "foolbox", "angles": 31, "angle": 45}, Grid(3, 5, 45, 31)),
        (224, {"shift": 0}, Grid(0, 1, 30, 31)),
        (224, {"shifts": 1, "angle": "1/2"}, Grid(0, 1, 0.5, 31)),
        (224, {"angles": 1, "shifts": 3}, Grid(16, 3, 0, 1)),
    ],
)
def test_grids_follow_the_settings_and_the_size(side, settings, expected):
    assert Spatial(**settings).resolve_grid(side) == expected


def test_the_grid_of_the_paper_has_2511_transformations():
    grid = GRIDS["understanding"]
    angles, shifts = grid.list_angles(), grid.list_shifts()
    assert len(set(angles)) * len(set(shifts)) == 9 * 9 * 31 == 2511
    assert sorted(angles) == pytest.approx(np.linspace(-30, 30, 31))
    assert sorted(set(shifts)) == [(dy, dx) for dy in range(-16, 17, 4) for dx in range(-16, 17, 4)]
    assert angles[:3] == [-30, 30, -28]
    assert angles[-1] == 0
    assert set(shifts[:4]) == {(dy, dx) for dy in (-16, 16) for dx in (-16, 16)}, "the largest first"
    assert shifts[-1] == (0, 0)
    assert "2,511 variants" in str(grid)


@pytest.mark.parametrize("grid", [Grid(3, 9, 30, 2), Grid(2, 5, 20, 3), Grid(2.5, 4, 10, 2), Grid(0, 1, 30, 2)])
def test_windows_of_the_canvas_are_the_warp_itself(grid, photographs):
    x = photographs[0][:3]
    for angle in grid.list_angles():
        variants = list(Moved(grid, angle)(x, None))
        assert len(variants) == grid.shifts**2
        for shift, variant in zip(grid.list_shifts(), variants, strict=True):
            assert variant.shape == x.shape
            torch.testing.assert_close(variant, moved(x, angle, shift), rtol=0, atol=1e-12)


def test_single_precision_is_near_the_warp_in_double(photographs):
    x, _ = photographs
    for angle, shift in ((29.0, (3.0, -1.0)), (-7.0, (0.25, 2.75))):
        exact = moved(x, angle, shift)
        torch.testing.assert_close(moved(x.float(), angle, shift).double(), exact, rtol=0, atol=3e-5)


def test_no_rotation_and_no_shift_is_the_picture_itself(photographs):
    x = photographs[0][..., 1:28]  # in thirds of these sides numbers are rounded, in halves they aren't
    for pixels in (x, x.float()):
        (variant,) = Moved(Grid(0, 1, 0, 1), 0.0)(pixels, None)
        assert torch.equal(variant, pixels)
        every = dict(zip((grid := Grid(2, 5, 0, 1)).list_shifts(), Moved(grid, 0.0)(pixels, None), strict=True))
        assert torch.equal(every[0, 0], pixels)
        down = torch.zeros_like(pixels)
        down[:, :, 2:, :-1] = pixels[:, :, :-2, 1:]
        assert torch.equal(every[2, -1], down), "down by 2 and left by 1, black behind"


def test_rotations_are_counter_clockwise_about_the_center():
    x = torch.rand(2, 3, 9, 9, dtype=torch.float64)
    torch.testing.assert_close(rotated(x, 90.0), x.rot90(1, (2, 3)))
    torch.testing.assert_close(rotated(x, -90.0), x.rot90(-1, (2, 3)))
    torch.testing.assert_close(rotated(x, 180.0), x.flip(2, 3))
    # rotated first, then shifted: the shift is along the axes of the picture that comes out
    torch.testing.assert_close(rotated(x, 90.0, (0.0, 2.0))[..., 2:], x.rot90(1, (2, 3))[..., :-2])


def test_the_mirror_of_a_rotation_is_the_opposite_rotation_of_the_mirror(photographs):
    x, _ = photographs
    for angle, (dy, dx) in ((30.0, (0.0, 0.0)), (17.0, (1.5, -2.0))):
        mirrored = rotated(x.flip(3), -angle, (dy, -dx))
        torch.testing.assert_close(mirrored, rotated(x, angle, (dy, dx)).flip(3), rtol=0, atol=1e-12)


def test_the_rim_is_blended_with_black():
    white = torch.ones(1, 3, 33, 33, dtype=torch.float64)
    turned = rotated(white, 30.0)
    assert turned.min() == 0
    assert turned.max() == 1
    assert ((turned > 0.01) & (turned < 0.99)).any()
    half = rotated(white, 0.0, (0.5, 0.0))
    assert half[0, 0, :2, 5].tolist() == pytest.approx([0.5, 1])


def test_inside_of_the_rim_it_is_what_pillow_makes(photographs):
    x, _ = photographs
    for angle, shift in ((30.0, (0, 0)), (-12.0, (2, -3)), (4.0, (-1, 1))):
        ours = rotated(x, angle, shift)
        inside = rotated(torch.ones_like(x), angle, shift) > 1 - 1e-9
        for row in range(0, len(x), 4):
            picture = Image.fromarray((255 * x[row]).round().byte().permute(1, 2, 0).numpy())
            pillow = picture.rotate(angle, Image.Resampling.BILINEAR, translate=(shift[1], shift[0]))
            theirs = torch.from_numpy(np.array(pillow)).permute(2, 0, 1).double()
            away = (255 * ours[row] - theirs).abs()[inside[row]]
            assert away.max() <= 1 + 1e-6, "Pillow truncates to whole gray levels"


def test_rotations_are_those_of_foolbox(photographs):
    transformations = pytest.importorskip("foolbox.attacks.spatial_attack_transformations")
    eagerpy = pytest.importorskip("eagerpy")
    x = photographs[0].float()
    for angle in (30.0, -12.5):
        theirs = transformations.rotate_and_shift(eagerpy.astensor(x), rotation=angle).raw
        torch.testing.assert_close(rotated(x, angle), theirs, rtol=0, atol=1e-4)


class Corner(nn.Module):
    """A model that looks at where pictures are bright: some variants fool it."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        coarse = torch.randn(10, 3, 8, 8, generator=generator, dtype=torch.float64)
        self.weight = nn.Parameter(nn.functional.interpolate(coarse, (32, 32), mode="bilinear"))

    def forward(self, x):
        return (x - x.mean((2, 3), keepdim=True)).flatten(1) @ self.weight.flatten(1).T


@pytest.fixture(scope="module")
def labeled(photographs):
    """Photographs with the labels that the model gives them, but for two."""
    x, _ = photographs
    with torch.no_grad():
        y = Corner()(x).argmax(1)
    y[[3, 11]] = (y[[3, 11]] + 1) % 10
    return x, y


SMALL = {"shift": 1, "shifts": 5, "angle": 4, "angles": 5}


def all_right(x, y, grid):
    """(angle, shift) -> which images are right, every variant by itself."""
    model = Corner()
    with torch.no_grad():
        return {
            (angle, shift): model(moved(x, angle, shift)).argmax(1) == y
            for angle in grid.list_angles()
            for shift in grid.list_shifts()
        }


def test_leaving_early_is_the_whole_grid(labeled, tmp_path, capsys):
    x, y = labeled
    grid = Spatial(**SMALL).resolve_grid(32)
    right = all_right(x, y, grid)
    expected = torch.stack(list(right.values())).all(0).numpy()
    result = evaluate(Corner(), labeled, suite=Spatial(**SMALL), quiet=True, run=tmp_path)
    assert np.array_equal(result.is_robust, expected)
    assert 0.1 < expected.mean() < 0.8
    assert [one.name for one in result.measures] == ["clean_accuracy", "robust_accuracy"]
    assert result.clean_accuracy == 0.9
    conditions = [Condition("clean"), *(Condition(f"{a:g}", change=Moved(grid, a)) for a in grid.list_angles())]
    whole = evaluate(Corner(), labeled, suite=Accuracy(conditions=conditions), quiet=True)
    assert np.array_equal(whole.is_robust, result.is_robust)
    left = [one.num_images for one in result.conditions]
    assert left[:2] == [20, 18]
    assert left == sorted(left, reverse=True)
    assert left[-1] < 18
    assert result.notes == ("5 x 5 shifts of up to 1 px, 5 rotations of up to 4 degrees: 125 variants of each image",)
    assert str(Grid(0, 1, 0, 1)) == "no shift, no rotation: 1 variant of each image"
    print_results([result])
    output = capsys.readouterr().out
    assert "not attacked" not in output
    assert "robust_accuracy" not in output, "it has a column"


def test_the_ledger_says_which_transformation_fooled_first(labeled, tmp_path):
    x, y = labeled
    grid = Spatial(**SMALL).resolve_grid(32)
    right = all_right(x, y, grid)
    result = evaluate(Corner(), labeled, suite=Spatial(**SMALL), quiet=True, run=tmp_path)
    ledger = Ledger(Path(result.folder))
    fooled = {}
    for angle in grid.list_angles():
        answers = ledger.answers(f"{angle:g} degrees")
        for image, number in zip(answers.images.tolist(), answers.first_wrong.tolist(), strict=True):
            if number >= 0:
                fooled[image] = angle, grid.list_shifts()[number]
    expected = {}
    for image in set(range(20)) - {3, 11}:
        first = next((place for place, is_right in right.items() if not is_right[image]), None)
        if first is not None:
            expected[image] = first
    assert fooled == expected


def test_the_heat_map_counts_each_fooled_image_once(labeled, tmp_path):
    result = evaluate(Corner(), labeled, suite=Spatial(**SMALL), quiet=True, run=tmp_path)
    (heatmap,) = result.figures
    assert heatmap.rows == ("0", "0.5", "1")
    assert heatmap.columns == ("-4", "-2", "0", "2", "4")
    values = np.array(heatmap.values)
    assert values.sum() == pytest.approx(result.clean_accuracy - result.robust_accuracy)
    for column, angle in enumerate(heatmap.columns):
        condition = next(one for one in result.conditions if one.name == f"{angle} degrees")
        fooled = 0 if condition.accuracy is None else condition.num_images * (1 - condition.accuracy)
        assert 20 * values[:, column].sum() == pytest.approx(fooled)
    ledger, shifts = Ledger(Path(result.folder)), Spatial(**SMALL).resolve_grid(32).list_shifts()
    first = ledger.answers("-4 degrees").first_wrong
    corner = sum(max(map(abs, shifts[number])) == 1 for number in first[first >= 0])
    assert 20 * values[2, 0] == pytest.approx(corner)
    assert read_result(Path(result.folder)).figures == result.figures


def test_more_transformations_never_raise_the_accuracy(labeled):
    def robust(**settings):
        return evaluate(Corner(), labeled, suite=Spatial(**settings), quiet=True).is_robust

    few, more = robust(shift=0, angle=4, angles=3), robust(shift=0, angle=4, angles=5)
    most = robust(**SMALL)
    assert (few >= more).all()
    assert (more >= most).all()
    assert few.sum() > most.sum()


def test_batches_processes_and_kills_change_nothing(labeled, tmp_path, monkeypatch):
    def one_after_the_other(count, work, arguments, folder):
        for rank in range(count):
            work(world=World(rank, count), **arguments)

    monkeypatch.setattr("robustvit.evaluation.engine.run_processes", one_after_the_other)
    suite = Spatial(**SMALL)
    whole = evaluate(Corner(), labeled, suite=suite, quiet=True, run=tmp_path / "whole", batch_size=8)
    small = evaluate(Corner(), labeled, suite=suite, quiet=True, batch_size=3)
    shared = evaluate(Corner(), labeled, suite=suite, quiet=True, run=tmp_path / "shared", processes=2)
    assert np.array_equal(whole.is_robust, small.is_robust)
    assert np.array_equal(whole.is_robust, shared.is_robust)
    path = Path(whole.folder) / "ledger-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    folder = tmp_path / "cut" / "eval" / path.parent.name
    folder.mkdir(parents=True)
    (folder / path.name).write_bytes(b"".join(lines[:7]) + lines[7][:40])
    resumed = evaluate(Corner(), labeled, suite=suite, quiet=True, run=tmp_path / "cut", batch_size=8)
    assert resumed.to_dict()["conditions"] == whole.to_dict()["conditions"]
    assert (folder / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"shift": 32}, "a shift of 32 px leaves nothing of pictures of 32 px; give shift: at most 31"),
        ({"shift": 3, "shifts": 1}, "shifts: 1 is no shift at all; give shift: 0, or more shifts"),
        ({"angle": 3, "angles": 1}, "angles: 1 is no angle at all"),
        ({"angle": 181}, "angle: input should be less than or equal to 180"),
        ({"shift": -1}, "shift: input should be greater than or equal to 0"),
        ({"shifts": 102}, "shifts: input should be less than or equal to 101"),
        ({"grid": "madry"}, "grid: input should be"),
        ({"steps": 3}, "steps: no such setting; did you mean 'shift"),
    ],
)
def test_mistakes_are_one_sentence(labeled, settings, words):
    with pytest.raises(UserError, match=words):
        evaluate(Corner(), labeled, suite={"name": "spatial", **settings}, quiet=True)


def test_pictures_of_a_pixel_cannot_be_shifted():
    with pytest.raises(UserError, match="pictures of 1 px"):
        evaluate(lambda x: x.mean((2, 3)), (torch.rand(3, 3, 1, 1), torch.zeros(3).long()), suite="spatial", quiet=True)
