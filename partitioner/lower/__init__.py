"""Lowering: messages, buffers and the program of each machine, derived from an assignment."""

__all__: list[str] = []
