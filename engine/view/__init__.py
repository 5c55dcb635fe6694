"""Pictures as text, in SVG and HTML. What they are made of, from the simple to the whole:

`svg`, `palette`, `look`: elements, colours of machines, what a picture shares.
`layout`, `folds`, `columns`, `boxes`, `routes`, `exchange`, `column_picture`, `legend`: a plan
(`plan_picture`).
`cells`, `panels`, `marks`, `travels`: one of its layers (`layer_picture`).
`time_axis`, `timeline`, `steps`: what happens when; `curves`: over numbers of machines (`speed_up`).
`charts`, `plan_page`, `profile_page`: a plan and a profile as HTML pages.
"""

from partita.engine.view.curves import Curve, Mark, Panel, draw_curves
from partita.engine.view.layer_picture import draw_layer
from partita.engine.view.plan_page import plan_page
from partita.engine.view.plan_picture import draw_plan
from partita.engine.view.profile_page import profile_page
from partita.engine.view.speed_up import draw_speed_up
from partita.engine.view.steps import draw_step

__all__ = [
    "Curve",
    "Mark",
    "Panel",
    "draw_curves",
    "draw_layer",
    "draw_plan",
    "draw_speed_up",
    "draw_step",
    "plan_page",
    "profile_page",
]
