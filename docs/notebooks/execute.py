"""Executes the notebooks of this folder in place, as they are published: python docs/notebooks/execute.py [NAME...]."""

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LARGEST = 400_000
"""Bytes of a notebook with its outputs."""


def source_digest(notebook: dict[str, Any]) -> str:
    """Of what is executed: kept with the outputs, so that a test sees where they are older than the code."""
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()


def execute(path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:  # where its run folders go
        options = {"timeout": 1800, "record_timing": False, "coalesce_streams": True}
        NotebookClient(notebook, resources={"metadata": {"path": folder}}, **options).execute()
    notebook.metadata["language_info"] = {"name": "python"}  # not the version of this machine
    notebook.metadata["robustvit"]["executed"] = source_digest(notebook)
    text = nbformat.writes(notebook) + "\n"
    if len(text.encode()) > LARGEST:
        sys.exit(f"{path}: {len(text.encode()):,} bytes with its outputs, more than {LARGEST:,}; show fewer pictures")
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm's, about widgets that nothing here needs
    for path in [HERE / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        execute(path)
        print(f"{path}: {path.stat().st_size:,} bytes")
