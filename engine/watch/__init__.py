"""Records of a run while it runs: a stream, its file, and what is shown of it. Import the modules themselves.

- `records`: the kinds of records, with units and shapes: all that pages, terminals and reports read
- `planned`: the first record, made of a plan and a driver
- `curve`: a series of numbers, of bounded size
- `progress`, `sampled`, `observer`: gather what a coordinator sees of its run, for records
- `file`: the file of a stream, which another process can follow
- `state`: what a page shows now, folded from records in the order in which they were written
- `text` draws it in a terminal, `prometheus` writes it for `/metrics`
"""

__all__: list[str] = []
