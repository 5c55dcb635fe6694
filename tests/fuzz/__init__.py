"""Frames of every kind, most of them wrong, for everything that reads what others have sent.

`corpus` draws messages and mutates their bytes; `readers` has what decodes them in this process, and
`listeners` sockets that listen, to strangers and to members. `python -m tests.fuzz` feeds them (`make fuzz`);
`test_fuzz` does a small share of it.
"""
