"""Components of other packages, which announce them as entry points of the group `robustvit.plugins`.

An entry point names a module, whose import registers them, or a function that does when it is called.
"""

from importlib import metadata
from types import FunctionType

from robustvit.core.errors import first_line
from robustvit.core.progress import say

GROUP = "robustvit.plugins"
_LOADED: set[str] = set()


def load_plugins() -> None:
    """Once in a process; a plugin that fails is left out with a warning."""
    if GROUP in _LOADED:  # or on its way: a plugin may ask the registry while it is imported
        return
    _LOADED.add(GROUP)
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            loaded = entry.load()
            if isinstance(loaded, FunctionType):
                loaded()
        except (Exception, SystemExit) as error:
            package = entry.dist.name if entry.dist is not None else entry.value
            say(f"warning: plugin '{entry.name}' of package '{package}': {type(error).__name__}: {first_line(error)}")
