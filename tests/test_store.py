"""Where work is kept: no old result for another question, no damaged row counted, no warning lost."""

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import robustvit as rv
from conftest import tiny_vit
from robustvit.analysis import analyze
from robustvit.core.checksum import with_checksum
from robustvit.core.errors import UserError
from robustvit.core.examples import read_examples
from robustvit.core.journal import checked_line, read_checked
from robustvit.core.progress import Progress
from robustvit.core.result import ResultWarning
from robustvit.core.world import World
from robustvit.evaluation import Accuracy, Attacked, evaluate, open_subject
from robustvit.evaluation.examples import ExampleKeeper
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.ledger_rows import batch_row, parse_row
from robustvit.evaluation.store import Store, _folder
from robustvit.evaluation.subject import json_numbers

THREAT = rv.LpBall("inf", 0.1)


class Scaled(nn.Module):
    """The same weights and the same text, another function."""

    def __init__(self, body, factor):
        super().__init__()
        self.body, self.factor = body, factor

    def forward(self, x):
        return self.factor * self.body(x)


def test_an_analysis_never_hands_back_the_finding_of_another_model(tmp_path):
    body = tiny_vit()
    findings = [
        analyze(Scaled(body, factor), "digits", what="input_gradients", images=8, run=tmp_path, quiet=True)[0]
        for factor in (1, -1)
    ]
    assert len(list(tmp_path.glob("analysis/*/finding.json"))) == 2
    pictures = [finding.arrays["pictures"] for finding in findings]
    assert not np.array_equal(*pictures)


def test_models_whose_outputs_are_near_have_folders_of_their_own(trained, digits, tmp_path):
    """Hashes of behavior are coarse, so that two machines agree; the logits next to them tell such models apart."""

    class Moved(Scaled):
        def forward(self, x):
            return nn.functional.one_hot(self.body(x).argmax(1), 10) + self.factor * torch.eye(10)[3]

    folders = [
        evaluate(Moved(trained, shift), digits, suite="clean", threat=THREAT, run=tmp_path, quiet=True).folder
        for shift in (0.0, 0.0035, 1e-5, 0.0035)
    ]
    assert folders[1] == f"{folders[0]}-2", "they differ by more than a thousandth of the spread"
    assert folders[2] == folders[0], "two machines may differ by as much"
    assert folders[3] == folders[1]


@pytest.fixture
def finished(trained, digits, tmp_path):
    result = evaluate(trained, digits, suite="pgd-3", threat=THREAT, images=60, run=tmp_path, quiet=True)
    (Path(result.folder) / "result.json").unlink()
    return result


def test_a_damaged_row_is_named_and_computed_again(trained, digits, tmp_path, finished, capsys):
    path = Path(finished.folder) / "ledger-0.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    number = next(i for i, line in enumerate(lines) if b'"survived"' in line)
    row = json.loads(lines[number])
    damages = [lines[number].replace(b'"survived"', b'"fooled"'), lines[number][:40] + b"\n", b"{}\n", b"\xff\xfe\n"]
    for key, value in row.items():
        if key != "crc":
            other = "x" if isinstance(value, str) else 123456789
            damages.append(json.dumps({**row, key: other}).encode() + b"\n")
    for damaged in damages:
        path.write_bytes(b"".join([*lines[:number], damaged, *lines[number + 1 :]]))
        result = evaluate(trained, digits, suite="pgd-3", threat=THREAT, images=60, run=tmp_path, quiet=True)
        assert np.array_equal(result.is_robust, finished.is_robust), damaged
        assert f"1 rows, damaged or of another evaluation (lines {number + 1})" in capsys.readouterr().err, damaged
        assert not read_checked(path).damaged
        assert len(read_checked(path).rows) == len(lines)
        (Path(finished.folder) / "result.json").unlink()


def test_repeated_and_swapped_rows_change_nothing(trained, digits, tmp_path, finished):
    path = Path(finished.folder) / "ledger-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[5], *reversed(lines), lines[70]]))
    result = evaluate(trained, digits, suite="pgd-3", threat=THREAT, images=60, run=tmp_path, quiet=True)
    assert np.array_equal(result.is_robust, finished.is_robust)


def test_a_row_that_is_whole_and_makes_no_sense_is_refused(trained, digits, tmp_path, finished):
    path = Path(finished.folder) / "ledger-0.jsonl"
    for row in ({"stage": "pgd-3", "image": 1, "outcome": "vanished"}, {"stage": "pgd-3"}, {"images": "!", "stage": 1}):
        path.write_bytes(checked_line(row, path))
        with pytest.raises(UserError, match="not a row of a ledger"):
            evaluate(trained, digits, suite="pgd-3", threat=THREAT, images=60, run=tmp_path, quiet=True)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"stage": "pgd-3", "image": 10**6, "outcome": "fooled"}, "image 1000000, which doesn't meet it"),
        ({"stage": "pgd-9", "image": 1, "outcome": "fooled"}, "a stage that this evaluation doesn't have"),
        ({"stage": "carried over", "image": 1, "outcome": "fooled"}, "image 1, which doesn't meet it"),
        ({"stage": "clean", "image": 1, "outcome": "fooled", "predicted": 1}, "no stage 'clean' ends fooled"),
        ({"stage": "clean", "image": 1, "outcome": "wrong"}, "predicted is missing"),
        ({"stage": "pgd-3", "image": "1", "outcome": "fooled"}, "image: Input should be a valid integer"),
        ({"stage": "pgd-3", "image": True, "outcome": "fooled"}, "image: Input should be a valid integer"),
        ({"stage": "pgd-3", "image": -1, "outcome": "fooled"}, "image: Input should be greater than"),
        ({"stage": "pgd-3", "image": 1, "outcome": "fooled", "seconds": -3}, "seconds"),
        ({"stage": "pgd-3", "image": 1, "outcome": "fooled", "ranked": [-3]}, "ranked.0"),
        (batch_row("fog", np.arange(3), np.arange(3), np.arange(3) > 1), "a stage that this evaluation doesn't have"),
    ],
)
def test_a_whole_row_of_something_else_is_named_with_its_line(row, problem, trained, digits, tmp_path, finished):
    path = Path(finished.folder) / "ledger-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], checked_line(row, path), *lines[1:]]))
    with pytest.raises(UserError, match=problem) as caught:
        evaluate(trained, digits, suite="pgd-3", threat=THREAT, images=60, run=tmp_path, quiet=True)
    assert f"{path}, line 2: " in str(caught.value)
    assert "remove this line" in str(caught.value)


def test_rows_of_another_evaluation_are_computed_again(trained, digits, tmp_path, finished, capsys):
    """The other one has the same stages and images, and all are fooled there."""
    options = {"suite": "pgd-3", "images": 60, "run": tmp_path, "quiet": True}
    other = evaluate(trained, digits, threat=rv.LpBall("inf", 0.9), **options)
    assert other.robust_accuracy < finished.robust_accuracy
    path = Path(finished.folder) / "ledger-0.jsonl"
    path.write_bytes((Path(other.folder) / path.name).read_bytes())
    result = evaluate(trained, digits, threat=THREAT, **options)
    assert np.array_equal(result.is_robust, finished.is_robust)
    assert "damaged or of another evaluation" in capsys.readouterr().err


def test_two_outcomes_of_one_image_are_refused(trained, digits, tmp_path, finished):
    path = Path(finished.folder) / "ledger-0.jsonl"
    rows = read_checked(path).rows
    other = next(row for row in rows if row["outcome"] == "survived")
    path.write_bytes(b"".join(checked_line(row, path) for row in [*rows, {**other, "outcome": "fooled"}]))
    with pytest.raises(
        UserError, match=f"line {len(rows) + 1}: image {other['image']} is fooled in 'pgd-3', and survived"
    ):
        evaluate(trained, digits, suite="pgd-3", threat=THREAT, images=60, run=tmp_path, quiet=True)


def test_two_answers_to_one_image_are_refused(tmp_path):
    ledger, images = Ledger(tmp_path), np.arange(5)
    ledger.record_answers("fog", images, images, images > 2)
    ledger.record_answers("fog", images, images, images > 2)
    assert np.array_equal(ledger.answers("fog").correct, images > 2), "the same answer twice does no harm"
    ledger.record_answers("fog", images, images, images > 1)
    with pytest.raises(UserError, match="line 3: a row of 'fog', image 2, that another row contradicts"):
        ledger.answers("fog")


def test_every_change_of_a_row_is_noticed_or_harmless(tmp_path):
    """Each field changed, bytes left out or cut off, each pair of rows swapped: no outcome becomes another one."""
    outcomes = {0: "fooled", 1: "survived", 2: "unverified"}
    more = {"predicted": 3, "margin": 0.5, "distance": 0.1, "steps": 4, "passes": 9.0, "seconds": 0.25}
    rows = [{"stage": "pgd-3", "image": image, "outcome": outcome, **more} for image, outcome in outcomes.items()]
    path = tmp_path / "ledger-0.jsonl"
    lines = [checked_line(row, path) for row in rows]
    changed = [
        line.replace(json.dumps(value).encode(), json.dumps(other).encode(), 1)
        for line, row in zip(lines, rows, strict=True)
        for value in row.values()
        for other in (None, 0, 7, "fooled", "survived", [], {})
    ]
    whole = b"".join(lines)
    files = [
        *(b"".join([*lines[:1], line, *lines[2:]]) for line in changed),
        *(whole[:cut] + whole[cut + 1 :] for cut in range(0, len(whole), 3)),
        *(whole[:cut] for cut in range(0, len(whole), 3)),
        *(b"".join(order) for order in permutations(lines)),
        b"".join([*lines, *lines]),
    ]
    for content in files:
        path.write_bytes(content)
        Ledger.repair(tmp_path)
        ledger = Ledger(tmp_path)
        assert all(ledger.outcome("pgd-3", image) in (outcome, None) for image, outcome in outcomes.items()), content
    assert [ledger.outcome("pgd-3", image) for image in outcomes] == list(outcomes.values())
    assert ledger.total("pgd-3", "passes") == 27


def test_a_warning_of_another_process_reaches_the_result(trained, digits, tmp_path, in_turn):
    def hungry(x):
        if x.requires_grad and len(x) > 20:
            torch.empty(1 << 50)
        return trained(x)

    options = {"suite": "pgd-3", "threat": THREAT, "images": 120, "quiet": True, "checks": False}
    result = evaluate(hungry, digits, run=tmp_path, processes=2, **options)
    assert "out-of-memory" in {warning.name for warning in result.warnings}
    alone = evaluate(trained, digits, **options)
    assert np.array_equal(result.is_robust, alone.is_robust)
    (Path(result.folder) / "result.json").unlink()
    again = evaluate(hungry, digits, run=tmp_path, processes=2, **options)
    assert "out-of-memory" in {warning.name for warning in again.warnings}, "also after a resume"


def test_an_identity_is_recognized_after_it_was_written(trained, digits, tmp_path):
    with open_subject(trained, digits, images=16).ready() as subject:
        identity = {"levels": (1, 2), "by": {3: "c"}}
        stores = [Store.open(tmp_path, "levels", identity, subject, World()) for _ in range(2)]
        for store in stores:
            with store.lock("testing"):
                assert store.folder == stores[0].folder


def test_one_process_sees_what_others_write(tmp_path):
    mine, theirs = Ledger(tmp_path, 0), Ledger(tmp_path, 1)
    theirs.record([{"stage": "clean", "image": 3, "outcome": "correct", "predicted": 1, "margin": -1.0}])
    theirs.warn(ResultWarning("name", "observation"))
    assert mine.outcome("clean", 3) is None
    mine.refresh()
    assert mine.outcome("clean", 3) == "correct"
    assert mine.warnings == (ResultWarning("name", "observation"),)


def image_row(stage, image, outcome, **more):
    return {"stage": stage, "image": image, "outcome": outcome, "margin": 0.5, **more}


@pytest.mark.parametrize("in_files", [True, False])
def test_a_ledger_knows_what_was_recorded(in_files, tmp_path):
    folder = tmp_path if in_files else None
    ledger = Ledger(folder)
    rows = [
        image_row("clean", 4, "correct", predicted=3, ranked=[3, 70_000, 2], seconds=1.5, passes=2.0),
        image_row("clean", 7, "wrong", predicted=1, margin=None, seconds=0.25, passes=1.0),
        image_row("clean", 9, "correct", predicted=-1, ranked=[5, 6, 7]),
        image_row("pgd", 4, "fooled", nearest=[8, 9]),
        image_row("pgd", 9, "unverified"),
        image_row("square", 9, "survived"),
    ]
    ledger.record(rows)
    ledger.record(rows[:1])  # again, which changes nothing
    ledger.warn(ResultWarning("name", "observation"))
    ledger.warn(ResultWarning("name", "observation"))
    for known in (ledger, Ledger(folder)) if in_files else (ledger,):
        assert len(known) == 8
        assert [known.outcome("pgd", image) for image in (4, 7, 9)] == ["fooled", None, "unverified"]
        assert [known.predicted(image) for image in (4, 7, 9)] == [3, 1, -1]
        assert [known.ranked(4, rank) for rank in (1, 2, 3)] == [3, 70_000, 2]
        assert [known.ranked(4, rank, "nearest") for rank in (2, 3)] == [8, 9]
        assert known.ranked(7, 1) is None
        assert known.ranked(9, 2, "nearest") is None
        for rank, order in ((4, "ranked"), (4, "nearest")):
            with pytest.raises(UserError, match=f"lacks the class of rank {rank} for image 4"):
                known.ranked(4, rank, order)
        totals = [known.total("clean", key) for key in ("seconds", "passes", "not finite")]
        assert totals == [1.75, 3.0, 1]
        assert known.survivors(["clean"], [4, 7, 9]) == [4, 9]
        assert known.survivors(["clean", "pgd"], [4, 7, 9]) == [9]
        assert known.survivors(["clean", "pgd", "square"], [4, 7, 9]) == [9]
        assert known.survivors(["clean", "square"], [4, 7, 9]) is None
        assert known.survivors([], [4, 7]) == [4, 7]
        assert [row["image"] for row in known.rows_of(["pgd", "square"])] == [4, 9, 9]
        assert known.warnings == (ResultWarning("name", "observation"),)
        known.check({"clean": np.array([4, 7, 9]), "pgd": np.array([4, 9]), "square": np.array([9, 10])})
        for stages, problem in (
            ({"clean": [4, 7, 9], "pgd": [4, 9]}, "'square', a stage that this evaluation doesn't have"),
            ({"clean": [4, 7, 9], "pgd": [10], "square": [9]}, "'pgd', image 4, which doesn't meet it"),
        ):
            with pytest.raises(UserError, match=problem) as caught:
                known.check({name: np.array(images) for name, images in stages.items()})
            line = 6 if "square" in problem else 4
            assert str(caught.value).startswith(
                f"{tmp_path / 'ledger-0.jsonl'}, line {line}: " if in_files else "ledger: "
            )


def test_answers_are_each_image_once_and_in_order(tmp_path):
    ledger = Ledger(tmp_path)
    assert all(len(part) == 0 for part in ledger.answers("fog"))
    images = np.array([20, 3, 11, 7, 9, 1, 2, 30, 4])
    ledger.record_answers("fog", images, images * 3 - 90, images % 2 == 1)
    ledger.record_answers("fog", images[:4], images[:4] * 3 - 90, images[:4] % 2 == 1)
    for known in (ledger, Ledger(tmp_path)):
        answers = known.answers("fog")
        assert answers.images.tolist() == sorted(images.tolist())
        assert answers.predicted.tolist() == [image * 3 - 90 for image in answers.images]
        assert answers.correct.tolist() == [image % 2 == 1 for image in answers.images]
    ledger.record_answers("fog", images[2:3], images[2:3], images[2:3] % 2 == 1)
    with pytest.raises(UserError, match="line 3: a row of 'fog', image 11, that another row contradicts"):
        ledger.answers("fog")


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16])
def test_rows_of_batches_of_any_length(count):
    images = np.arange(count) * 1000
    row = batch_row("fog", images, images % 7 - 1, images % 3 == 0)
    stage, answers = parse_row(row, "here")
    assert stage == "fog"
    assert answers.images.tolist() == images.tolist()
    assert answers.predicted.tolist() == (images % 7 - 1).tolist()
    assert answers.correct.tolist() == (images % 3 == 0).tolist()
    more = batch_row("fog", *(np.concatenate([part, part[-1:] if count else [True]]) for part in answers))
    longer = batch_row("fog", *(np.concatenate([part, np.arange(8)]) for part in answers))
    for key in ("images", "predicted"):
        with pytest.raises(UserError, match="unequal lengths"):
            parse_row({**row, key: more[key]}, "here")
    with pytest.raises(UserError, match="unequal lengths"):
        parse_row({**row, "correct": longer["correct"]}, "here")
    if count:
        with pytest.raises(UserError, match="a number from 0 on"):
            parse_row(batch_row("fog", images - 1, images, images > 1), "here")


def test_the_library_never_reads_the_launchers_environment(trained, digits, tmp_path, monkeypatch):
    """A user's own distributed script evaluates on one rank alone: nothing may wait for the others."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    result = evaluate(trained, digits, suite="fgsm", threat=THREAT, images=16, run=tmp_path, quiet=True)
    assert result.provenance.processes == 1


def test_the_first_process_locks_checks_and_repairs(tmp_path, monkeypatch):
    monkeypatch.setattr(World, "barrier", lambda self: None)
    monkeypatch.setattr(World, "gather", lambda self, value: [value, value])
    monkeypatch.setattr("robustvit.evaluation.store.is_shared", lambda folder, world: True)
    path = tmp_path / "ledger-0.jsonl"
    first, second = Store(tmp_path, World(0, 2), {"seed": 1}), Store(tmp_path, World(1, 2), {"seed": 2})
    with second.lock("evaluating"):
        assert not list(tmp_path.iterdir()), "the first one's task"
        path.write_bytes(b"torn")
    with first.lock("evaluating"):
        assert json.loads((tmp_path / "identity.json").read_text()) == with_checksum({"seed": 1})
        assert path.read_bytes() == b""
        assert (tmp_path / ".lock").exists()
    other = replace(second, world=World(0, 2))
    with pytest.raises(UserError, match="an evaluation with another seed"), other.lock("evaluating"):
        pass
    with Store(None).lock("evaluating"):
        pass


def test_sessions_that_differ_are_noted(tmp_path):
    store, session = Store(tmp_path), {"threads": 1, "versions": {"torch": "1"}}
    assert store.note_session(session) == []
    assert store.note_session({**session, "host": "other"}) == []
    (warning,) = store.note_session({**session, "threads": 2})
    assert "differ in threads;" in warning.observation
    (warning,) = store.note_session({**session, "versions": {}})
    assert "differ in threads and versions;" in warning.observation
    assert len((tmp_path / "sessions.jsonl").read_text().splitlines()) == 4
    assert Store(None).note_session(session) == []


@pytest.mark.parametrize(("change", "number"), [(0.0, 1), (0.9e-3, 1), (-0.9e-3, 1), (1.1e-3, 2), (-1.1e-3, 2)])
def test_a_folder_belongs_to_logits_within_a_thousandth_of_their_spread(change, number, tmp_path):
    logits = torch.tensor([[0.0, 10.0, 4.0], [2.0, 1.0, torch.inf]], dtype=torch.float64)  # a spread of 10
    base = tmp_path / "pgd"
    assert _folder(base, logits) == base
    for folder, shift in ((base, 0.0), (tmp_path / "pgd-2", 5.0)):
        folder.mkdir()
        stored = [json_numbers(row) for row in logits + shift]
        (folder / "identity.json").write_text(json.dumps(with_checksum({"logits": stored})))
    moved = logits.clone()
    moved[0, 1] += 10 * change
    assert _folder(base, moved).name == ("pgd" if number == 1 else "pgd-3")
    assert _folder(base, logits + 5).name == "pgd-2"
    assert _folder(base, logits[:1]).name == "pgd-3", "other images"
    finite = logits.clone()
    finite[1, 2] = 3
    assert _folder(base, finite).name == "pgd-3", "where one is finite and the other is not"


def test_pictures_of_the_first_eight_fooled_images_are_kept(tmp_path, trained, digits):
    x, y = digits[0][:30], digits[1][:30]
    x_adv, logits = 1 - x, trained(1 - x).detach()
    fooled = torch.arange(30) % 3 == 0
    keeper = ExampleKeeper(tmp_path / "examples.npz", trained)
    keeper.offer(torch.arange(30)[1:3], x[1:3], x_adv[1:3], y[1:3], logits[1:3], fooled[1:3])
    assert not (tmp_path / "examples.npz").exists()
    for part in (slice(0, 9), slice(0, 9), slice(9, 30)):
        if part.start:
            keeper = ExampleKeeper(tmp_path / "examples.npz", trained)  # as a resumed evaluation
        keeper.offer(torch.arange(100, 130)[part], x[part], x_adv[part], y[part], logits[part], fooled[part])
    kept, rows = read_examples(tmp_path / "examples.npz"), torch.arange(0, 24, 3)
    assert kept.index.tolist() == (100 + rows).tolist()
    assert kept.label.tolist() == y[rows].tolist()
    assert kept.predicted.tolist() == logits[rows].argmax(1).tolist()
    assert torch.equal(torch.from_numpy(kept.clean), x[rows].half())
    assert torch.equal(torch.from_numpy(kept.adversarial), x_adv[rows].half())
    clean = trained(x[rows]).softmax(1)[torch.arange(8), y[rows]].detach()
    assert np.allclose(kept.confidence_clean, clean, atol=1e-6)
    assert np.allclose(kept.confidence_adversarial, logits[rows].softmax(1).amax(1), atol=1e-6)


@pytest.fixture
def shown(monkeypatch):
    """What the progress of each stage or condition says: pairs of a count and facts, from its beginning on."""
    said = {}

    class Recorded(Progress):
        def __enter__(self):
            if not self.quiet:
                said[self.title] = [(self.count, {})]
            return super().__enter__()

        def update(self, count, **facts):
            if not self.quiet and count != self.count:
                said[self.title].append((count, facts))
            self.count = count

    for module in ("runner", "conditions"):
        monkeypatch.setattr(f"robustvit.evaluation.{module}.Progress", Recorded)
    return said


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("evaluator", [Attacked(threat=THREAT, suite="clean"), Accuracy(conditions=["clean"])])
def test_progress_begins_with_what_all_processes_have_done(trained, digits, tmp_path, shown, evaluator, first):
    with open_subject(trained, digits, images=40, batch_size=8).ready() as subject:
        indices = torch.arange(40)
        evaluation = evaluator.begin(replace(subject, indices=indices))
        ledgers = [Ledger(tmp_path, rank) for rank in range(2)]  # opened before anything is written
        for rank in (first, 1 - first):
            evaluation.advance(ledgers[rank], World(rank, 2), [], quiet=rank > 0)
    counts = [[count for count, _ in updates] for updates in shown.values()]
    assert counts == [[0, 8, 16, 20], [20, 28, 36, 40]][first : first + 1]


def test_progress_of_several_processes_shows_the_whole(trained, digits, tmp_path, shown):
    """How many are done and, of attacks, which fraction of all images is still robust: all know that at the end."""
    with open_subject(trained, digits, images=60, batch_size=8).ready() as subject:
        evaluation = Attacked(threat=THREAT, suite=["fgsm", "pgd-3"]).begin(subject)
        ledger, other = Ledger(tmp_path, 0), Ledger(tmp_path, 1)  # opened before anything is written
        for world, mine in ((World(1, 2), other), (World(0, 2), ledger)):
            evaluation.advance(mine, world, [], quiet=not world.is_first)
        images = subject.indices.tolist()
        right = sum(ledger.outcome("clean", i) == "correct" for i in images)
        left = sum(ledger.outcome("fgsm", i) not in ("fooled", None) for i in images)
        last = sum(ledger.outcome("pgd-3", i) not in ("fooled", None) for i in images)
    assert right > left > last > 0
    assert {title: updates[-1] for title, updates in shown.items() if updates[-1][0]} == {
        "clean accuracy": (60, {}),
        "fgsm": (right, {"robust": f"{100 * left / 60:.1f} % at most"}),
        "pgd-3": (left, {"robust": f"{100 * last / 60:.1f} % at most"}),
    }


@pytest.mark.parametrize("in_files", [True, False])
def test_a_process_alone_shows_its_progress_unless_quiet(in_files, trained, digits, tmp_path, shown):
    for quiet, titles in ((True, []), (False, ["clean accuracy", "fgsm"])):
        run = tmp_path / str(quiet) if in_files else None
        evaluate(trained, digits, suite="fgsm", threat=THREAT, images=16, run=run, quiet=quiet)
        assert [title for title, updates in shown.items() if updates[-1][0]] == titles
