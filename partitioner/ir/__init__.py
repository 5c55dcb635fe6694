"""Intermediate representation: instructions, buffers, and the program of one machine."""

__all__: list[str] = []
