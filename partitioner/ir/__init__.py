"""Intermediate representation: instructions, buffers, and the program of one machine."""
