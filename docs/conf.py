"""How Sphinx builds the documentation (`make docs`)."""

from importlib.metadata import version as version_of

project = "Partita"
author = "The Partita authors"
project_copyright = "The Partita authors"
release = version_of("partita")
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# A room's `__all__` is its map: the API page shows the public names in the order in which it gives them.
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"Partita {release}"
html_show_sourcelink = False
