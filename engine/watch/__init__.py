"""What a run says about itself while it runs: a stream of records, its file, and what is shown of it.

- `records`: the kinds of records, with units and shapes: the only thing that pages, terminals and reports
read - `planned`: the first record, made of a plan and a driver
- `curve`: a series of numbers, of bounded size
- `state`: what a page shows now, folded from records in the order in which they were written
"""
