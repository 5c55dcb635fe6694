"""Configuration of Sphinx for the documentation (`make docs`)."""

import sys
import tomllib
from pathlib import Path

# What is documented is the checkout, which need not be the version that is installed.
_checkout = Path(__file__).parent.parent
_project = tomllib.loads((_checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "Partita"
author = "The Partita authors"
project_copyright = "The Partita authors"
release = _project["version"]
version = release

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

extensions = [
    "command_line",
    "myst_parser",
    "reference",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

smartquotes_action = "qe"  # quotes and ellipses; "--" stays the beginning of an option
default_role = "code"  # what docstrings write in `single backquotes`
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"Partita {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["partita.css"]
