"""Checks of the rows of the page of differences, by topic, in the order of the page."""
