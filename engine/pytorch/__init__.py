"""Modules of PyTorch as layers, and as networks.

`module_layer` has `Torch`, a module as one layer, of which `probe` finds out what it does. `from_torch` makes
a network of one: `exported` is its graph of operations, `kept` are parts of it that stay as they are, and
`conversion` makes layers of the rest. `state_dict` has parameters under the names of the module. Which layer
an operation becomes stands in `weights`, `sequences` and
`operations`; its `values` are arrays of the network in some order of axes. Import the modules themselves:
`partita.engine` names what users need.
"""

__all__: list[str] = []
