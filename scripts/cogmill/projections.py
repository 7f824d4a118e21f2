"""From one coordinate reference system to another: which operation PROJ takes, and where it puts a target's pixels.

PROJ knows many operations between two CRSs and, left to itself, chooses anew for each point. Here one is chosen for a
scene and written down as a pipeline; whatever is computed later, elsewhere too, uses that text.
"""

import math
import os
import re
import threading
import warnings
from dataclasses import asdict, dataclass

import numpy as np
import pyproj
from pyproj import CRS, Transformer
from pyproj.enums import TransformDirection
from pyproj.exceptions import CRSError, ProjError
from pyproj.transformer import AreaOfInterest, TransformerGroup

from cogmill.errors import SceneError
from cogmill.grids import GridSpec, apply

# Places that are given back by the operation are real. Further off than this they are leftovers of a projection that
# was used outside of its domain; helmert transformations alone leave some millimetres.
ROUND_TRIP_PX = 1e-2
ROUND_TRIP_M = 1.0
EARTH_RADIUS_M = 6378137.0

_NO_DATUM = re.compile(r"unknown|not[ _]specified|undefined|unnamed|custom", re.IGNORECASE)
_THREAD = threading.local()


@dataclass(frozen=True)
class Operation:
    """The way from a scene's CRS to the target's.

    Parameters
    ----------
    name : str
        PROJ's description.
    definition : str
        PROJ pipeline from source to target coordinates, x (east) first; geographic ones in the unit of their CRS.
    accuracy_m : float or None
        What PROJ's database promises; None where it does not know.
    ballpark : bool
        Whether a datum shift was left out because PROJ knows none.
    missing_grids : tuple of str
        Grid files that a better operation needs and that are not installed here.
    proj : str
        Version of PROJ that chose.
    """

    name: str
    definition: str
    accuracy_m: float | None
    ballpark: bool
    missing_grids: tuple[str, ...]
    proj: str

    def to_json(self) -> dict:
        return asdict(self) | {"missing_grids": list(self.missing_grids)}

    @classmethod
    def from_json(cls, doc: dict) -> "Operation":
        return cls(**(doc | {"missing_grids": tuple(doc["missing_grids"])}))


def horizontal(text: str) -> CRS:
    """Two-dimensional CRS of an EPSG code, WKT or PROJ text: heights are left out.

    Raises
    ------
    pyproj.exceptions.CRSError
        The text cannot be understood, or means no place on the earth (a local or engineering CRS).
    """
    crs = CRS.from_user_input(text)
    while crs.is_compound or (crs.is_bound and crs.source_crs.is_compound):
        crs = crs.sub_crs_list[0] if crs.is_compound else crs.source_crs
    if not (crs.is_geographic or crs.is_projected):
        raise CRSError(f"'{crs.name}' is a {crs.type_name}, neither geographic nor projected: it has no place on earth")
    return crs.to_2d() if len(crs.axis_info) > 2 else crs


def same_crs(one: CRS, other: CRS) -> bool:
    """Whether two CRSs mean the same; names and writing may differ."""
    if one.equals(other, ignore_axis_order=True):
        return True
    codes = one.to_epsg(min_confidence=70), other.to_epsg(min_confidence=70)
    return codes[0] is not None and codes[0] == codes[1]


def crs_name(crs: CRS) -> str:
    """Code, or the name where there is none."""
    code = crs.to_epsg()
    return f"EPSG:{code}" if code else crs.name


def area_of(source: GridSpec) -> tuple[float, float, float, float] | None:
    """West, south, east, north of a raster in degrees; west > east over the antimeridian. None where nothing is known.

    It only decides which operation fits: 21 x 21 points are enough, and no datum shift is needed.
    """
    rows, cols = source.shape
    x, y = apply(source.transform, *np.meshgrid(np.linspace(0, cols, 21), np.linspace(0, rows, 21)))
    to_degrees = Transformer.from_crs(horizontal(source.crs), CRS.from_epsg(4326), always_xy=True)
    return area_around(*to_degrees.transform(x, y, errcheck=False))


def area_around(lon, lat) -> tuple[float, float, float, float] | None:
    """West, south, east, north of points in degrees, as `area_of`."""
    lon, lat = np.ravel(lon), np.ravel(lat)
    known = np.isfinite(lon) & np.isfinite(lat)
    if not known.any():
        return None
    lon, lat = np.sort((lon[known] + 180) % 360 - 180), lat[known]
    gaps = np.diff(lon, append=lon[0] + 360)
    widest = int(gaps.argmax())
    if gaps[widest] < 90:
        return -180.0, float(lat.min()), 180.0, float(lat.max())
    return float(lon[(widest + 1) % len(lon)]), float(lat.min()), float(lon[widest]), float(lat.max())


def choose_operation(
    source_crs: CRS, target_crs: CRS, area: tuple[float, float, float, float] | None, allow_ballpark: bool = False
) -> Operation | None:
    """The operation for a whole scene: the best that works with what is installed; None where both CRSs are the same.

    Parameters
    ----------
    source_crs, target_crs : CRS
        As `horizontal` gives them.
    area : (west, south, east, north) or None
        The scene's, in degrees: an operation is ranked by how far it holds there.
    allow_ballpark : bool
        Whether a datum shift that PROJ does not know may be left out (hundreds of metres).

    Raises
    ------
    SceneError
        `datum_shift`: only a ballpark operation, which was not allowed (CRSs without a datum on a sphere or on the
        ellipsoid of GPS need none). `no_operation`: none at all.
    """
    if same_crs(source_crs, target_crs):
        return None
    pair = f"from CRS {crs_name(source_crs)} to {crs_name(target_crs)}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of missing grids, which the record names
            group = TransformerGroup(
                source_crs, target_crs, always_xy=True, area_of_interest=AreaOfInterest(*area) if area else None
            )
    except ProjError as error:
        raise SceneError(f"PROJ finds no way {pair} ({error}): set another grid.crs", "no_operation") from error
    if not group.transformers or not group.transformers[0].has_inverse:
        raise SceneError(
            f"PROJ {pyproj.proj_version_str} has no operation {pair} and back: set another grid.crs", "no_operation"
        )
    best = group.transformers[0]
    accuracy = best.accuracy if best.accuracy is not None and best.accuracy >= 0 else None
    operation = Operation(
        name=best.description,
        definition=best.definition,
        accuracy_m=accuracy,
        ballpark=_is_ballpark(best.description),
        missing_grids=() if group.best_available else _better_grids(group.unavailable_operations, accuracy),
        proj=pyproj.proj_version_str,
    )
    if operation.ballpark and not (allow_ballpark or _without_shift(source_crs, target_crs)):
        raise SceneError(_ballpark_message(pair, operation), "datum_shift")
    return operation


def _without_shift(one: CRS, other: CRS) -> bool:
    """Whether there is no shift that PROJ could know: one of the CRSs has no datum, only a figure of the earth.

    Spheres (MODIS) and the ellipsoids of GPS stand for a datum that is WGS 84 to within a metre or two, by all who use
    them; latitudes and longitudes are passed on as they are. An older ellipsoid means an old datum, far from WGS 84.
    """
    figures = [crs.geodetic_crs.ellipsoid for crs in (one, other)]
    modern = [abs(f.semi_major_metre - 6378137) < 1 and abs(f.inverse_flattening - 298.257) < 0.01 for f in figures]
    sphere = [f.inverse_flattening == 0 for f in figures]
    named = [not _NO_DATUM.match(crs.geodetic_crs.datum.name) for crs in (one, other)]
    return any(
        not named[i] and (sphere[i] or modern[i]) and (modern[j] or (sphere[j] and not named[j]))
        for i, j in ((0, 1), (1, 0))
    )


def _is_ballpark(description: str) -> bool:
    """PROJ's own words for a datum shift that it leaves out."""
    return "Ballpark geographic offset" in description or "Ballpark geocentric translation" in description


def _better_grids(operations, accuracy: float | None) -> tuple[str, ...]:
    """Grids that are not here, of the operations that promise more than `accuracy` metres."""
    better = [op for op in operations if accuracy is None or 0 <= op.accuracy < accuracy]
    return tuple(sorted({grid.short_name for op in better for grid in op.grids if not grid.available}))


def _ballpark_message(pair: str, operation: Operation) -> str:
    if operation.missing_grids:
        lacks = f"it lacks the grids {', '.join(operation.missing_grids)}; install them (projsync)"
    else:
        lacks = "it knows no operation between their datums here; give the scene the right CRS"
    return (
        f"PROJ {operation.proj} knows no datum shift {pair} for this scene, pixels could be off by hundreds of metres: "
        f"{lacks}, or set warp.allow_ballpark: true to do without ('{operation.name}')"
    )


class Placement:
    """Where the pixels of a target lie in a source raster.

    Parameters
    ----------
    source, target : GridSpec
        Both with CRS and transform.
    operation : Operation or None
        From the CRS of `source` to that of `target`; None where both are the same.
    """

    def __init__(self, source: GridSpec, target: GridSpec, operation: Operation | None):
        self.source, self.target, self.operation = source, target, operation
        rows, cols = source.shape
        self._middle = apply(source.transform, cols / 2, rows / 2)[0]
        self._period = period(horizontal(source.crs))
        target_crs = horizontal(target.crs)
        self._target_period = period(target_crs)
        if operation:
            a, b, _, d, e, _ = target.transform
            self._target_radians = _unit(target_crs) if target_crs.is_geographic else None
            self._tolerance = max(ROUND_TRIP_PX * math.sqrt(abs(a * e - b * d)), ROUND_TRIP_M * _metre(target_crs))

    def to_source(self, cols, rows) -> tuple[np.ndarray, np.ndarray]:
        """Source pixel coordinates (x, y) of target pixel coordinates, by PROJ itself; NaN where there are none.

        Longitudes of a geographic source, and x of a cylindrical one, are taken from the turn around the earth whose
        middle is the raster's. Safe in threads and after a fork.

        Parameters
        ----------
        cols, rows : float64 arrays of any shape
            Corner origin: (0.5, 0.5) is the centre of the first pixel.
        """
        with np.errstate(invalid="ignore"):
            x, y = apply(self.target.transform, np.asarray(cols, np.float64), np.asarray(rows, np.float64))
        if self.operation:
            x, y = self._project(x, y)
        if self._period:
            x = _turned(x, self._middle, self._period)
        return pixel_of(self.source.transform, x, y)

    def on_target(self, x, y) -> tuple[np.ndarray, np.ndarray]:
        """Target pixel coordinates (cols, rows) of map coordinates; only of those that fall on the target."""
        rows, cols = self.target.shape
        if self._target_period:
            x = _turned(x, apply(self.target.transform, cols / 2, rows / 2)[0], self._target_period)
        col, row = pixel_of(self.target.transform, x, y)
        there = (col >= 0) & (col <= cols) & (row >= 0) & (row <= rows)
        return col[there], row[there]

    def source_metres(self, metres: float) -> float:
        """A length in units of the source's CRS."""
        return metres * _metre(horizontal(self.source.crs))

    def turn_px(self) -> float:
        """Source pixels once around the earth; infinity where the source's x does not come back."""
        return self._period / self.source.pixel_size()[0] if self._period else math.inf

    def _project(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Target map coordinates to the source's, NaN where PROJ has none or does not lead back."""
        operation = transformer(self.operation.definition)
        source_x, source_y = operation.transform(x, y, direction=TransformDirection.INVERSE, errcheck=False)
        back_x, back_y = operation.transform(source_x, source_y, errcheck=False)
        with np.errstate(invalid="ignore"):
            dx, dy = back_x - x, back_y - y
            if self._target_period:
                dx -= self._target_period * np.round(dx / self._target_period)
            if self._target_radians:
                dx *= np.cos(y * self._target_radians)  # meridians meet: at the pole any longitude is right
            lost = ~(np.hypot(dx, dy) <= self._tolerance)
        return np.where(lost, np.nan, source_x), np.where(lost, np.nan, source_y)


def source_to_map(source: GridSpec, operation: Operation | None, x, y) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates in the target CRS of pixel coordinates of a source; inf or NaN where there are none.

    Longitudes are as PROJ gives them, -180 to 180: they jump within a scene over the antimeridian.
    """
    x, y = apply(source.transform, np.asarray(x, np.float64), np.asarray(y, np.float64))
    return transformer(operation.definition).transform(x, y, errcheck=False) if operation else (x, y)


def transformer(definition: str) -> Transformer:
    """The pipeline, ready to use; one a thread and process, since PROJ's contexts may not be shared."""
    if getattr(_THREAD, "pid", None) != os.getpid():
        _THREAD.pid, _THREAD.made = os.getpid(), {}
    if definition not in _THREAD.made:
        if len(_THREAD.made) >= 16:
            _THREAD.made.clear()
        _THREAD.made[definition] = Transformer.from_pipeline(definition)
    return _THREAD.made[definition]


def period(crs: CRS) -> float | None:
    """How far x is from itself once around the earth: 360 degrees, the width of a cylindrical map; None for others."""
    if crs.is_geographic:
        turn = 2 * math.pi / _unit(crs)
        return round(turn) if abs(turn - round(turn)) < 1e-9 else turn  # 360 degrees and 400 gon, to the last digit
    geographic = crs.geodetic_crs
    if geographic is None:
        return None
    step = math.radians(1) / _unit(geographic)  # a degree
    lon, lat = np.meshgrid(step * np.array([-120, -119, 0, 1, 120, 121]), step * np.array([0, 40]))
    x, _ = Transformer.from_crs(geographic, crs, always_xy=True).transform(lon, lat, errcheck=False)
    with np.errstate(invalid="ignore"):
        steps = x[:, 1::2] - x[:, ::2]
    width = float(np.median(steps))
    # one of the three places may hold the edge of the map
    even = np.isclose(steps, width, rtol=1e-9, atol=0).sum(axis=1) >= 2
    return abs(360 * width) if math.isfinite(width) and even.all() else None


def _metre(crs: CRS) -> float:
    """Units of the CRS a metre."""
    return 1 / _unit(crs) / (EARTH_RADIUS_M if crs.is_geographic else 1)


def _turned(x, middle: float, turn: float):
    """x in [middle - turn / 2, middle + turn / 2)."""
    with np.errstate(invalid="ignore"):
        return x - turn * np.floor((x - middle) / turn + 0.5)


def _unit(crs: CRS) -> float:
    """Metres or radians of a unit of the CRS."""
    return crs.axis_info[0].unit_conversion_factor


def pixel_of(affine: tuple[float, ...], x, y):
    """Pixel coordinates of map coordinates: the origin is subtracted first, so that large northings cost no digits."""
    a, b, c, d, e, f = affine
    size = a * e - b * d
    with np.errstate(invalid="ignore"):  # infinite ones have none
        x, y = x - c, y - f
        return (e * x - b * y) / size, (a * y - d * x) / size
