"""One HTML file from the sources of the page: modules in the order of their imports, each in a scope of its own.

The sources are ordinary ES modules, of which one form of each statement is used: ``import { a, b } from "./x.js";`` on
a line of its own, and ``export`` before ``function``, ``function*``, ``async function``, ``const`` or ``class``.
Browsers do not load modules from a file beside a page on disk, so they are joined here: a module becomes a function
that is called once and returns its exports.
"""

from __future__ import annotations

import json
import re
from graphlib import TopologicalSorter
from importlib import resources
from typing import Any

from nlaformer.errors import FileError

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*?|const|class) (\w+)", re.MULTILINE)


def sources() -> dict[str, str]:
    """The files of the page by name."""
    folder = resources.files("nlaformer.explorer") / "page"
    return {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if not file.name.startswith(".")}


def script(modules: dict[str, str]) -> str:
    r"""All modules as one script.

    >>> two = {"a.js": "export const one = 1;\n", "main.js": 'import { one } from "./a.js";\nconsole.log(one);\n'}
    >>> print(script(two))
    "use strict";
    const modules = {};
    // a.js
    modules["a.js"] = (() => {
    const one = 1;
    return { one };
    })();
    // main.js
    modules["main.js"] = (() => {
    const { one } = modules["a.js"];
    console.log(one);
    return {  };
    })();
    """
    needs = {name: [other for _, other in _IMPORT.findall(text)] for name, text in modules.items()}
    parts = ['"use strict";', "const modules = {};"]
    for name in TopologicalSorter(needs).static_order():
        if name not in modules:
            raise FileError(f"the page has no module {name}; one of its modules imports it")
        text = _IMPORT.sub(lambda found: _taken(found[1], found[2]), modules[name])
        exports = ", ".join(found[1] for found in _EXPORT.findall(text))
        body = _EXPORT.sub(r"\1 \2", text).rstrip()
        if re.search(r"^(import|export)\b", body, re.MULTILINE):
            raise FileError(f"{name} has an import or export in a form that the page is not made from")
        parts += [f"// {name}", f'modules["{name}"] = (() => {{', body, f"return {{ {exports} }};", "})();"]
    return "\n".join(parts)


def _taken(names: str, module: str) -> str:
    listed = ", ".join(part.replace(" as ", ": ") for part in names.split(","))
    return f'const {{{listed}}} = modules["{module}"];\n'


def page(data: dict[str, Any], stores: dict[str, str]) -> str:
    """The HTML file."""
    files = sources()
    modules = {name: text for name, text in files.items() if name.endswith(".js")}
    texts = {
        "STYLE": files["style.css"],
        "DATA": _inert(json.dumps(data, separators=(",", ":"), ensure_ascii=False)),
        "STORES": "\n".join(
            f'<script type="text/plain" id="store-{name}">{text}</script>' for name, text in stores.items()
        ),
        "SCRIPT": script(modules),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: texts[found[1]], files["index.html"])


def _inert(text: str) -> str:
    """JSON that cannot end the element it stands in."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
