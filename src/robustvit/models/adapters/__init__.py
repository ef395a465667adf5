"""What is added to a frozen vision transformer: one kind of component, `model.adapters` in a recipe."""

from robustvit.models.adapters import tora  # noqa: F401 - registers its components
from robustvit.models.adapters.base import AnyAdapters as AnyAdapters
