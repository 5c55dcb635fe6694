"""What tests of data share."""

from __future__ import annotations

from tests.drivers.conftest import on_threads

__all__ = ["on_threads"]
