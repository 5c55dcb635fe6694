"""Prediction: costs, a lower bound, and programs played on a simulated clock."""

__all__: list[str] = []
