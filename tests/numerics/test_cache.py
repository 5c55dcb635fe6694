"""Location of the cache, and access to it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from partita.engine.numerics.cache import cache_folder


def test_it_follows_the_standard_for_users_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder() == tmp_path / "caches" / "partita"
    assert cache_folder().is_dir()


@pytest.mark.parametrize("given", [None, "", "relative/path"])
def test_without_a_usable_setting_it_lies_in_the_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert cache_folder() == tmp_path / ".cache" / "partita"


def test_only_the_owner_may_look_into_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700


def test_a_file_in_its_place_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "partita").write_text("in the way")
    with pytest.raises(OSError, match="partita"):
        cache_folder()


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_to_which_others_may_write_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_folder().chmod(mode)
    with pytest.raises(PermissionError, match=r"can be changed by other users.*chmod 700"):
        cache_folder()
