"""The target grid of a scene: which CRS, which pixels, and how much ground, as the config's section `grid` asks."""

import math
from decimal import Decimal

import numpy as np
from pyproj import CRS, Transformer
from pyproj.exceptions import CRSError

from cogmill.errors import SceneError
from cogmill.grids import IDENTITY, LARGEST_SIDE, GridSpec, apply
from cogmill.projections import Operation, Placement, crs_name, horizontal, period, source_to_map

# What lies this little beyond a multiple of the resolution is rounding noise, and too little to hold a pixel's centre.
TOLERANCE_PX = 1e-4
EDGE_POINTS, INNER_POINTS = 257, 65  # of the footprint, along an edge and along a side of the inner lattice
ALL_AROUND = 1.5 / (INNER_POINTS - 1)  # of the way around the earth: a gap between points, not one of the footprint
REFINED = 3  # times that the points about an extreme are taken eight times denser
LOST_PX = 1.0  # off the way back: the point has no place on the earth


def wants_target(params: dict) -> bool:
    """Whether `Campaign.grid_params` asks for a target other than the grid that the scene's bands share."""
    return bool(
        params.get("crs", "source") != "source"
        or params.get("resolution")
        or params.get("extent", "scene") != "scene"
        or params.get("like")
    )


def target_crs(scene: str, params: dict, source_crs: str | None) -> str | None:
    """WKT of the CRS of a scene's target; that of the scene (None without one) where `source` is asked for.

    Raises
    ------
    SceneError
        `crs`: PROJ cannot read what `grid.crs` says. `like`: the file of `grid.like` cannot be used.
    """
    if params.get("like"):
        return _read_like(scene, params["like"]).crs
    text = params.get("crs", "source")
    if text == "source":
        return source_crs
    try:
        return horizontal(text).to_wkt()
    except CRSError as error:
        raise SceneError(
            f"scene '{scene}': grid.crs is '{text}', which PROJ does not take for the CRS of a map ({error}): set "
            "source, a code such as EPSG:3035, a WKT or a PROJ text",
            "crs",
        ) from error


def target_grid(scene: str, params: dict, source: GridSpec, operation: Operation | None, suggest=None) -> GridSpec:
    """The target grid of one scene.

    Parameters
    ----------
    scene : str
        For messages.
    params : dict
        As `Campaign.grid_params` gives it: crs, resolution, aligned, extent, like.
    source : GridSpec
        The finest grid of the scene's bands.
    operation : Operation or None
        From the CRS of `source` to `target_crs`; None where both are the same.
    suggest : function, optional
        Gives the footprint in the target's CRS, as arrays x and y: for scenes without a transform.

    Raises
    ------
    SceneError
        `crs` and `like` as `target_crs`. `extent`: the scene's extent cannot be told in the target's CRS, or has too
        many pixels of that resolution.
    """
    if params.get("like"):
        grid = _read_like(scene, params["like"])
        _check_size(scene, *grid.shape[::-1], grid.pixel_size())
        return grid
    crs, extent = target_crs(scene, params, source.crs), params.get("extent", "scene")
    resolution = params.get("resolution")
    if resolution is None:
        if params.get("crs", "source") != "source" or source.transform is None:
            raise SceneError(f"scene '{scene}': the target has no resolution: set grid.resolution", "extent")
        resolution = source.pixel_size()
    if extent == "scene":
        extent = _footprint(scene, source, operation, crs, suggest)
    left, bottom, right, top = map(float, extent)
    return _lattice(scene, crs, (left, bottom, right, top), tuple(map(float, resolution)), params.get("aligned", True))


def _lattice(scene: str, crs: str | None, bounds, resolution, aligned: bool) -> GridSpec:
    """Grid of pixels of that size that holds the bounds, upright."""
    (left, bottom, right, top), (width, height) = bounds, resolution
    cols, rows = (right - left) / width, (top - bottom) / height
    _check_size(scene, cols, rows, resolution)
    if aligned:
        first_col, end_col = _outward(left, right, width)
        first_row, end_row = _outward(-top, -bottom, height)
        left, top = _multiple(first_col, width), -_multiple(first_row, height)
        cols, rows = end_col - first_col, end_row - first_row
    else:
        cols, rows = (max(math.ceil(count - TOLERANCE_PX), 1) for count in (cols, rows))
    # plus 0: no minus zero
    return GridSpec(crs, (width, 0.0, left + 0.0, 0.0, -height, top + 0.0), (rows, cols))


def _outward(low: float, high: float, step: float) -> tuple[int, int]:
    """Numbers of the multiples of `step` that enclose low and high."""
    first = math.floor(low / step + TOLERANCE_PX)
    return first, max(math.ceil(high / step - TOLERANCE_PX), first + 1)


def _multiple(number: int, step: float) -> float:
    """`number` times a decimal step, rounded once: 3 * 0.1 is 0.3."""
    return float(number * Decimal(repr(step)))


def _check_size(scene: str, cols: float, rows: float, resolution) -> None:
    if max(cols, rows) <= LARGEST_SIDE:
        return
    width, height = resolution
    raise SceneError(
        f"scene '{scene}': the target would have {cols:.10g} x {rows:.10g} pixels (columns x rows) of {width:g} x "
        f"{height:g}; at most {LARGEST_SIDE} a side are made. Set a larger grid.resolution, which is in units of "
        "grid.crs (degrees in geographic ones), a smaller grid.extent, or another grid.like",
        "extent",
    )


def _read_like(scene: str, path: str) -> GridSpec:
    """Grid of the file of `grid.like`."""
    import rasterio
    from rasterio.errors import RasterioError

    what = f"scene '{scene}': {path}, which grid.like names"
    try:
        with rasterio.open(path) as file:
            crs, transform, shape = file.crs, tuple(file.transform)[:6], file.shape
    except RasterioError as error:
        raise SceneError(f"{what}, cannot be read as a raster: {error}", "like") from error
    lacks = [word for word, there in (("CRS", crs), ("transform", transform != IDENTITY)) if not there]
    if lacks:
        raise SceneError(
            f"{what}, has no {' and no '.join(lacks)}; it needs both. Name another file, or set grid.crs and "
            "grid.resolution instead",
            "like",
        )
    try:
        return GridSpec(horizontal(crs.to_wkt()).to_wkt(), transform, shape)
    except CRSError as error:
        raise SceneError(f"{what}, has a CRS that PROJ cannot use: {error}", "like") from error


def _footprint(scene: str, source: GridSpec, operation: Operation | None, crs: str | None, suggest) -> tuple:
    """(left, bottom, right, top) of a scene in the target's CRS."""
    if suggest:
        x, y = (np.asarray(values, np.float64).ravel() for values in suggest())
        known, around = _known(scene, crs, x, y)
        return _bounds(around(x[known]), y[known])
    if source.transform is None:
        raise SceneError(f"scene '{scene}': it has no transform that tells its extent: set grid.extent", "extent")
    if operation is None:
        rows, cols = source.shape
        return _bounds(*apply(source.transform, np.array([0.0, cols, 0.0, cols]), np.array([0.0, 0.0, rows, rows])))
    place = _Place(source, operation, crs)
    cols, rows = _sample_points(source.shape)
    x, y = place(cols, rows)
    known, around = _known(scene, crs, x, y)
    x, y, cols, rows = around(x[known]), y[known], cols[known], rows[known]
    bounds = _refined(place, around, cols, rows, x, y)
    return _within_map(place.crs, _over_poles(place, bounds))


def _bounds(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float, float]:
    return float(x.min()), float(y.min()), float(x.max()), float(y.max())


def _known(scene: str, crs: str | None, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, "_Around"]:
    """Which points have a place, and the turn around the earth on which they lie."""
    known = np.isfinite(x) & np.isfinite(y)
    if not known.any():
        raise SceneError(
            f"scene '{scene}': none of its points has a place in {crs_name(horizontal(crs)) if crs else 'its CRS'}: "
            "set grid.extent to what is wanted of it, or another grid.crs",
            "extent",
        )
    return known, _Around(x[known], horizontal(crs) if crs else None)


class _Place:
    """Where source pixels lie in the target's CRS; NaN where they have no place on the earth.

    A projected map is a part of a plane: PROJ gives places to points beside it too (beyond the edge of a sinusoidal
    world, say), which do not lead back to where they came from.
    """

    def __init__(self, source: GridSpec, operation: Operation, crs: str):
        self.source, self.operation, self.crs = source, operation, horizontal(crs)
        source_crs = horizontal(source.crs)
        self.geographic_source = source_crs.is_geographic
        self.back = Placement(source, GridSpec(crs, IDENTITY, (1, 1)), operation)
        self.whole_plane = period(source_crs) is not None  # x of these has no end

    def __call__(self, cols: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, y = source_to_map(self.source, self.operation, cols, rows)
        if not self.whole_plane:
            with np.errstate(invalid="ignore"):
                back_cols, back_rows = self.back.to_source(x, y)
                lost = ~(np.hypot(back_cols - cols, back_rows - rows) <= LOST_PX)
            x, y = np.where(lost, np.nan, x), np.where(lost, np.nan, y)
        return x, y


class _Around:
    """Takes x from one turn around the earth, so that a footprint over the antimeridian stays in one piece."""

    def __init__(self, x: np.ndarray, crs):
        self.period, self.middle = period(crs) if crs else None, None
        if self.period is None:
            return
        turned = x % self.period
        order = np.argsort(turned)
        gaps = np.diff(turned[order], append=turned[order[0]] + self.period)
        widest = int(gaps.argmax())
        if gaps[widest] <= ALL_AROUND * self.period:
            return  # the whole way around: where it is cut is PROJ's choice
        start = float(x[order[(widest + 1) % len(x)]])
        if crs.is_geographic and start >= self.period / 2 * (1 - 1e-12):
            start -= self.period
        self.middle = start + float(self.period - gaps[widest]) / 2

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self.middle is None:
            return x
        with np.errstate(invalid="ignore"):
            return x - self.period * np.round((x - self.middle) / self.period)


def _sample_points(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Points along the edges of a raster and on a lattice within: (columns, rows)."""
    rows, cols = map(float, shape)
    edge, inner = np.linspace(0, 1, EDGE_POINTS), np.linspace(0, 1, INNER_POINTS)
    u, v = (points.ravel() for points in np.meshgrid(inner, inner))
    zero, one = np.zeros_like(edge), np.ones_like(edge)
    u = np.concatenate([u, edge, edge, zero, one])
    v = np.concatenate([v, zero, one, edge, edge])
    return u * cols, v * rows


def _refined(place: _Place, around: _Around, cols, rows, x, y) -> tuple[float, float, float, float]:
    """The bounds of the points, after looking between those about each of the four extremes."""
    size = place.source.shape[::-1]
    bounds = []
    for values, axis, sign in ((x, 0, -1), (y, 1, -1), (x, 0, 1), (y, 1, 1)):
        at = int((sign * values).argmax())
        best, col, row = values[at], cols[at], rows[at]
        reach = np.array(size) / (INNER_POINTS - 1)
        for _ in range(REFINED):
            near = np.linspace(-reach, reach, 17).T
            c, r = np.meshgrid(np.clip(col + near[0], 0, size[0]), np.clip(row + near[1], 0, size[1]))
            px, py = place(c, r)
            found = (around(px), py)[axis]
            found = np.where(np.isfinite(px) & np.isfinite(py), sign * found, -np.inf)
            at = np.unravel_index(found.argmax(), found.shape)
            if found[at] > sign * best:
                best, col, row = sign * found[at], c[at], r[at]
            reach = reach / 8
        bounds.append(float(best))
    return tuple(bounds)


def _over_poles(place: _Place, bounds: tuple) -> tuple:
    """Bounds in a geographic CRS of a raster that holds a pole: all longitudes, up to 90 degrees."""
    if not place.crs.is_geographic or place.geographic_source:
        return bounds
    half = period(place.crs) / 2
    left, bottom, right, top = bounds
    for pole in (-half / 2, half / 2):
        col, row = place.back.to_source(np.zeros(1), np.full(1, pole))
        if 0 < col[0] < place.source.shape[1] and 0 < row[0] < place.source.shape[0]:
            left, right = -half, half
            bottom, top = min(bottom, pole), max(top, pole)
    return left, bottom, right, top


def _within_map(crs: CRS, bounds: tuple) -> tuple:
    """Bounds without what Mercator's map shows beyond 85.05 degrees, on its way to infinity: the world is a square."""
    width = None if crs.is_geographic else period(crs)
    if width is None:
        return bounds
    equator = Transformer.from_crs(crs.geodetic_crs, crs, always_xy=True).transform(0, 0)[1]
    left, bottom, right, top = bounds
    low, high = equator - width / 2, equator + width / 2
    if bottom < high < top:
        top = high
    if bottom < low < top:
        bottom = low
    return left, bottom, right, top
