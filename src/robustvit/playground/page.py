"""The page: one file, into which its style, its facts and the hash of its script are put."""

import base64
import hashlib
import json
import re
from importlib import resources
from typing import Any

from robustvit.reporting.template import part


def page(facts: dict[str, Any]) -> bytes:
    """`facts` are what the page's script offers: models, attacks, photographs."""
    text = resources.files("robustvit.playground").joinpath("page.html").read_text("utf-8")
    found = re.search(r"<script>(.*?)</script>", text, re.S)
    assert found is not None, "the page has a script"
    script_hash = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode("ascii")
    safe = json.dumps(facts).replace("<", "\\u003c")  # a name must not end the script
    for mark, content in (("/*style*/", part("page.css")), ("SCRIPT_HASH", script_hash), ("FACTS", safe)):
        text = text.replace(mark, content, 1)
    return text.encode("utf-8", "replace")
