"""AutoAttack and `fast` on the robust models of the zoo against pyautoattack: verdicts, passes, time.

    python benchmarks/photographs.py [NAME ...]

Writes docs/benchmarks-photographs.md. Halves of the images are judged by all in turn, so that a machine that slows down
does so for everybody; by `fast` all at once, as its sample depends on their number. Each is kept below runs/bench as it
is done; a second call goes on after the last one.
"""

import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from measure import ROOT, Counted, table, write_page
from pyautoattack import AutoAttack

import robustvit as rv
from robustvit.models.zoo import zoo_card, zoo_names, zoo_result

IMAGES, PART = 200, 100
AUTOATTACK, FAST = "autoattack, 2 processes", "fast, 2 processes"
KEPT = ROOT / "runs" / "bench" / "photographs"


def reference(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, threat: rv.LpBall) -> dict[str, Any]:
    counted = Counted(model)
    judge = AutoAttack(counted, norm="Linf", eps=threat.eps, seed=0)
    judge.verbose = False
    _, labels = judge.run_standard_evaluation(x, y, batch_size=len(x))
    return {"robust": (labels == y).tolist(), "passes": counted.forwards + counted.backwards}


def ours(model: torch.nn.Module, data: Any, threat: rv.LpBall, suite: str, processes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = rv.evaluate(
            model, data, suite=suite, threat=threat, run=folder, processes=processes, quiet=True, checks=False
        )
    stages = [(stage.name, stage.passes, stage.num_fooled, stage.is_sampled) for stage in result.stages]
    return {
        "robust": result.is_robust.tolist(),
        "passes": sum(one[1] for one in stages) + len(data[1]),
        "stages": stages,
    }


def threat_of(name: str) -> rv.LpBall:
    """That the model was trained for."""
    known = zoo_result(name).threat
    assert known is not None
    return rv.LpBall(known.norm, known.eps_text)


def judged(name: str) -> dict[str, list[dict[str, Any]]]:
    """By judge, what it said of each part and how long it took."""
    model = rv.load_model(f"zoo:{name}").eval().requires_grad_(False)
    x, y = rv.load_data("cifar10", IMAGES)
    threat, kept = threat_of(name), KEPT / f"{name}-{zoo_card(name).sha256[:8]}"
    judges = {
        "pyautoattack": lambda x, y: reference(model, x, y, threat),
        AUTOATTACK: lambda x, y: ours(model, (x, y), threat, "autoattack", 2),
        FAST: lambda x, y: ours(model, (x, y), threat, "fast", 2),
    }
    found: dict[str, list[dict[str, Any]]] = {title: [] for title in judges}
    for first in range(0, IMAGES, PART):
        for title, judge in judges.items():
            if first and title == FAST:
                continue
            some = slice(first, first + (IMAGES if title == FAST else PART))
            file = kept / f"{title.replace(', ', '-').replace(' ', '-')}-{first}.json"
            if not file.exists():
                begin = time.perf_counter()
                said = judge(x[some], y[some])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps({**said, "seconds": time.perf_counter() - begin}))
            found[title].append(json.loads(file.read_text()))
            print(name, first, title, f"{found[title][-1]['seconds']:.0f} s", flush=True)
    return found


def rows_of(name: str, found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    total = {
        title: {key: sum(part[key] for part in parts) for key in ("seconds", "passes")}
        for title, parts in found.items()
    }
    robust = {title: [one for part in parts for one in part["robust"]] for title, parts in found.items()}
    base = total["pyautoattack"]
    rows = []
    for title in found:
        differ = sum(one != other for one, other in zip(robust[title], robust["pyautoattack"], strict=True))
        ratios = [f"{total[title][key] / base[key]:.2f}" for key in ("seconds", "passes")]
        rows.append(
            [
                f"zoo:{name}",
                str(threat_of(name)),
                title,
                *ratios,
                f"{100 * sum(robust[title]) / IMAGES:.1f} %",
                str(differ),
            ]
        )
    return rows


def curve(parts: list[dict[str, Any]]) -> list[list[str]]:
    """Robust accuracy against passes, kind of stage by kind of stage."""
    left = sum(sum(part["robust"]) for part in parts) + sum(one[2] for part in parts for one in part["stages"])
    kinds = list(dict.fromkeys(one[0].partition("/")[0] for part in parts for one in part["stages"]))
    passes, rows = 0.0, []
    for kind in kinds:
        mine = [one for part in parts for one in part["stages"] if one[0].partition("/")[0] == kind]
        passes, left = passes + sum(one[1] for one in mine), left - sum(one[2] for one in mine)
        rows.append([kind, f"{passes / IMAGES:,.0f}", f"{100 * left / IMAGES:.1f} %"])
    return rows


def main() -> None:
    warnings.filterwarnings("ignore")
    names = sys.argv[1:] or [name for name in zoo_names() if zoo_result(name).robust_accuracy > 0.1]
    found = {name: judged(name) for name in names}
    lines = [
        "# Benchmarks on photographs",
        "",
        f"{IMAGES} images of CIFAR-10's test set, judged in parts of {PART} by all in turn (`fast`: all at once), "
        f"by pyautoattack on {torch.get_num_threads()} threads, by ours in two processes of one thread each, as "
        "`robustvit evaluate` does on two cores. Times and passes are relative to "
        "pyautoattack (`python benchmarks/photographs.py`).",
        "",
    ]
    head = ["model", "threat", "judge", "time", "passes", "robust", "verdicts that differ"]
    lines += table(head, [row for name in names for row in rows_of(name, found[name])])
    for name in names:
        for title in (AUTOATTACK, FAST):
            lines += [f"`{title.partition(',')[0]}` on `zoo:{name}`: robust accuracy after each kind of stage.", ""]
            lines += table(["after", "passes an image", "robust"], curve(found[name][title]))
    write_page("benchmarks-photographs.md", lines)


if __name__ == "__main__":
    Path(KEPT).mkdir(parents=True, exist_ok=True)
    main()
