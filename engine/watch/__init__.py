"""Records of a run while it runs: a stream, its file, and what is shown of it. Import the modules themselves.

- `records`: the kinds of records, with units and shapes: the only thing that pages, terminals and reports
read - `planned`: the first record, made of a plan and a driver
- `curve`: a series of numbers, of bounded size
- `state`: what a page shows now, folded from records in the order in which they were written
"""

__all__: list[str] = []
