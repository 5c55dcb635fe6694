"""Pictures in folders: one folder for each class."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from partita.engine.data.dataset import DataError, Dataset, Field, Reader
from partita.engine.data.items import stacked
from partita.engine.data.paths import files_of, reading, stamp_of
from partita.engine.files.sources import OpensArrays

Array = npt.NDArray[Any]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


@dataclass(frozen=True)
class Pictures(Dataset):
    """Pictures in files, which all machines have at the same paths; the folder of a picture is its class.

    The first input of a network gets pictures `[height, width, channels]`, uint8; the first target the number
    of the class, in the order of the folders' names. All pictures have one size, or are scaled to `size`.

    Args:
        pattern: of the files, as `flowers/*/*.jpg`; or a folder with a folder for each class.
        size: height and width to which pictures are scaled; None: all have the size of the first.
        channels: 3, or 1 for grey.

    Raises:
        ValueError: Pillow is not installed, there is no picture, or the first one cannot be read.
    """

    in_order: ClassVar[bool] = True

    pattern: str | Path
    size: tuple[int, int] | None = None
    channels: int = 3
    paths: tuple[str, ...] = field(init=False, repr=False)
    classes: tuple[str, ...] = field(init=False, repr=False)
    fields: Mapping[str, Field] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ValueError(f"Pictures have {self.channels} channels; give 3, or 1 for grey")
        pattern = Path(self.pattern)
        is_folder = pattern.is_dir()
        found = files_of(pattern / "*" / "*" if is_folder else pattern)
        paths = tuple(path for path in found if Path(path).suffix.lower() in SUFFIXES)
        if not paths:
            raise DataError(f"{self.pattern} has no pictures ({', '.join(SUFFIXES)})")
        set_ = object.__setattr__
        set_(self, "paths", paths)
        set_(self, "classes", tuple(sorted({Path(path).parent.name for path in paths})))
        with reading(paths[0]):
            first = opened(paths[0], self.size, self.channels)
        set_(self, "fields", {"picture": Field.of(first), "class": Field((), np.dtype(np.int64))})

    @property
    def examples(self) -> int:  # type: ignore[override]
        """The number of pictures."""
        return len(self.paths)

    @property
    def identity(self) -> str:
        """Names and sizes of the files."""
        return stamp_of(self.paths)

    def open(self, files: OpensArrays) -> Reader:
        """Opens each picture when it is needed."""
        return _PictureReader(self)


class _PictureReader(Reader):
    def __init__(self, pictures: Pictures) -> None:
        self._pictures = pictures
        number = {name: n for n, name in enumerate(pictures.classes)}
        self._labels = np.array([number[Path(path).parent.name] for path in pictures.paths], np.int64)

    def read(self, chosen: Array, names: Collection[str]) -> dict[str, Array]:
        found = {"class": self._labels[chosen]}
        if "picture" in names:
            items = []
            for path in (self._pictures.paths[number] for number in chosen):
                with reading(path):
                    picture = opened(path, self._pictures.size, self._pictures.channels)
                if picture.shape != self._pictures.fields["picture"].shape:
                    raise DataError(
                        f"{path} has shape {picture.shape}, and {self._pictures.paths[0]} "
                        f"{self._pictures.fields['picture'].shape}; scale all: size=(height, width)"
                    )
                items.append({"picture": picture})
            found |= stacked(items, chosen.tolist(), "picture")
        return found


def opened(path: str, size: Sequence[int] | None, channels: int) -> Array:
    """Reads a picture, `[height, width, channels]`, uint8. Raises DataError without Pillow, OSError."""
    try:
        pillow: Any = import_module("PIL.Image")
    except ImportError as error:
        raise DataError("pictures need the package Pillow: pip install 'partita[data]'") from error
    with pillow.open(path) as file:
        picture = file.convert("RGB" if channels == 3 else "L")
        if size is not None and picture.size != (size[1], size[0]):
            picture = picture.resize((size[1], size[0]), pillow.Resampling.BILINEAR)
        found: Array = np.asarray(picture)
    return found.reshape(*found.shape[:2], channels)
