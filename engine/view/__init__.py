"""Pictures as SVG text, and pages as HTML. Nothing is imported that a picture does not need.

Plans, without a library: `svg`, `palette`, `look` (elements, colours of machines, what a picture shares);
`layout`, `folds`, `columns`, `boxes`, `routes`, `exchange`, `column_picture`, `legend` (a plan,
`plan_picture`); `cells`, `panels`, `marks`, `travels` (one of its layers, `layer_picture`).

Charts, by matplotlib: `canvas` (the one style), `curves`, `speed_up`, `bars`, and `gantt` for `steps` that
were predicted or measured. `pages` fills the templates of HTML by jinja2.
"""

__all__: list[str] = []
