"""Parts of the pictures of a plan (`draw.py`) and of one of its layers (`draw_layer.py`), and SVG as text."""

__all__: list[str] = []
