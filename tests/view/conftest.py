from __future__ import annotations

from tests.profile.conftest import profile

__all__ = ["profile"]
