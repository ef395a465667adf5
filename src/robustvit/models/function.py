"""A model that a function of the user returns: `module:function`, or `file.py:function`."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from torch import nn

from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_file


def called(text: str, module_name: str, function_name: str) -> nn.Module:
    try:
        function = getattr(_imported(module_name, text), function_name, None)
        if not callable(function):
            raise UserError(f"{text}: module '{module_name}' has no function '{function_name}'")
        model = function()
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's own code raises, with its place
        *_, place = traceback.extract_tb(error.__traceback__)
        raise UserError(
            f"{text}: fails with {type(error).__name__}: {first_line(error)} ({place.filename}, line {place.lineno})"
        ) from error
    if not isinstance(model, nn.Module):
        raise UserError(f"{text}: must return an nn.Module, not {type(model).__name__}")
    return model


def _imported(name: str, text: str) -> ModuleType:
    """A module by its name, the current folder first, or by the path of its file, whose folder then comes first."""
    file = Path(name).resolve() if name.endswith(".py") else None
    if file and not is_file(file):
        raise UserError(f"{text}: no file '{name}'")
    folder, name = (file.parent, file.stem) if file else (Path.cwd(), name)
    sys.path.insert(0, str(folder))
    if importlib.util.find_spec(name) is None:
        raise UserError(f"{text}: no module '{name}' on the path (the current folder is on it)")
    module = importlib.import_module(name)  # by its name, so that other processes find it again
    if file and Path(module.__file__ or "").resolve() != file:
        sys.path.remove(str(folder))
        raise UserError(f"{text}: '{file.stem}' is the name of another module ({module.__file__}); rename the file")
    return module
