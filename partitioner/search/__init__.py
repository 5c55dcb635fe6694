"""The search behind the automatic plan: it chooses among cuts by their predicted cost.

task            the problem, and prices of its pieces
groups          sets of machines worth trying
spread          a network over a group: every layer in proportion to the machines' speeds
layers          whole layers in order, balanced by cost
layouts         the cuts of each layer among which the search chooses
message_counts  messages and rows that the layouts of adjacent layers cause
additive        the cost model that sums over layers and exchanges
elimination     the exact minimum of such a sum, branches included
moves           small changes of a plan
trials          simulation of candidate plans, with the best so far
local           improves a plan by simulating its moves
fitting         suggestions when no plan fits into memory
strategies      the automatic plan and two simple ones
"""

__all__: list[str] = []
