"""Machines and links: a cluster, its file, measured kernel times and the libraries of its matrix products."""

__all__: list[str] = []
