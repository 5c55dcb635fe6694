"""Machines and links: a cluster, its file, measured kernel times, the libraries of its matrix products, and
the forms of tiles.
"""

__all__: list[str] = []
