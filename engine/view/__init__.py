"""Pictures as SVG text, and pages as HTML. Nothing is imported that a picture does not need.

Plans, without a library: `svg` and `palette` (elements; names and colours of machines); `layout`, `folds`,
`boxes`, `routes`, `exchange`, `legend` (a plan, `plan_picture`); `cells`, `panels`, `marks`, `travels` (one
of its layers, `layer_picture`).

Charts, by matplotlib: `canvas` (the one style), `curves`, `speed_up`, `bars`, and `gantt` for `steps` that
were predicted or measured. `pages` fills the templates of HTML by jinja2.
"""

__all__: list[str] = []
