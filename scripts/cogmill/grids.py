"""Pixel grids: which ground a raster's pixels cover, and how it is cut into tiles and windows."""

import math
from dataclasses import dataclass

TILE = 512
LARGEST_SIDE = 200_000  # pixels; nobody's target is larger, and metres taken for degrees are
IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


@dataclass(frozen=True)
class Window:
    """A block of whole pixels: `row`, `col` of its top left pixel, `rows` x `cols` in size."""

    row: int
    col: int
    rows: int
    cols: int

    def __post_init__(self):
        if min(self.row, self.col) < 0 or min(self.rows, self.cols) < 1:
            raise ValueError(f"window {self} lies before pixel 0 or is empty")


@dataclass(frozen=True)
class GridSpec:
    """The grid of a raster.

    Parameters
    ----------
    crs : str or None
        WKT of the coordinate reference system; None where the file names none.
    transform : tuple of 6 floats or None
        Affine (a, b, c, d, e, f) of pixel corners: x = a*col + b*row + c, y = d*col + e*row + f.
    shape : (rows, cols)
    """

    crs: str | None
    transform: tuple[float, float, float, float, float, float] | None
    shape: tuple[int, int]

    def __post_init__(self):
        rows, cols = self.shape
        if rows < 1 or cols < 1:
            raise ValueError(f"grid of {rows} x {cols} pixels has no pixel")
        if self.transform is not None and len(self.transform) != 6:
            raise ValueError(f"transform needs 6 numbers, not {len(self.transform)}")

    def to_json(self) -> dict:
        return {
            "crs": self.crs,
            "transform": self.transform and list(self.transform),
            "shape": list(self.shape),
        }

    @classmethod
    def from_json(cls, doc: dict) -> "GridSpec":
        transform = doc["transform"]
        return cls(doc["crs"], tuple(transform) if transform else None, tuple(doc["shape"]))

    def pixel_size(self) -> tuple[float, float]:
        """Width and height of a pixel in units of the CRS, along the raster's own axes where they are rotated."""
        a, b, _, d, e, _ = self.transform
        return math.hypot(a, d), math.hypot(b, e)

    def tiles(self) -> tuple[int, int]:
        """Number of 512 x 512 tiles: (tile rows, tile columns)."""
        return -(-self.shape[0] // TILE), -(-self.shape[1] // TILE)


def apply(affine: tuple[float, ...], col, row):
    """Where an affine leads: (x, y); numbers or arrays."""
    a, b, c, d, e, f = affine
    return a * col + b * row + c, d * col + e * row + f


def inverse(affine: tuple[float, ...]) -> tuple[float, ...]:
    """The affine that leads back."""
    a, b, c, d, e, f = affine
    size = a * e - b * d
    return e / size, -b / size, (b * f - e * c) / size, -d / size, a / size, (d * c - a * f) / size


def compose(outer: tuple[float, ...], inner: tuple[float, ...]) -> tuple[float, ...]:
    """The affine that applies `inner` first, then `outer`."""
    a, b, c, d, e, f = outer
    ia, ib, ic, id_, ie, if_ = inner
    return (
        a * ia + b * id_,
        a * ib + b * ie,
        a * ic + b * if_ + c,
        d * ia + e * id_,
        d * ib + e * ie,
        d * ic + e * if_ + f,
    )


def between(from_: tuple[float, ...], to: tuple[float, ...]) -> tuple[float, ...]:
    """Affine from the pixels of one transform to the pixels of another one in the same CRS.

    The origins are subtracted before anything is divided: a pixel's centre may fall right on an edge of the other's
    pixels, and the last digits of a northing must not decide on which side.
    """
    a, b, left, d, e, top = to
    size = a * e - b * d
    vectors = ((from_[0], from_[3]), (from_[1], from_[4]), (from_[2] - left, from_[5] - top))
    cols = [(e * x - b * y) / size for x, y in vectors]
    rows = [(a * y - d * x) / size for x, y in vectors]
    return (*cols, *rows)


def windows(shape: tuple[int, int], tile_rows: int, tile_cols: int | None = None):
    """Cut a raster into windows of whole tiles, row by row.

    Parameters
    ----------
    shape : (rows, cols)
    tile_rows : int
        Height of a window in tiles.
    tile_cols : int, optional
        Width in tiles; the whole width by default. Needs `tile_rows` 1, so that tiles come in row-major order.

    Yields
    ------
    Window
    """
    rows, cols = shape
    if tile_cols is not None and tile_rows != 1 and tile_cols * TILE < cols:
        raise ValueError("windows narrower than the raster must be one tile row high")
    height = tile_rows * TILE
    width = cols if tile_cols is None else tile_cols * TILE
    for row in range(0, rows, height):
        for col in range(0, cols, width):
            yield Window(row, col, min(height, rows - row), min(width, cols - col))
