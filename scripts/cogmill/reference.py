"""Products once more, in plain float64 NumPy: where pixels lie, what they are resampled from, and their formula.

It shares no code with what makes the products (kernels, control grids, radiometry, masks, the reader of tiles), so
that a mistake there shows as a difference here. It is slow, and meant for a tile.
"""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyproj
import rasterio
from pyproj.enums import TransformDirection
from rasterio.windows import Window as RasterWindow

from cogmill.indices import literal_exponent
from cogmill.ledger import decode_number
from cogmill.resampling import AREA_METHODS

# GDAL's: a coordinate that is this little before a pixel's edge counts as on it.
EDGE = 1e-10
OUTSIDE = 2.0  # pixels around the raster in which corners of a target pixel may lie that overlaps it
UNIT = 2.0**-24  # half the distance of float32 numbers, relative
TAP_NOISE = 4 * UNIT  # what resampling may add to a value, relative to the largest one that it takes in
LARGEST = float(np.finfo(np.float32).max)
OVERFLOW = LARGEST * (1 + 2.0**-25)  # what float32 rounds to infinity
SAME = 1e-6  # pixels by which an affine of a record may differ from the one that the transforms say
COORDINATE_NOISE = 1e-9  # pixels that rounding may move a coordinate by
ROUND_TRIP_PX, ROUND_TRIP_M = 1e-2, 1.0
EARTH_RADIUS_M = 6378137.0
PROJ_VERSIONS_M = 1e-3  # how far apart two versions of PROJ may place a point: LAEA of 9.5 and 9.7, half a millimetre


@dataclass(frozen=True)
class Block:
    """Pixels of a raster: `row`, `col` of the top left one, `rows` x `cols` in size."""

    row: int
    col: int
    rows: int
    cols: int

    def raster_window(self) -> RasterWindow:
        return RasterWindow(self.col, self.row, self.cols, self.rows)


def forward(affine, col, row):
    """Map coordinates of pixel coordinates; without a transform they are the same."""
    if affine is None:
        return col, row
    a, b, c, d, e, f = affine
    return a * col + b * row + c, d * col + e * row + f


def back(affine, x, y):
    """Pixel coordinates of map coordinates."""
    if affine is None:
        return x, y
    a, b, c, d, e, f = affine
    x, y = x - c, y - f
    return (e * x - b * y) / (a * e - b * d), (a * y - d * x) / (a * e - b * d)


class Places:
    """Where the pixels of a block of the target lie in a scene's source rasters, each by PROJ itself.

    Parameters
    ----------
    record : dict
        The scene's `grids` record.
    block : Block
        Of the target.

    Attributes
    ----------
    error : float
        Pixels of sources[0] by which the product's coordinates may differ from these.
    unsure : (n,) bool
        Pixels (row-major) at the seam of the earth, or where it is rounding that decides whether they have a place.
    """

    def __init__(self, record: dict, block: Block):
        self.block, self.target = block, record["grid"]
        self.same = record["operation"] == "identity"
        self.sources = [source["grid"] for source in record["sources"]]
        warp = record.get("warp") or {}
        operation = warp.get("projection")
        self.way = pyproj.Transformer.from_pipeline(operation["definition"]) if operation else None
        self.unsure = np.zeros(block.rows * block.cols, bool)
        lattice = self._map(0.5, 0.5, 0)
        self._centres = [[part.ravel() for part in lattice]]
        self._corners = None
        size = 1.0 if self.same or not self.sources[0]["transform"] else _pixel_size(self.sources[0]["transform"])
        known = np.abs(self._centres[0])
        largest = float(known.max(where=np.isfinite(known), initial=0.0))
        engine_error = 1e-6 if record["operation"] == "gdal" else warp.get("error_px") or 0.0
        self.error = engine_error + COORDINATE_NOISE + 8 * np.finfo(float).eps * largest / size
        # what GDAL has, or what the control grid was made by, may be another PROJ than this one
        others = {"gdal": None, "grid": operation and operation.get("proj")}
        if operation and others.get(record["operation"], pyproj.proj_version_str) != pyproj.proj_version_str:
            self.error += PROJ_VERSIONS_M / (size * _metres(pyproj.CRS(self.sources[0]["crs"])))

    def at(self, source: int, area: bool, signs=(0, 0, 0, 0), pick=slice(None)) -> list[np.ndarray]:
        """x, y of centres, or x, y of top left and of bottom right corners, in pixels of a source.

        Parameters
        ----------
        source : int
        area : bool
            Corners instead of centres.
        signs : four of -1, 0, 1
            Directions in which each coordinate is moved by `error`.
        pick : index of the block's pixels
        """
        if area and self._corners is None:
            self._corners = self._corner_points()
        points = self._corners if area else self._centres
        found = []
        for number, (x, y) in enumerate(points):
            moved = (self.error * sign for sign in signs[2 * number : 2 * number + 2])
            dx, dy = self._moved(source, *moved)
            x, y = back(self._transform(source), x[pick], y[pick])
            found += [x + dx, y + dy]
        return found

    def _transform(self, source: int):
        return None if self.same else self.sources[source]["transform"]

    def _moved(self, source: int, dx: float, dy: float) -> tuple[float, float]:
        """A shift in pixels of sources[0] as one in pixels of another source."""
        if self.same or source == 0:
            return dx, dy
        a, b, _, d, e, _ = self.sources[0]["transform"]
        to = self.sources[source]["transform"]
        return back((to[0], to[1], 0.0, to[3], to[4], 0.0), a * dx + b * dy, d * dx + e * dy)

    def _corner_points(self):
        x, y = self._map(0.0, 0.0, 1)
        return [[part[:-1, :-1].ravel() for part in (x, y)], [part[1:, 1:].ravel() for part in (x, y)]]

    def _map(self, col_shift, row_shift, more):
        """Source map coordinates of points of the block's pixels, (rows + more, cols + more)."""
        block = self.block
        col, row = np.meshgrid(
            block.col + np.arange(block.cols + more) + col_shift, block.row + np.arange(block.rows + more) + row_shift
        )
        if self.same:
            return col, row
        x, y = forward(self.target["transform"], col, row)
        if self.way:
            x, y = self._project(x, y, more)
        return self._turned(x, more), y

    def _project(self, x, y, more):
        """To the source's CRS; NaN where the way back does not lead to where it came from."""
        source_x, source_y = self.way.transform(x, y, direction=TransformDirection.INVERSE, errcheck=False)
        back_x, back_y = self.way.transform(source_x, source_y, errcheck=False)
        crs = pyproj.CRS(self.target["crs"])
        allowed = max(ROUND_TRIP_PX * _pixel_size(self.target["transform"]), ROUND_TRIP_M / _metres(crs))
        turn = _turn(crs)
        with np.errstate(invalid="ignore"):
            dx, dy = back_x - x, back_y - y
            if turn:
                dx -= turn * np.round(dx / turn)
            if crs.is_geographic:
                dx = dx * np.cos(y * crs.axis_info[0].unit_conversion_factor)
            off = np.hypot(dx, dy)
            lost = ~(off <= allowed)
            self._note((off > allowed / 10) & (off < 10 * allowed), more)
        return np.where(lost, np.nan, source_x), np.where(lost, np.nan, source_y)

    def _turned(self, x, more):
        """x of the turn around the earth whose middle is the raster's."""
        source = self.sources[0]
        turn = _turn(pyproj.CRS(source["crs"])) if source["crs"] and source["transform"] else None
        if not turn:
            return x
        rows, cols = source["shape"]
        first = forward(source["transform"], cols / 2, rows / 2)[0] - turn / 2
        with np.errstate(invalid="ignore"):
            turns = (x - first) / turn
            self._note(np.abs(turns - np.round(turns)) * turn < SAME * _pixel_size(source["transform"]), more)
            return x - turn * np.floor(turns)

    def _note(self, unsure: np.ndarray, more: int) -> None:
        if more:
            unsure = unsure[:-1, :-1] | unsure[1:, 1:]
        self.unsure |= unsure.ravel()


def _pixel_size(affine) -> float:
    a, b, _, d, e, _ = affine
    return math.sqrt(abs(a * e - b * d))


def _metres(crs: pyproj.CRS) -> float:
    """Metres of a unit of the CRS, at the equator."""
    return crs.axis_info[0].unit_conversion_factor * (EARTH_RADIUS_M if crs.is_geographic else 1.0)


def _turn(crs: pyproj.CRS) -> float | None:
    """How far a place's x is from itself once around the earth; None where x does not repeat."""
    if crs.is_geographic:
        turn = 2 * math.pi / crs.axis_info[0].unit_conversion_factor
        return round(turn) if abs(turn - round(turn)) < 1e-9 else turn
    if crs.geodetic_crs is None:
        return None
    degree = math.radians(1) / crs.geodetic_crs.axis_info[0].unit_conversion_factor
    way = pyproj.Transformer.from_crs(crs.geodetic_crs, crs, always_xy=True)
    # a degree at three meridians, of which one may lie at the map's edge, and at two parallels
    steps = []
    for lon, lat in itertools.product((-120, 0, 120), (0, 40)):
        (west, east), _ = way.transform(
            [lon * degree, (lon + 1) * degree], [lat * degree, lat * degree], errcheck=False
        )
        steps.append(east - west)
    width = float(np.median(steps))
    even = [abs(step - width) <= 1e-9 * abs(width) for step in steps]
    enough = sum(even[::2]) >= 2 and sum(even[1::2]) >= 2
    return abs(360 * width) if math.isfinite(width) and enough else None


@dataclass(frozen=True)
class Field:
    """Part of a source raster, to be resampled.

    Parameters
    ----------
    values : (rows + 2, cols + 2) float64
        NaN where invalid, and all around.
    row, col : int
        Of the first pixel inside the border.
    shape : (rows, cols)
        Of the whole raster.
    noise : as `values`, or None
        By how much each of them may be off.
    """

    values: np.ndarray
    row: int
    col: int
    shape: tuple[int, int]
    noise: np.ndarray | None = None

    @classmethod
    def of(cls, values: np.ndarray, block: Block, shape, noise=None) -> "Field":
        noise = None if noise is None else np.pad(noise, 1)
        return cls(np.pad(values, 1, constant_values=np.nan), block.row, block.col, tuple(shape), noise)

    def take(self, rows, cols) -> tuple[np.ndarray, np.ndarray | float]:
        """Values at pixels of the raster, NaN where there are none, and their noise."""
        height, width = self.values.shape
        rows = np.clip(rows.astype(np.int64) - (self.row - 1), 0, height - 1)
        cols = np.clip(cols.astype(np.int64) - (self.col - 1), 0, width - 1)
        places = rows * width + cols
        return self.values.ravel()[places], 0.0 if self.noise is None else self.noise.ravel()[places]


def resample(field: Field, method: str, coordinates) -> tuple[np.ndarray, np.ndarray | float]:
    """Values of target pixels, NaN where invalid, and by how much each may be off.

    Parameters
    ----------
    field : Field
    method : str
        One of `resampling.METHODS`.
    coordinates : list of (n,) float64
        x, y of the centres; for area methods x, y of top left and of bottom right corners.
    """
    return _over_area(field, method, *coordinates) if method in AREA_METHODS else _at_point(field, method, *coordinates)


def _at_point(field: Field, method: str, x, y):
    height, width = field.shape
    with np.errstate(invalid="ignore"):
        inside = (x >= 0) & (y >= 0) & (x + EDGE <= width) & (y + EDGE <= height)
    x, y = np.where(inside, x, 0.0), np.where(inside, y, 0.0)
    centre, noise = field.take(np.minimum(np.floor(y + EDGE), height - 1), np.minimum(np.floor(x + EDGE), width - 1))
    value = centre
    if method != "nearest":
        value, noise = {"bilinear": _bilinear, "cubic": _cubic, "lanczos": _lanczos}[method](field, x - 0.5, y - 0.5)
    return np.where(inside & ~np.isnan(centre), value, np.nan), noise


class _Sum:
    """Weighted mean of taps, invalid ones left out."""

    def __init__(self, number: int):
        self.total, self.weights, self.sizes, self.peak, self.noise = (np.zeros(number) for _ in range(5))
        self.taps = np.zeros(number, np.int64)

    def add(self, tap, noise, weight):
        valid = ~np.isnan(tap)
        tap, weight = np.where(valid, tap, 0.0), np.where(valid, weight, 0.0)
        self.total += weight * tap
        self.weights += weight
        self.sizes += np.abs(weight)
        self.peak = np.maximum(self.peak, np.abs(tap))
        self.noise = np.maximum(self.noise, np.where(valid, noise, 0.0))
        self.taps += valid

    def mean(self):
        with np.errstate(all="ignore"):
            spread = self.sizes / np.abs(self.weights)  # negative weights make errors weigh more
            return self.total / self.weights, spread * (TAP_NOISE * self.peak + self.noise)


def _separable(field: Field, x, y, first: int, weights) -> tuple[_Sum, np.ndarray]:
    """Sum over the taps from `first` on around x, y, and how many of them the raster has.

    `weights(t)` gives the weights in one direction at the fraction t.
    """
    col, row = np.floor(x), np.floor(y)
    across, down = weights(x - col), weights(y - row)
    found, there = _Sum(len(x)), np.zeros(len(x), np.int64)
    height, width = field.shape
    for i, w_row in enumerate(down):
        r = row + first + i
        for j, w_col in enumerate(across):
            c = col + first + j
            found.add(*field.take(r, c), w_row * w_col)
            there += (r >= 0) & (r < height) & (c >= 0) & (c < width)
    return found, there


def _bilinear(field: Field, x, y):
    return _separable(field, x, y, 0, lambda t: (1 - t, t))[0].mean()


def _cubic(field: Field, x, y):
    def weights(t):
        s = 1 - t
        return (
            -0.5 * t * s**2,
            1.5 * t**3 - 2.5 * t**2 + 1,
            1.5 * s**3 - 2.5 * s**2 + 1,
            -0.5 * s * t**2,
        )

    found, _ = _separable(field, x, y, -1, weights)
    value, noise = found.mean()
    some = np.flatnonzero(found.taps < 16)
    value[some], noise[some] = _bilinear(field, x[some], y[some])
    return value, noise


def _lanczos(field: Field, x, y):
    def weights(t):
        return [np.sinc(k - t) * np.sinc((k - t) / 3) for k in range(-2, 4)]

    found, there = _separable(field, x, y, -2, weights)
    value, noise = found.mean()
    value[(found.taps < there // 2) | (found.weights < 1e-6)] = np.nan
    return value, noise


def _over_area(field: Field, method: str, x0, y0, x1, y1):
    height, width = field.shape
    left, right, top, bottom = np.minimum(x0, x1), np.maximum(x0, x1), np.minimum(y0, y1), np.maximum(y0, y1)
    with np.errstate(invalid="ignore"):
        near = (left >= -OUTSIDE) & (right <= width + OUTSIDE) & (top >= -OUTSIDE) & (bottom <= height + OUTSIDE)
        near &= (right > EDGE) & (left + EDGE < width) & (bottom > EDGE) & (top + EDGE < height)
    left, right, top, bottom = (np.where(near, edge, 0.0) for edge in (left, right, top, bottom))
    (first_col, end_col), (first_row, end_row) = _touched(left, right, width), _touched(top, bottom, height)
    rows, cols = int(np.max(end_row - first_row, initial=0)), int(np.max(end_col - first_col, initial=0))
    found, stack, noises = _Sum(len(left)), [], []
    for i in range(rows):
        row = first_row + i
        for j in range(cols):
            col = first_col + j
            tap, noise = field.take(row, col)
            tap = np.where((row < end_row) & (col < end_col), tap, np.nan)
            if method == "average":
                weight = _share(col, left, right, first_col, end_col) * _share(row, top, bottom, first_row, end_row)
                found.add(tap, noise, weight)
            else:
                stack.append(tap)
                noises.append(np.where(np.isnan(tap), 0.0, noise))
    if method == "average":
        value, noise = found.mean()
    elif stack:
        value, noise = _ORDER[method](np.stack(stack, axis=1)), np.max(noises, axis=0)
    else:
        value, noise = np.full(len(left), np.nan), 0.0
    return np.where(near, value, np.nan), noise


def _touched(low, high, size: int) -> tuple[np.ndarray, np.ndarray]:
    """First pixel that an interval touches, and the one after the last; at least one, where the raster has it."""
    first = np.maximum(np.floor(low + EDGE), 0)
    end = np.minimum(np.ceil(high - EDGE), size)
    return first, np.where((first == end) & (end < size), end + 1, end)


def _share(pixel, low, high, first, end):
    """How much of a pixel an interval covers, as gdalwarp has it: only its first and last pixel can be partial."""
    share = np.where(pixel + 1 == end, 1 - (end - high), 1.0)
    share = np.where(pixel == first, 1 - (low - first), share)
    return np.where(first + 1 == end, 1.0, share)


def _median(taps: np.ndarray) -> np.ndarray:
    number = (~np.isnan(taps)).sum(axis=1)
    place = np.maximum(np.ceil(0.5 * number - 1), 0).astype(np.int64)
    return np.take_along_axis(np.sort(taps, axis=1), place[:, np.newaxis], axis=1)[:, 0]


def _mode(taps: np.ndarray) -> np.ndarray:
    """The value that is the first to reach the highest count."""
    counts = np.stack([(taps[:, : j + 1] == taps[:, j : j + 1]).sum(axis=1) for j in range(taps.shape[1])], axis=1)
    return np.take_along_axis(taps, counts.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]


# fmin and fmax leave out NaN
_ORDER = {
    "min": lambda taps: np.fmin.reduce(taps, axis=1),
    "max": lambda taps: np.fmax.reduce(taps, axis=1),
    "median": _median,
    "mode": _mode,
}


@dataclass(frozen=True)
class Number:
    """Values of a formula's step; float32 arithmetic may give others up to `error`, or anything where `unsure`."""

    value: np.ndarray
    error: np.ndarray
    unsure: np.ndarray


class Formula:
    """A formula in float64, with a bound of what float32 arithmetic makes of it.

    Parameters
    ----------
    node : tuple
        Of `indices.Expression`.
    rounded : bool
        Whether each step is rounded to float32, as the products' arithmetic does.
    """

    def __init__(self, node: tuple, rounded: bool = False):
        self.node, self.rounded = node, rounded

    def __call__(self, bands: dict) -> Number:
        """Evaluate with {name: (values, errors)}."""
        shape = np.shape(next(iter(bands.values()))[0])
        self._bands = {
            name: Number(value, np.broadcast_to(error, shape), np.zeros(shape, bool))
            for name, (value, error) in bands.items()
        }
        self._zeros = np.zeros(shape)
        with np.errstate(all="ignore"):
            return self._of(self.node)

    def _of(self, node: tuple) -> Number:
        kind = node[0]
        if kind == "num":
            return Number(self._zeros + float(np.float32(node[1])), self._zeros, self._zeros != 0)
        if kind == "name":
            return self._bands[node[1]]
        if kind == "neg":
            part = self._of(node[1])
            return Number(-part.value, part.error, part.unsure)
        if kind == "**":
            return self._power(self._of(node[1]), node[2])
        return getattr(self, _STEPS[kind])(self._of(node[1]), self._of(node[2]))

    def _add(self, a: Number, b: Number) -> Number:
        return self._step(a.value + b.value, a.error + b.error, a.unsure | b.unsure)

    def _subtract(self, a: Number, b: Number) -> Number:
        return self._step(a.value - b.value, a.error + b.error, a.unsure | b.unsure)

    def _multiply(self, a: Number, b: Number) -> Number:
        error = np.abs(a.value) * b.error + np.abs(b.value) * a.error + a.error * b.error
        return self._step(a.value * b.value, error, a.unsure | b.unsure)

    def _divide(self, a: Number, b: Number) -> Number:
        value, least = a.value / b.value, np.abs(b.value) - b.error
        error = (a.error + np.abs(value) * b.error) / least
        return self._step(value, error, a.unsure | b.unsure | ((least <= 0) & (b.error > 0)))

    def _power(self, base: Number, exponent_node: tuple) -> Number:
        exponent = literal_exponent(exponent_node)
        near_zero = (base.error > 0) & (np.abs(base.value) <= base.error)
        if exponent == 0:
            return Number(self._zeros + 1, self._zeros, base.unsure)
        if exponent == 0.5:
            value = np.sqrt(base.value)
            error = base.error / (2 * np.sqrt(np.maximum(base.value - base.error, 0)))
            return self._step(value, np.where(base.error > 0, error, 0.0), base.unsure | near_zero)
        relative = np.where(base.error > 0, base.error / np.abs(base.value), 0.0)
        if exponent is not None and exponent.is_integer():
            value, size = base.value**exponent, np.abs(base.value) ** abs(exponent)
            # a chain of products, of which any may leave float32's range
            unsure = (size > OVERFLOW / 2) & np.isfinite(size) | (size < 1e-36) & (size > 0)
            error = np.abs(value) * np.expm1(abs(exponent) * (np.log1p(relative) + 2 * UNIT))
            return self._step(value, error, base.unsure | near_zero | unsure)
        power = self._of(exponent_node)
        value = base.value**power.value
        change = np.abs(power.value) * relative + np.where(
            power.error > 0, np.abs(np.log(np.abs(base.value))) * power.error, 0.0
        )
        unsure = (2 * base.error >= np.abs(base.value)) & (base.error > 0) | (base.value <= 0) & (power.error > 0)
        return self._step(value, np.abs(value) * np.expm1(1.5 * change), base.unsure | power.unsure | unsure)

    def _step(self, value, error, unsure) -> Number:
        """A step's result: rounding to float32 is added to what its operands may be off."""
        size = np.abs(value)
        error = 1.01 * error + UNIT * size + np.where((size > 0) & (size < 1e-37), 2.0**-149, 0.0)
        unsure = unsure | np.isfinite(value) & ~(size + error < OVERFLOW) & ~(size - error > OVERFLOW)
        value = np.where(size >= OVERFLOW, np.copysign(np.inf, value), value)
        if self.rounded:
            value = value.astype(np.float32).astype(np.float64)
        return Number(value, np.where(np.isfinite(value), error, 0.0), unsure)


_STEPS = {"+": "_add", "-": "_subtract", "*": "_multiply", "/": "_divide"}


class Stored:
    """A scene's stored bands, read by GDAL: values with masks and radiometry applied.

    Parameters
    ----------
    cogs : dict
        The scene's `cogs` record.
    folder : Path
        Of its files.
    masks : dict
        {role: {"classes", "bits"}}; masks of the whole scene (kind "mask") need not be named.
    """

    def __init__(self, cogs: dict, folder: Path, masks: dict):
        self.bands, self.folder = cogs["bands"], Path(folder)
        whole = {role: {"classes": [0], "bits": []} for role, band in self.bands.items() if band["kind"] == "mask"}
        self.masks = {role: rule for role, rule in (whole | masks).items() if role in self.bands}

    def values(self, role: str, source: dict, block: Block, exact: bool = False) -> np.ndarray:
        """(rows, cols) float64, NaN where invalid; of float32 values, unless they are wanted exact.

        `source` is as the grid record has it.
        """
        band = self.bands[role]
        pixels, valid = self._read(band, block)
        scale, offset = band["radiometry"]["scale"], band["radiometry"]["offset"]
        with np.errstate(all="ignore"):
            values = pixels if (scale, offset) == (1, 0) else pixels.astype(np.float64) * scale + offset
            values = (values if exact else values.astype(np.float32)).astype(np.float64)
            valid &= ~_holds(pixels, decode_number(band["nodata"])) & (np.abs(values) <= LARGEST)
        for mask, rule in self.masks.items():
            valid &= self._clear(mask, rule, band, source["masks"].get(mask), block)
        return np.where(valid, values, np.nan)

    def _read(self, band: dict, block: Block) -> tuple[np.ndarray, np.ndarray]:
        with rasterio.open(self.folder / band["path"]) as file:
            window = block.raster_window()
            pixels = file.read(band["band"], window=window)
            valid = file.read_masks(band["band"], window=window) != 0 if band["mask"] else np.ones(pixels.shape, bool)
        return pixels, valid

    def _clear(self, role: str, rule: dict, band: dict, recorded: dict | None, block: Block) -> np.ndarray:
        """Where a mask band is fit, by nearest neighbour at the pixels of another band."""
        mask = self.bands[role]
        cols, rows = block.col + np.arange(block.cols) + 0.5, block.row + np.arange(block.rows) + 0.5
        a, c, e, f = _between(band["transform"], mask["transform"])
        cols, rows = a * cols + c, e * rows + f
        if recorded:
            a, _, c, _, e, f = recorded["affine"]
            cols = _settled(cols, a * (block.col + np.arange(block.cols) + 0.5) + c)
            rows = _settled(rows, e * (block.row + np.arange(block.rows) + 0.5) + f)
        cols, rows = (np.floor(each + EDGE).astype(np.int64) for each in (cols, rows))
        height, width = mask["shape"]
        there = np.logical_and.outer((rows >= 0) & (rows < height), (cols >= 0) & (cols < width))
        if not there.any():
            return there
        rows, cols = np.clip(rows, 0, height - 1), np.clip(cols, 0, width - 1)
        top, left = int(rows.min()), int(cols.min())
        pixels, fit = self._read(mask, Block(top, left, int(rows.max()) - top + 1, int(cols.max()) - left + 1))
        fit &= ~_holds(pixels, decode_number(mask["nodata"]))
        if pixels.dtype.kind == "f":
            fit &= ~np.isnan(pixels)
        for value in rule["classes"]:
            fit &= ~_holds(pixels, value)
        for bit in rule["bits"]:
            unsigned = pixels.view(f"u{pixels.dtype.itemsize}")
            fit &= (unsigned >> unsigned.dtype.type(bit)) & unsigned.dtype.type(1) == 0
        return there & fit[np.ix_(rows - top, cols - left)]


def _between(from_, to) -> tuple[float, float, float, float]:
    """a, c, e, f of x' = a*x + c, y' = e*y + f from pixels of one transform to those of another, not rotated, one."""
    if from_ is None or to is None:
        return 1.0, 0.0, 1.0, 0.0
    a, b, left, d, e, top = to
    size = a * e - b * d
    x, y = from_[2] - left, from_[5] - top
    return (
        (e * from_[0] - b * from_[3]) / size,
        (e * x - b * y) / size,
        (a * from_[4] - d * from_[1]) / size,
        (a * y - d * x) / size,
    )


def _settled(own: np.ndarray, recorded: np.ndarray) -> np.ndarray:
    """The recorded coordinates where they are these: on an edge between two pixels, rounding must not decide."""
    return np.where(np.abs(own - recorded) < SAME, recorded, own)


def _holds(pixels: np.ndarray, number) -> np.ndarray:
    """Where pixels are `number`, as their type would hold it."""
    nowhere = np.zeros(pixels.shape, bool)
    if number is None or not math.isfinite(number):
        return nowhere
    if pixels.dtype.kind == "f":
        return pixels == np.array(number).astype(pixels.dtype)
    limits = np.iinfo(pixels.dtype)
    if number != int(number) or not limits.min <= number <= limits.max:
        return nowhere
    return pixels == pixels.dtype.type(int(number))
