"""Examples, each run as `python -m examples.NAME` or `partita train examples/NAME.py`."""
