"""Control grids: exact source coordinates at nodes of the target, good enough for all pixels between them.

Node (i, j) is the centre of target pixel (i * step, j * step). Between four nodes coordinates are interpolated
bilinearly; cells where that is not good enough are marked, and computed by PROJ pixel by pixel.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rasterio
import xxhash
from rasterio.errors import RasterioError
from rasterio.io import MemoryFile

from cogmill.errors import DamagedRecordError
from cogmill.grids import GridSpec, apply, compose
from cogmill.ledger import write_bytes
from cogmill.projections import Placement, source_to_map

STEPS = (64, 32, 16, 8)
MOST_NODES = 1 << 25  # half a gigabyte of coordinates; larger targets have more cells computed exactly instead
BLOCK_CELLS = 1 << 15  # measured at a time
# Of a kernel around a pixel (lanczos: 3) and of the corners of a target pixel that touches the raster (2).
MARGIN_PX = 4.0
FOOTPRINT_POINTS = 65  # along each side of the source

# Where a cell is measured, as (u, v) of its width and height: along the upper and lower edge, along the left and right
# one, and in the middle.
QUARTERS = (0.25, 0.5, 0.75)
SAMPLES = np.array(
    [(u, v) for v in (0, 1) for u in QUARTERS] + [(u, v) for u in (0, 1) for v in QUARTERS] + [(0.5, 0.5)]
)
ACROSS, DOWN, MIDDLE = slice(0, 6), slice(6, 12), 12
EDGE_MIDDLES = [1, 4, 7, 10]
CORNERS = np.array([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])

# What `_bound` leaves out, the terms of fourth order along an edge, was below 3 % of it wherever it was tried, except
# at singularities, which are computed exactly. At a kink (datum shifts by grids have them from cell to cell) samples
# may miss a seventh of the peak. Below that there are the last digits of PROJ's coordinates.
SAFETY = 1.2
NOISE_PX, NOISE_DIGITS = 1e-9, 8
# PROJ's Robinson comes from a table, with a jump at every fifth degree of latitude
ROBINSON_M = 1.0


@dataclass
class ControlGrid:
    """Source coordinates at the nodes of a target.

    Parameters
    ----------
    step : int
        Target pixels from node to node.
    x, y : (R, C) float64
        Source column and row, corner origin; NaN at nodes that no interpolated cell needs.
    exact : (R - 1, C - 1) bool
        Cells whose pixels PROJ must place one by one.
    error_px : float
        Upper bound of the interpolation's error in all other cells that touch the source, in source pixels.
    """

    step: int
    x: np.ndarray
    y: np.ndarray
    exact: np.ndarray
    error_px: float

    def at(self, cols, rows) -> tuple[np.ndarray, np.ndarray]:
        """Interpolated source coordinates (x, y) of target pixel coordinates, corner origin.

        NaN, or a place off the source, where the target does not touch it; of no meaning in exact cells.
        """
        cols, rows = np.broadcast_arrays(np.asarray(cols, np.float64) - 0.5, np.asarray(rows, np.float64) - 0.5)
        j, i = (
            np.clip(np.floor(values / self.step), 0, size - 2).astype(np.int64)
            for values, size in ((cols, self.x.shape[1]), (rows, self.x.shape[0]))
        )
        u, v = (cols - j * self.step) / self.step, (rows - i * self.step) / self.step
        return _between_nodes(self.x, i, j, u, v), _between_nodes(self.y, i, j, u, v)

    def is_exact(self, cols, rows) -> np.ndarray:
        """Whether target pixel coordinates lie in an exact cell."""
        j, i = (
            np.clip(np.floor((np.asarray(values) - 0.5) / self.step), 0, size - 1).astype(np.int64)
            for values, size in ((cols, self.exact.shape[1]), (rows, self.exact.shape[0]))
        )
        return self.exact[i, j]

    def save(self, path: str | Path, target: GridSpec, max_error_px: float, operation: str) -> str:
        """Write it as a GeoTIFF that any GIS can open, and return the file's xxh3-64 as hex."""
        step, (rows, cols) = self.step, self.x.shape
        profile = {"driver": "GTiff", "height": rows, "width": cols, "count": 2, "dtype": "float64"}
        profile |= {"crs": target.crs, "transform": _node_transform(target.transform, step)}
        profile |= {"tiled": True, "blockxsize": 256, "blockysize": 256, "compress": "DEFLATE", "predictor": 3}
        good = np.full((rows, cols), 255, np.uint8)
        good[:-1, :-1][self.exact] = 0
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), MemoryFile() as memory:
            with memory.open(**profile, bigtiff="IF_SAFER") as file:
                file.update_tags(AREA_OR_POINT="Point")
                file.update_tags(
                    COGMILL_STEP=step,
                    COGMILL_ERROR_PX=repr(float(self.error_px)),
                    COGMILL_MAX_ERROR_PX=repr(float(max_error_px)),
                    COGMILL_OPERATION=operation,
                )
                file.descriptions = ("source column", "source row")
                file.write(self.x, 1)
                file.write(self.y, 2)
                file.write_mask(good)
            data = memory.read()
        write_bytes(path, data)
        return xxhash.xxh3_64_hexdigest(data)

    @classmethod
    def load(cls, path: str | Path, checksum: str) -> "ControlGrid":
        """Read what `save` wrote.

        Raises
        ------
        DamagedRecordError
            The file is not there, or not the one of that checksum.
        """
        path = Path(path)
        again = f"delete {path.parent / 'record.json'} and run again"
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise DamagedRecordError(f"{path} (a control grid) is not there: {again}") from error
        found = xxhash.xxh3_64_hexdigest(data)
        if found != checksum:
            raise DamagedRecordError(
                f"{path} (a control grid) was changed: its checksum is {found}, recorded was {checksum}: {again}"
            )
        try:
            with MemoryFile(data) as memory, memory.open() as file:
                x, y = file.read()
                exact = file.dataset_mask()[:-1, :-1] == 0
                tags = file.tags()
            return cls(int(tags["COGMILL_STEP"]), x, y, exact, float(tags["COGMILL_ERROR_PX"]))
        except (RasterioError, KeyError, ValueError) as error:
            raise DamagedRecordError(f"{path} is no control grid of cogmill ({error}): {again}") from error


def _node_transform(transform: tuple[float, ...], step: int) -> rasterio.Affine:
    """Of a raster whose pixels lie around the nodes."""
    start = 0.5 - step / 2
    return rasterio.Affine(*compose(transform, (step, 0.0, start, 0.0, step, start)))


def _between_nodes(nodes: np.ndarray, i, j, u, v) -> np.ndarray:
    """Bilinear interpolation; the order of operations is that of the kernels, bit by bit."""
    n00, n01, n10, n11 = nodes[i, j], nodes[i, j + 1], nodes[i + 1, j], nodes[i + 1, j + 1]
    left = n00 + (n10 - n00) * v
    right = n01 + (n11 - n01) * v
    return left + (right - left) * u


def nodes_alone(placement: Placement) -> tuple[ControlGrid, np.ndarray]:
    """As `make`, with the largest step and any error: for who places each pixel exactly and asks where."""
    return _measured(placement, STEPS[0], np.inf, footprint(placement))


def make(placement: Placement, max_error_px: float) -> tuple[ControlGrid, np.ndarray]:
    """Control grid of a scene, and which of its cells touch the source (conservatively).

    The step is the largest of STEPS with which PROJ has the least to do: it is halved while the pixels of the cells
    that fail are more than the points that measuring the finer grid costs. A few singular cells (around a pole, along
    the antimeridian or the edge of the globe) thus make no finer grid for all.
    """
    seeds = footprint(placement)
    step = _first_step(placement, max_error_px, seeds)
    while True:
        grid, touched = _measured(placement, step, max_error_px, seeds)
        if not _worth_halving(placement.target, step, int(grid.exact.sum()), int(touched.sum())):
            return grid, touched
        step //= 2


def footprint(placement: Placement) -> tuple[np.ndarray, np.ndarray]:
    """Target pixel coordinates (cols, rows) of points all over the source, as far as they fall on the target."""
    cols, rows = (np.linspace(0, size, FOOTPRINT_POINTS) for size in placement.source.shape[::-1])
    x, y = source_to_map(placement.source, placement.operation, *np.meshgrid(cols, rows))
    return placement.on_target(x, y)


def hits(placement: Placement, grid: ControlGrid, touched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Some pixels of the target that touch the source, and how many source pixels each is; both empty where none does.

    Returns
    -------
    centres : (n, 2) float64
        Column and row.
    steps : (n, 2, 2) float64
        Source (x, y) from the left edge to the right one, and from the upper edge to the lower one.
    """
    rows, cols = placement.target.shape
    some = [np.unique(np.linspace(0, size - 1, 24).astype(int)) + 0.5 for size in (cols, rows)]
    seeds = np.minimum(np.floor(np.stack(footprint(placement), axis=-1)), (cols - 1, rows - 1)) + 0.5
    points = np.concatenate([np.stack(np.meshgrid(*some), axis=-1).reshape(-1, 2), seeds])
    found = _hits_among(placement, np.unique(points, axis=0))
    for i, j in np.argwhere(touched):
        if len(found[0]):
            break
        # a source smaller than a cell, or one beside the target
        first_row, first_col = i * grid.step, j * grid.step
        cell_cols = np.arange(first_col, min(first_col + grid.step, cols)) + 0.5
        cell_rows = np.arange(first_row, min(first_row + grid.step, rows)) + 0.5
        found = _hits_among(placement, np.stack(np.meshgrid(cell_cols, cell_rows), axis=-1).reshape(-1, 2))
    return found


def _hits_among(placement: Placement, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `hits`, of these pixels."""
    rows, cols = placement.source.shape
    offsets = np.array([[0, 0], *(CORNERS - 0.5)])
    x, y = placement.to_source(*np.moveaxis(centres[:, np.newaxis] + offsets, -1, 0))
    with np.errstate(invalid="ignore"):
        inside = (x[:, 0] >= 0) & (x[:, 0] < cols) & (y[:, 0] >= 0) & (y[:, 0] < rows)
        x, y = x[:, 1:], y[:, 1:]
        inside |= (
            (x.min(axis=1) < cols)
            & (x.max(axis=1) > 0)
            & (y.min(axis=1) < rows)
            & (y.max(axis=1) > 0)
            & (np.ptp(x, axis=1) < placement.turn_px() / 2)
        )
    across = np.stack([x[:, 1] + x[:, 3] - x[:, 0] - x[:, 2], y[:, 1] + y[:, 3] - y[:, 0] - y[:, 2]], axis=-1) / 2
    down = np.stack([x[:, 2] + x[:, 3] - x[:, 0] - x[:, 1], y[:, 2] + y[:, 3] - y[:, 0] - y[:, 1]], axis=-1) / 2
    return centres[inside], np.stack([across, down], axis=1)[inside]


def _node_count(target: GridSpec, step: int) -> tuple[int, int]:
    return target.shape[0] // step + 2, target.shape[1] // step + 2


def _worth_halving(target: GridSpec, step: int, failing: int, touched: int) -> bool:
    rows, cols = _node_count(target, step // 2)
    points = 4 * touched * (len(SAMPLES) + 1)
    return step > STEPS[-1] and failing * step**2 > points and rows * cols <= MOST_NODES


def _first_step(placement: Placement, max_error_px: float, seeds) -> int:
    """The step that a sample of the cells asks for."""
    for step in STEPS[:-1]:
        i, j = _some_cells(placement.target, step, seeds)
        x, y = _nodes_of(placement, step, i[:, np.newaxis] + [0, 0, 1, 1], j[:, np.newaxis] + [0, 1, 0, 1])
        touched, bound = _measure(placement, step, i, j, x, y)
        touched |= _on_seeds(placement.target, step, seeds)[i, j]
        failing = touched & ~(bound <= max_error_px)
        if not _worth_halving(placement.target, step, int(failing.sum()), int(touched.sum())):
            return step
    return STEPS[-1]


def _some_cells(target: GridSpec, step: int, seeds) -> tuple[np.ndarray, np.ndarray]:
    """Cells (i, j) on which the source is known to lie, and some all over the target."""
    rows, cols = (size - 1 for size in _node_count(target, step))
    chosen = np.zeros((rows, cols), bool)
    some = [np.unique(np.linspace(0, size - 1, 24).astype(int)) for size in (rows, cols)]
    chosen[np.ix_(*some)] = True
    return np.nonzero(chosen | _on_seeds(target, step, seeds))


def _on_seeds(target: GridSpec, step: int, seeds) -> np.ndarray:
    """Cells that hold one of the points."""
    rows, cols = (size - 1 for size in _node_count(target, step))
    marked = np.zeros((rows, cols), bool)
    j, i = (
        np.clip(np.floor((points - 0.5) / step), 0, size - 1).astype(int)
        for points, size in zip(seeds, (cols, rows), strict=True)
    )
    marked[i, j] = True
    return marked


def _nodes_of(placement: Placement, step: int, i, j) -> tuple[np.ndarray, np.ndarray]:
    return placement.to_source(j * step + 0.5, i * step + 0.5)


def _measured(placement: Placement, step: int, max_error_px: float, seeds) -> tuple[ControlGrid, np.ndarray]:
    """Control grid of one step, with all cells that touch the source measured; and which these are."""
    rows, cols = _node_count(placement.target, step)
    x, y = np.empty((rows, cols)), np.empty((rows, cols))
    height = max(1, BLOCK_CELLS // cols)
    for top in range(0, rows, height):
        block = np.broadcast_arrays(np.arange(top, min(top + height, rows))[:, np.newaxis], np.arange(cols))
        x[top : top + height], y[top : top + height] = _nodes_of(placement, step, *block)
    touched, exact = _on_seeds(placement.target, step, seeds), np.zeros((rows - 1, cols - 1), bool)
    error = 0.0
    for top in range(0, rows - 1, height):
        found = _candidates(placement.source, x, y, top, min(top + height, rows - 1))
        i, j = np.nonzero(found | touched[top : top + height])
        i += top
        corners = i[:, np.newaxis] + [0, 0, 1, 1], j[:, np.newaxis] + [0, 1, 0, 1]
        touching, bound = _measure(placement, step, i, j, x[corners], y[corners])
        touching |= touched[i, j]
        touched[i, j], good = touching, bound <= max_error_px
        exact[i, j] = touching & ~good
        error = max(error, float(bound[touching & good].max(initial=0.0)))
    unused = ~_corners_of(touched & ~exact)
    x[unused] = y[unused] = np.nan
    return ControlGrid(step, x, y, exact, error), touched


def _corners_of(cells: np.ndarray) -> np.ndarray:
    """Nodes at the corners of these cells.

    All others become NaN. A cell that does not touch the source has then either a NaN, and so have its pixels, or
    four nodes whose hull keeps off the source: no pixel of it can come to lie there.
    """
    nodes = np.zeros((cells.shape[0] + 1, cells.shape[1] + 1), bool)
    for rows in (slice(None, -1), slice(1, None)):
        for cols in (slice(None, -1), slice(1, None)):
            nodes[rows, cols] |= cells
    return nodes


def _candidates(source: GridSpec, x: np.ndarray, y: np.ndarray, top: int, bottom: int) -> np.ndarray:
    """Cells in rows top to bottom that are worth measuring: near the source, or near nodes without coordinates."""
    first, last = max(top - 1, 0), min(bottom + 2, len(x))
    finite = np.isfinite(x[first:last])
    corners = [
        values[top + down : bottom + down, across : across + x.shape[1] - 1]
        for values in (x, y)
        for down in (0, 1)
        for across in (0, 1)
    ]
    corners_x, corners_y = np.stack(corners[:4], axis=-1), np.stack(corners[4:], axis=-1)
    near = _near(source, corners_x, corners_y, 0.5)
    # beside the edge of the globe a cell may hold a part of it between its nodes
    around = np.pad(finite, 1)
    around = around[:-2] | around[1:-1] | around[2:]
    around = around[:, :-2] | around[:, 1:-1] | around[:, 2:]
    around = around[top - first : bottom - first + 1]
    beside = around[:-1, :-1] | around[:-1, 1:] | around[1:, :-1] | around[1:, 1:]
    return near | (beside & ~np.isfinite(corners_x).all(axis=-1))


def _near(source: GridSpec, x: np.ndarray, y: np.ndarray, more: float, bound=0.0) -> np.ndarray:
    """Whether points (last axis), with what surrounds them, come near the source; False where one is NaN.

    Surroundings are `more` times the larger side of the points' box, `bound` and MARGIN_PX.
    """
    rows, cols = source.shape
    left, right, top, bottom = x.min(axis=-1), x.max(axis=-1), y.min(axis=-1), y.max(axis=-1)
    around = MARGIN_PX + bound + more * np.maximum(right - left, bottom - top)
    return (left <= cols + around) & (right >= -around) & (top <= rows + around) & (bottom >= -around)


def _measure(placement: Placement, step: int, i, j, x, y) -> tuple[np.ndarray, np.ndarray]:
    """Which of some cells touch the source, and the bound of their interpolation's error (NaN: none is known).

    Parameters
    ----------
    i, j : (n,) int
        Rows and columns of the cells.
    x, y : (n, 4) float64
        At their corners: upper left, upper right, lower left, lower right.
    """
    cols = (j[:, np.newaxis] + SAMPLES[:, 0]) * step + 0.5
    rows = (i[:, np.newaxis] + SAMPLES[:, 1]) * step + 0.5
    sample_x, sample_y = placement.to_source(cols, rows)
    with np.errstate(invalid="ignore"):
        bound = SAFETY * np.hypot(_bound(sample_x - _inside(x), i, j, step), _bound(sample_y - _inside(y), i, j, step))
        bound += _noise(placement)
        all_x, all_y = np.concatenate([x, sample_x], axis=1), np.concatenate([y, sample_y], axis=1)
        # half a pixel before the first node, or after a cell's last pixel, belongs to a cell too
        touching = _near(placement.source, all_x, all_y, 1 / step, bound)
    known = np.isfinite(all_x)
    some = known.any(axis=1)
    return touching | (some & ~known.all(axis=1)), bound


def _noise(placement: Placement) -> float:
    """Pixels that rounding in float64 may make of a map coordinate: at northing 5,000,000 1e-7 pixels of 2 cm."""
    source = placement.source
    rows, cols = source.shape
    x, y = apply(source.transform, np.array([0, cols, 0, cols]), np.array([0, 0, rows, rows]))
    noise = NOISE_DIGITS * np.finfo(np.float64).eps * max(np.abs(x).max(), np.abs(y).max())
    if placement.operation and "proj=robin" in placement.operation.definition:
        noise += placement.source_metres(ROBINSON_M)
    return NOISE_PX + noise / min(source.pixel_size())


def _inside(corners: np.ndarray) -> np.ndarray:
    """Interpolated values at SAMPLES of cells, (n, 13)."""
    u, v = SAMPLES.T
    n00, n01, n10, n11 = (corners[:, k, np.newaxis] for k in range(4))
    left, right = n00 + (n10 - n00) * v, n01 + (n11 - n01) * v
    return left + (right - left) * u


def _bound(error: np.ndarray, i, j, step: int) -> np.ndarray:
    """Largest error anywhere in cells, of errors at SAMPLES (n, 13), of one coordinate.

    Up to terms of third order the error inside is that along the upper and lower edge, blended, plus that along the
    left and right edge, blended: at most the largest of the one plus the largest of the other. (In a conformal map the
    two cancel in the middle of the cell, so the middle says nothing of the whole.) What the middle shows
    beyond the sum is of fourth order and added.
    """
    across, down = error[:, ACROSS], error[:, DOWN]
    # before the first node, for half a pixel, the error goes on with its sign turned
    beyond = 2 / step * (1 + 0.5 / step)
    low, high = 0.0, 0.0
    for part, first in ((across, j == 0), (down, i == 0)):
        least, most = part.min(axis=1), part.max(axis=1)
        turned = np.where(first, beyond, 0.0)
        low = low + np.minimum(np.minimum(least, -turned * most), 0)
        high = high + np.maximum(np.maximum(most, -turned * least), 0)
    rest = np.abs(error[:, MIDDLE] - error[:, EDGE_MIDDLES].sum(axis=1) / 2)
    return np.maximum(-low, high) + rest
