"""Pictures as text, in SVG and HTML. What they are made of, from the simple to the whole:

`svg`, `palette`, `look`: elements, colours of machines, what a picture shares.
`layout`, `folds`, `columns`, `boxes`, `routes`, `exchange`, `column_picture`, `legend`: a plan (`draw.py`).
`cells`, `panels`, `marks`, `travels`: one of its layers (`draw_layer.py`).
`time_axis`, `timeline`, `predicted`: what happens when; `curves`: over numbers of machines.
`charts`, `page`: a plan as one HTML page.
"""

__all__: list[str] = []
