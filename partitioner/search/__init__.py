"""The search behind the automatic plan: it knows cuts and what they cost, never programs' inner workings.

task          what is to be decided, and what a plan of it takes (by playing its programs)
groups        which sets of machines are worth trying
spread        a network over a group: every layer in proportion to what its machines can do
layers        whole layers in order, balanced by cost
layouts       for each layer, the cuts among which to choose
traffic       what layers' layouts make machines send to one another
additive      the cost model that sums over layers and exchanges
elimination   the exact minimum of such a sum, branches included
moves         small changes of a plan
local         improves a plan by playing what the moves make of it
fitting       what would fit, when nothing does
"""

__all__: list[str] = []
