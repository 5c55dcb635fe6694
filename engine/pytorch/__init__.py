"""Modules of PyTorch as layers, and as networks.

`module_layer` has `Torch`, a module as one layer, of which `probe` finds out what it does.

`from_torch` makes a network of a module. `exported` is its graph, of `nodes`: `folding` computes its
constants, `cells` and `plain_recurrence` write recurrent cells out, `simplified` finds patterns, among them
`random_masks`, `examples_first` puts the examples on axis 0 (by `moved_operations`), and `results` chooses
the output. `kept` are parts of the module that stay as they are, and `conversion` makes layers of the rest,
in an `imported_network`. Which layer an operation becomes stands in `weights` (with `whole_weights`),
`sequences` and `operations`; its `values` are arrays of the network in some order of axes. A loss that the
module itself returns is taken apart by `own_loss`, and becomes `loss_layers`. Tensors are given in order or
by name, as `example_args`; `torch_module` has them with the module and its loss. Operations without a layer
of their own become an `expression`: `grouping` joins chains of them along the dimensions of `alignment` and
`alignment_of_places`, and `computed` writes each `program`.

`state_dict` has parameters under the names of the module. Import the modules themselves: `partita.engine`
names what users need.
"""

__all__: list[str] = []
