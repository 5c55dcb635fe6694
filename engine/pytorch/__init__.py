"""Modules of PyTorch as layers of a network: `module_layer` has `Torch`, and `probe` what a module does once.

Import the modules themselves: `partita.engine` names what users need.
"""

__all__: list[str] = []
