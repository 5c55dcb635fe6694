"""Pictures as SVG text, and pages as HTML. Nothing is imported that a picture does not need.

Of all pictures: `theme` (colours and their meanings, in light and dark), `svg` (elements), `palette` (names
and colours of machines), `responsive` (pictures that fit any width).

Without a library: `layout`, `folds`, `boxes`, `routes`, `exchange`, `legend` (a plan, `plan_picture`);
`cells`, `panels`, `marks`, `travels` (one of its layers, `layer_picture`); `gantt` for `steps` that were
predicted or measured, of which `crowds` chooses what is shown of many machines; `bars`; `series`, lines over
the time of a run. By matplotlib: `canvas` (its one style), `curves`, `speed_up`. `pages` fills templates of
HTML by jinja2.
"""

__all__: list[str] = []
