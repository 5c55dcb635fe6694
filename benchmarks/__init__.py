"""Speed of this project against what people use: `python -m benchmarks.NAME` for each module here.

Each prints a table and, with `--json FILE`, writes its rows. Modules with an underscore are what they share.
"""
