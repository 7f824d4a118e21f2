"""Reading a scene's stored bands: pixels by window, and masks sampled on the target grid."""

import contextlib
import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cogmill.codecs.cpu import decode_checksums
from cogmill.cog.reader import CogReader
from cogmill.errors import SceneError
from cogmill.grids import Window
from cogmill.ledger import decode_number
from cogmill.masks import MaskRule, clear

# floor(x + NEAREST_SHIFT) takes the pixel that a coordinate lies in, as GDAL's nearest neighbour does.
NEAREST_SHIFT = 1e-10
NEVER = {"classes": [0], "bits": []}  # of a band of kind mask, 0 is invalid


@dataclass(frozen=True)
class Inputs:
    """What a scene's records say: stored bands by role, the grid record, and the masks that apply to it."""

    folder: Path
    bands: dict
    grid: dict
    masks: dict

    def source_of(self, role: str) -> dict:
        """The source grid that a band lies on, as the grid record has it."""
        return next(source for source in self.grid["sources"] if role in source["bands"])

    def open(self, role: str, threads: int, cache_bytes: int = 0) -> CogReader:
        """Reader of a stored band, see `CogReader`; SceneError where it is not what was recorded."""
        band = self.bands[role]
        path = self.folder / band["path"]  # an absolute path (a band indexed in place) replaces the folder
        if not path.exists():
            raise SceneError(
                f"band {role!r} was stored as {path}, which is not there any more: run "
                f"`cogmill forget {self.folder.name}` and start the campaign again",
                "cog_missing",
            )
        reader = CogReader(
            path,
            band["band"],
            checksums=decode_checksums(band["tile_checksums"]),
            mask_checksums=decode_checksums(band["mask_checksums"]),
            threads=threads,
            cache_bytes=cache_bytes,
        )
        try:
            self._require_as_recorded(role, reader)
        except SceneError:
            reader.close()
            raise
        return reader

    def _require_as_recorded(self, role: str, reader: CogReader) -> None:
        """The checksums guard the tiles, not the header that says how to read them."""
        band, image = self.bands[role], reader.index.images[0]
        found = {
            "shape": list(image.shape),
            "dtype": image.dtype,
            "predictor": image.predictor,
            "mask": reader.index.masks[0] is not None,
        }
        for what, value in found.items():
            if value != band[what]:
                raise SceneError(
                    f"band {role!r} in {reader.path} has {what} {value}, recorded was {band[what]}: the file was "
                    f"changed after it was stored. Run `cogmill forget {self.folder.name}`, then the campaign again",
                    "changed",
                )


class MaskSampler:
    """A mask band, judged on its own grid and sampled by nearest neighbour on the pixels of a source grid.

    Parameters
    ----------
    inputs : Inputs
    role : str
    source : dict
        The source grid, as the grid record has it; it says where on the mask band its pixels fall.
    threads, cache_bytes : int
        As `CogReader`.
    """

    def __init__(self, inputs: Inputs, role: str, source: dict, threads: int, cache_bytes: int = 0):
        rule = inputs.masks[role]
        self.reader = inputs.open(role, threads, cache_bytes)
        self.rule = MaskRule(role, tuple(rule["classes"]), tuple(rule["bits"]))
        self.nodata = decode_number(inputs.bands[role]["nodata"])
        self.affine = tuple(source["masks"][role]["affine"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.reader.close()

    def read(self, window: Window) -> np.ndarray:
        """uint8 (rows, cols) of a window of the source grid: 1 clear, 0 masked or outside of the mask band."""
        a, _, c, _, e, f = self.affine
        rows = np.floor(e * (window.row + np.arange(window.rows) + 0.5) + f + NEAREST_SHIFT).astype(np.int64)
        cols = np.floor(a * (window.col + np.arange(window.cols) + 0.5) + c + NEAREST_SHIFT).astype(np.int64)
        height, width = self.reader.shape
        in_rows, in_cols = (rows >= 0) & (rows < height), (cols >= 0) & (cols < width)
        out = np.zeros((window.rows, window.cols), dtype=np.uint8)
        if not in_rows.any() or not in_cols.any():
            return out
        rows, cols = rows[in_rows], cols[in_cols]
        top, left = int(rows.min()), int(cols.min())
        source = Window(top, left, int(rows.max()) - top + 1, int(cols.max()) - left + 1)
        pixels, valid = self.reader.read(source)
        good = clear(pixels, self.rule, self.nodata)
        if valid is not None:
            good = np.minimum(good, valid)
        out[np.ix_(in_rows, in_cols)] = good[np.ix_(rows - top, cols - left)]
        return out


class Masks:
    """All masks of a scene on one source grid; a context manager."""

    def __init__(self, inputs: Inputs, source: dict, threads: int, cache_bytes: int = 0):
        with contextlib.ExitStack() as stack:
            self.samplers = [
                stack.enter_context(MaskSampler(inputs, role, source, threads, cache_bytes)) for role in inputs.masks
            ]
            self._stack = stack.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    @property
    def readers(self) -> list[CogReader]:
        return [sampler.reader for sampler in self.samplers]

    def read(self, window: Window) -> np.ndarray | None:
        """uint8 (rows, cols): 1 where every mask is clear; None where there is no mask."""
        parts = [sampler.read(window) for sampler in self.samplers]
        return functools.reduce(np.minimum, parts) if parts else None
