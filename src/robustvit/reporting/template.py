"""Pages from templates of this package."""

from base64 import b64encode
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from robustvit.core.figures import percent
from robustvit.core.files import write_text
from robustvit.core.run import versions


def rendered(template: str, style: tuple[str, ...], filters: dict[str, Any], **values: Any) -> str:
    """A template of the package with its style sheets inside."""
    loader = FunctionLoader(part)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, **filters}
    styles = Markup("\n".join(map(part, style)))
    return environment.get_template(template).render(version=versions()["robustvit"], style=styles, **values)


def part(name: str) -> str:
    return resources.files("robustvit.reporting").joinpath(name).read_text("utf-8")


def script(name: str) -> dict[str, Any]:
    """A script of the package, with the hash that lets the page run this one and no other."""
    text = part(name)
    return {"script": Markup(text), "script_hash": b64encode(sha256(text.encode()).digest()).decode("ascii")}


def write_page(path: Path, text: str) -> None:
    """A name on disk need not be text; what can't be written as UTF-8 becomes a question mark."""
    write_text(path, text.encode("utf-8", "replace").decode("utf-8"))
