"""Assignment: the cut of each layer, and the rows that each machine owns."""

__all__: list[str] = []
