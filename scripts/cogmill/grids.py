"""Pixel grids: which ground a raster's pixels cover, and how it is cut into tiles and windows."""

from dataclasses import dataclass

TILE = 512


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

    def tiles(self) -> tuple[int, int]:
        """Number of 512 x 512 tiles: (tile rows, tile columns)."""
        return -(-self.shape[0] // TILE), -(-self.shape[1] // TILE)


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
