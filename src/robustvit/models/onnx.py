"""ONNX in both directions: models as files with the normalization inside, and files as models without gradients."""

import hashlib
import io
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_file, write_atomic
from robustvit.core.readers import regular_size

ONNX = ".onnx"
_INPUT, _OUTPUT = "pixels", "logits"
_AGREE = 1e-4
"""Of the largest logit: what rounding in another order may change in float32."""


class OnnxModel(nn.Module):
    """The classifier of an ONNX file on pixels in [0, 1], run by onnxruntime; it has no gradients."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        regular_size(path)
        self.path = str(path)
        self._open(path.read_bytes())
        given, made = self._session.get_inputs(), self._session.get_outputs()
        shape = given[0].shape if given else []
        is_image = len(given) == 1 and given[0].type == "tensor(float)" and len(shape) == 4
        if not is_image or (isinstance(shape[1], int) and shape[1] != 3):
            found = ", ".join(f"{one.name} {one.type} {one.shape}" for one in given) or "nothing"
            raise UserError(f"{path}: must take one float image batch (N, 3, H, W), not {found}")
        if len(made) != 1:
            raise UserError(f"{path}: must return the logits alone, not {', '.join(one.name for one in made)}")
        self._fixed = shape[0] if isinstance(shape[0], int) else None
        """Of a file that takes so many images at once and no other number."""
        self._height, self._width = (side if isinstance(side, int) else None for side in shape[2:])
        self.img_size = self._height if self._height == self._width else None
        """The side of its images; None: any, or not square."""

    def _open(self, content: bytes) -> None:
        ort = _required("onnxruntime", self.path)
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        try:
            self._session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # a damaged file raises whatever its reader runs into
            if "External data" in str(error):  # the digest of a model is that of its file
                whole = "onnx.save(onnx.load(path), 'whole.onnx')"
                raise UserError(f"{self.path}: has its weights in other files; put them into one: {whole}") from None
            raise UserError(f"{self.path}: onnxruntime can't read it ({first_line(error)[:200]})") from None
        self._content, self._sha256 = content, hashlib.sha256(content).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_session"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open(self._content)

    def extra_repr(self) -> str:
        return f"sha256={self._sha256}"

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            raise UserError(f"{self.path}: an ONNX model has no gradients for this attack; use suite 'square'")
        height, width = x.shape[2:]
        if self._height not in (None, height) or self._width not in (None, width):
            wanted = " x ".join("any" if side is None else str(side) for side in (self._width, self._height))
            raise UserError(f"{self.path}: takes images of {wanted} pixels, not {width} x {height}")
        parts = torch.split(x, self._fixed) if self._fixed else (x,)
        return torch.cat([self._run(part) for part in parts]).to(x.device, x.dtype)

    def _run(self, x: Tensor) -> Tensor:
        missing = (self._fixed or len(x)) - len(x)
        filled = torch.cat([x, x[-1:].expand(missing, -1, -1, -1)]) if missing else x
        pixels = filled.detach().cpu().float().numpy()
        (logits,) = self._session.run(None, {self._session.get_inputs()[0].name: pixels})
        return torch.from_numpy(logits)[: len(x)]


def write_onnx(model: nn.Module, path: Path, img_size: int) -> Path:
    """For any number of images at once; written only if onnxruntime gives the model's logits."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        _required(name, "export")
    x = torch.rand(3, 3, img_size, img_size, generator=torch.Generator().manual_seed(0))
    with TemporaryDirectory() as folder:
        made = Path(folder) / f"model{ONNX}"
        try:
            with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    model.cpu().eval(), (x[:2],), made, input_names=[_INPUT], output_names=[_OUTPUT], dynamo=True,
                    dynamic_shapes=({0: torch.export.Dim("images")},), external_data=False, verbose=False,
                )  # fmt: skip
        except Exception as error:  # the exporter raises whatever a layer makes it run into
            raise UserError(f"export: torch can't write this model as ONNX ({first_line(error)})") from error
        with torch.no_grad():
            expected, found = model(x), OnnxModel(made)(x)
        if not (expected - found).abs().max() <= _AGREE * expected.abs().max():
            raise UserError("export: onnxruntime gives other logits than the model; nothing was written")
        content = made.read_bytes()
    write_atomic(path, lambda file: file.write(content))
    return path


def is_onnx(path: Path) -> bool:
    return path.suffix == ONNX and is_file(path)


def _required(name: str, where: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{where}: ONNX needs {name}: pip install 'robustvit[onnx]'") from None
