"""Parts of a plan's picture: where layers lie, where messages run, SVG as text; `draw.py` joins them."""

__all__: list[str] = []
