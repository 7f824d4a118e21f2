"""Where the pixels of a scene's products lie, and where each of them lies on the scene's bands.

Without a target of their own, products lie on the grid that their bands share: a formula takes them pixel by pixel.
With one, bands may lie on several grids of one CRS, and the record says where on each a target pixel falls: by an
affine, a control grid, or PROJ for each pixel. Mask bands may be coarser or finer than the bands they mask.
"""

import math
import sys
import time
from pathlib import Path

import numpy as np
from pyproj import CRS
from pyproj.exceptions import CRSError

from cogmill import controlgrid, projections
from cogmill.controlgrid import ControlGrid
from cogmill.errors import DamagedRecordError, SceneError
from cogmill.grids import IDENTITY, GridSpec, apply, between, inverse
from cogmill.ledger import end_record, new_record, read_record, write_json
from cogmill.projections import Operation, Placement, crs_name, horizontal, source_to_map
from cogmill.targets import target_crs, target_grid, wants_target

__all__ = ["ControlGrid", "make_control_grid", "same_crs"]

GRID_FILE = "grid.tif"
WGS84 = "EPSG:4326"
# Of a pixel, at the corners of the raster. Half a pixel is a mistake, the last digits of a text are not.
TOLERANCE_PX = 1e-9


def make_control_grid(cogs_record: str | Path, params: dict, out_record: str | Path) -> dict:
    """Lay a scene's bands on the target grid and write its `grids` record, with the control grid beside it.

    Parameters
    ----------
    cogs_record : path
        Record of the scene's stored bands.
    params : dict
        `crs`, `resolution`, `aligned`, `extent`, `like`: the target, see `cogmill.targets`; with `crs` "source" alone
        it is the bands' own grid. `max_error_px` of the control grid (0.01), `engine` ("grid" or "gdal") and
        `allow_ballpark`. `bands`, optional: roles that products use; all bands of kind "continuous" otherwise.
        `masks`, optional: roles of the mask bands that the campaign uses; all others otherwise. Masks of the whole
        scene (kind "mask") are always placed.
    out_record : path

    Returns
    -------
    dict
        The record; state "skipped" with reason `no_overlap` where no pixel of the target touches the scene; state
        "failed" with the reason of the `cogs` record, `band_missing` where products or masks need a band that is not
        stored, `grid_mismatch`, `georeferencing`, `crs`, `like`, `extent`, `datum_shift` or `no_operation`.
    """
    clock = time.perf_counter()
    try:
        cogs = read_record(cogs_record, "cogs")
    except DamagedRecordError as error:
        cogs = end_record(new_record("cogs", Path(cogs_record).parent.name), "failed", error.reason, str(error))
    record = new_record("grids", cogs["scene"])
    if cogs["state"] != "done":
        end_record(record, cogs["state"], cogs["reason"], cogs["message"], cogs["retryable"])
    else:
        try:
            record |= _place(cogs, params, Path(out_record).parent)
            end_record(record, "done")
        except SceneError as error:
            end_record(record, "skipped" if error.reason == "no_overlap" else "failed", error.reason, str(error))
        except CRSError as error:
            message = f"scene '{cogs['scene']}': a CRS of its bands cannot be understood (grid mismatch): {error}"
            end_record(record, "failed", "grid_mismatch", message)
    if not (record.get("warp") or {}).get("file"):
        (Path(out_record).parent / GRID_FILE).unlink(missing_ok=True)  # of an earlier config
    record["seconds"] = {"total": round(time.perf_counter() - clock, 6)}
    write_json(out_record, record)
    return record


def _place(cogs: dict, params: dict, folder: Path) -> dict:
    """Target grid, and the places of the bands and masks on it."""
    scene, bands = cogs["scene"], cogs["bands"]
    used = list(params.get("bands") or _measurements(bands))
    masks = params.get("masks", [role for role in bands if bands[role]["kind"] != "continuous"])
    for key, roles in (("products", used), ("masks", masks)):
        for role in roles:
            if role not in bands:
                raise _not_stored(cogs, role, key)
    if not used:
        raise SceneError(
            f"scene '{scene}': no measured band is stored, only {', '.join(bands)}; products have no grid. Correct "
            "the products' formulas",
            "band_missing",
        )
    masks = [role for role, band in bands.items() if band["kind"] == "mask" or role in masks]
    _require_pixels(scene, {role: bands[role] for role in [*used, *masks]})
    if wants_target(params):
        sources = [_source(scene, bands, roles, masks) for roles in _by_grid(scene, bands, used)]
        return _on_target(scene, sources, params, folder) | {"bands": used, "sources": sources}
    for role in used[1:]:
        _check_same_grid(scene, used[0], bands[used[0]], role, bands[role])
    source = _source(scene, bands, used, masks) | {"affine": list(IDENTITY), "ratio": 1.0}
    return {"grid": source["grid"], "operation": "identity", "warp": None, "bands": used, "sources": [source]}


def _require_pixels(scene: str, bands: dict) -> None:
    for role, band in bands.items():
        if band["transform"] and not 0 < abs(_area(band["transform"])) < math.inf:
            raise SceneError(
                f"scene '{scene}': band '{role}' has pixels without an area: its transform is {band['transform']}. "
                "Give a file whose georeferencing is right (column 'path')",
                "georeferencing",
            )


def _source(scene: str, bands: dict, roles: list[str], masks: list[str]) -> dict:
    """One source of the record: the grid of these bands, and where the masks lie on it."""
    band = bands[roles[0]]
    return {
        "grid": GridSpec(band["crs"], _affine(band), tuple(band["shape"])).to_json(),
        "gcps": band["gcps"],
        "rpcs": band["rpcs"],
        "bands": roles,
        "masks": {role: {"affine": list(_mask_place(scene, roles[0], band, role, bands[role]))} for role in masks},
    }


def _by_grid(scene: str, bands: dict, used: list[str]) -> list[list[str]]:
    """Bands that share a grid, in groups, the finest grid first."""
    groups = []
    for role in used:
        first, band = bands[used[0]], bands[role]
        if first["transform"] and band["transform"]:
            _check_same_ground(scene, used[0], first, role, band)
        else:
            _check_same_grid(scene, used[0], first, role, band)
        for group in groups:
            if _on_one_grid(bands[group[0]], band):
                group.append(role)
                break
        else:
            groups.append([role])
    return sorted(groups, key=lambda group: abs(_area(_affine(bands[group[0]]) or IDENTITY)))


def _on_target(scene: str, sources: list[dict], params: dict, folder: Path) -> dict:
    """Fields `grid`, `operation` and `warp` of the record; sets `affine` and `ratio` of the sources.

    A control grid is written to `folder`.
    """
    engine = params.get("engine", "grid")
    source = _require_georeferencing(scene, sources[0], engine)
    _relate(scene, sources)
    wanted = target_crs(scene, params, source.crs)
    outline = _outline(scene, sources[0]) if source.transform is None else None
    operation = _operation(scene, source, wanted, outline, params)
    target = target_grid(scene, params, source, operation, outline and (lambda: outline(wanted)))
    warp = {"engine": engine, "max_error_px": params.get("max_error_px", 0.01), "error_px": None, "step": None}
    warp |= {"file": None, "checksum": None, "exact_cells": 0, "projection": operation and operation.to_json()}
    if outline:
        name = "gdal"
        _measure_outline(scene, sources, target, *outline(wanted))
    else:
        name = _transformed(scene, sources, target, operation, warp, folder)
    return {"grid": target.to_json(), "operation": name, "warp": warp}


def _require_georeferencing(scene: str, source: dict, engine: str) -> GridSpec:
    """Grid of a source that can be warped; its CRS is WGS 84 where RPCs alone place it."""
    grid = GridSpec.from_json(source["grid"])
    gcps, rpcs = source["gcps"], source["rpcs"]
    without = "or leave grid.crs: source without resolution, extent and like"
    if grid.transform is None and (gcps or rpcs):
        if engine != "gdal":
            raise SceneError(
                f"scene '{scene}': it has {'ground control points' if gcps else 'RPCs'} and no transform: its "
                f"georeferencing is GDAL's business. Set warp.engine: gdal, {without}",
                "georeferencing",
            )
        grid = grid if gcps else GridSpec(horizontal(WGS84).to_wkt(), None, grid.shape)
    elif grid.transform is None:
        raise SceneError(
            f"scene '{scene}': it has no transform and no ground control points, so its georeferencing does not say "
            f"where its pixels lie. Give a georeferenced file (column 'path'), {without}",
            "georeferencing",
        )
    try:
        if grid.crs:
            horizontal(grid.crs)
            return grid
        found = "it has no CRS"
    except CRSError as error:
        found = f"its CRS cannot be projected: {error}"
    raise SceneError(
        f"scene '{scene}': {found}; without georeferencing its pixels cannot be brought to another grid. Give a file "
        f"with a CRS (column 'path'), {without}",
        "georeferencing",
    )


def _relate(scene: str, sources: list[dict]) -> None:
    """Set `affine` of the sources, from pixels of the first one."""
    first = GridSpec.from_json(sources[0]["grid"])
    for source in sources:
        grid = GridSpec.from_json(source["grid"])
        affine = between(first.transform, grid.transform) if grid.transform and source is not sources[0] else IDENTITY
        if not _overlap(affine, first.shape, grid.shape):
            raise SceneError(
                f"scene '{scene}': bands '{sources[0]['bands'][0]}' and '{source['bands'][0]}' have no ground in "
                "common (grid mismatch). Correct column 'path', or take only one of them into the formulas (config "
                "key 'products')",
                "grid_mismatch",
            )
        source["affine"] = list(affine)


def _outline(scene: str, source: dict):
    """Function that gives a scene's outline in a CRS, of its ground control points or RPCs."""
    from cogmill.gdalwarp import footprint

    grid = GridSpec.from_json(source["grid"])

    def outline(crs: str) -> tuple[np.ndarray, np.ndarray]:
        try:
            return footprint(grid, source["gcps"], source["rpcs"], crs)
        except SceneError as error:
            raise SceneError(f"scene '{scene}': {error}", error.reason) from error

    return outline


def _operation(scene: str, source: GridSpec, target_wkt: str, outline, params: dict) -> Operation | None:
    area = projections.area_around(*outline(WGS84)) if outline else projections.area_of(source)
    try:
        return projections.choose_operation(
            horizontal(source.crs), horizontal(target_wkt), area, params.get("allow_ballpark", False)
        )
    except SceneError as error:
        raise SceneError(f"scene '{scene}': {error}", error.reason) from error


def _transformed(scene: str, sources: list[dict], target: GridSpec, operation, warp: dict, folder: Path) -> str:
    """Place sources that have a transform; completes `warp` and returns the name of the record's operation."""
    source = GridSpec.from_json(sources[0]["grid"])
    gdal = warp["engine"] == "gdal"
    if operation is None:
        turns = _turns(source, target)
        if not turns:
            raise _no_overlap(scene, target, *source_to_map(source, None, *_corners(source.shape)))
        if len(turns) == 1:
            for entry in sources:
                affine = between(turns[0], GridSpec.from_json(entry["grid"]).transform)
                entry["ratio"] = max(math.hypot(affine[0], affine[3]), math.hypot(affine[1], affine[4]))
                entry["affine"] = entry["affine"] if gdal else list(affine)
            warp["error_px"] = None if gdal else 0.0
            return "gdal" if gdal else "affine"
    placement = Placement(source, target, operation)
    exact = gdal or warp["max_error_px"] == 0
    grid, touched = controlgrid.nodes_alone(placement) if exact else controlgrid.make(placement, warp["max_error_px"])
    centres, steps = controlgrid.hits(placement, grid, touched)
    if not len(centres):
        raise _no_overlap(scene, target, *source_to_map(source, operation, *_lattice(source.shape)))
    for entry in sources:
        entry["ratio"] = _ratio(steps, entry["affine"])
    if gdal:
        return "gdal"
    if exact:
        warp["error_px"] = 0.0
        return "exact"
    definition = operation.definition if operation else "noop"
    warp["checksum"] = grid.save(folder / GRID_FILE, target, warp["max_error_px"], definition)
    warp |= {"error_px": grid.error_px, "step": grid.step, "file": GRID_FILE, "exact_cells": int(grid.exact.sum())}
    return "grid"


def _turns(source: GridSpec, target: GridSpec) -> list[tuple[float, ...]]:
    """Transforms of a target in the source's CRS that meet the source: its own, moved by whole turns around the earth.

    A target over the antimeridian, or one of 0 to 360 degrees, lies on a source of -180 to 180 with one of them, with
    two where both its ends meet it, and with none where they have no ground in common.
    """
    a, b, c, d, e, f = target.transform
    turn = projections.period(horizontal(source.crs))
    shifts = [0.0]
    if turn:
        ours, theirs = (apply(grid.transform, *_corners(grid.shape))[0] for grid in (source, target))
        first, last = math.floor((theirs.min() - ours.max()) / turn), math.ceil((theirs.max() - ours.min()) / turn)
        shifts = [turn * number for number in range(first, last + 1)]
    moved = [(a, b, c - shift, d, e, f) for shift in shifts]
    return [place for place in moved if _overlap(between(place, source.transform), target.shape, source.shape)]


def _ratio(steps: np.ndarray, affine) -> float:
    """Source pixels a target pixel, in the middle of `steps` of `controlgrid.hits`, on a source with this affine."""
    a, b, _, d, e, _ = affine
    lengths = np.hypot(*np.moveaxis(steps @ np.array([[a, d], [b, e]]), -1, 0)).max(axis=-1)
    lengths = lengths[np.isfinite(lengths)]
    return float(np.median(lengths)) if len(lengths) else 1.0


def _measure_outline(scene: str, sources: list[dict], target: GridSpec, x: np.ndarray, y: np.ndarray) -> None:
    """Overlap and ratio of a scene of which only the outline is known, in the target's CRS."""
    known = np.isfinite(x) & np.isfinite(y)
    col, row = apply(inverse(target.transform), x[known], y[known])
    rows, cols = target.shape
    if not (known.any() and col.min() < cols and col.max() > 0 and row.min() < rows and row.max() > 0):
        raise _no_overlap(scene, target, x, y)
    covered = abs(np.sum(col * np.roll(row, 1) - row * np.roll(col, 1))) / 2
    for source in sources:
        source["ratio"] = math.sqrt(math.prod(source["grid"]["shape"]) / covered) if covered else 1.0


def _no_overlap(scene: str, target: GridSpec, x: np.ndarray, y: np.ndarray) -> SceneError:
    """`x`, `y`: points of the scene in the target's CRS."""
    known = np.isfinite(x) & np.isfinite(y)
    theirs = f"at {_extent(x[known], y[known])}" if known.any() else "at no place of that CRS"
    ours = _extent(*apply(target.transform, *_corners(target.shape)))
    return SceneError(
        f"scene '{scene}': no overlap: the target lies at {ours} ({crs_name(horizontal(target.crs))}), the scene "
        f"{theirs}. Correct grid.extent or grid.like if they should meet",
        "no_overlap",
    )


def _extent(x: np.ndarray, y: np.ndarray) -> str:
    return f"x {x.min():.10g} to {x.max():.10g}, y {y.min():.10g} to {y.max():.10g}"


def _corners(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    rows, cols = map(float, shape)
    return np.array([0.0, cols, 0.0, cols]), np.array([0.0, 0.0, rows, rows])


def _lattice(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.meshgrid(np.linspace(0, shape[1], 17), np.linspace(0, shape[0], 17))


def _overlap(affine: tuple[float, ...], shape: tuple[int, int], other_shape: tuple[int, int]) -> bool:
    """Whether two rasters have ground in common; `affine` leads from pixels of the first to pixels of the other."""
    for place, inner, outer in ((affine, shape, other_shape), (inverse(affine), other_shape, shape)):
        x, y = apply(place, *_corners(inner))
        if not (x.min() < outer[1] and x.max() > 0 and y.min() < outer[0] and y.max() > 0):
            return False
    return True


def _area(affine: tuple[float, ...]) -> float:
    a, b, _, d, e, _ = affine
    return a * e - b * d


def _not_stored(cogs: dict, role: str, key: str) -> SceneError:
    """With `cog.bands: all` the store leaves out what a scene lacks; here it shows whether that is needed."""
    scene = f"scene '{cogs['scene']}': "
    why = cogs.get("left_out", {}).get(role, "it is not in the store").removeprefix(scene)
    return SceneError(f"{scene}band '{role}', which '{key}' of the config needs, is missing: {why}", "band_missing")


def _measurements(bands: dict) -> list[str]:
    return [role for role, band in bands.items() if band["kind"] == "continuous"]


def _affine(band: dict) -> tuple[float, ...] | None:
    return tuple(band["transform"]) if band["transform"] else None


ONE_GRID = "Give both on one grid (column 'path'), or take only one of them into the formulas (config key 'products')"


def _check_same_grid(scene: str, a: str, band_a: dict, b: str, band_b: dict) -> None:
    both = f"scene '{scene}': band '{b}' is on another grid than '{a}' (mismatch)"
    if band_a["shape"] != band_b["shape"]:
        raise SceneError(f"{both}: {_size(band_b)} against {_size(band_a)}. {ONE_GRID}", "grid_mismatch")
    _check_same_ground(scene, a, band_a, b, band_b)
    if not _on_one_grid(band_a, band_b):
        raise SceneError(
            f"{both}: transform {band_b['transform']} against {band_a['transform']}, up to "
            f"{_corner_distance(band_a, band_b)[0]:.3g} pixels apart. {ONE_GRID}",
            "grid_mismatch",
        )


def _check_same_ground(scene: str, a: str, band_a: dict, b: str, band_b: dict) -> None:
    """That two bands are georeferenced in the same way, whatever their pixels."""
    both = f"scene '{scene}': band '{b}' is on another grid than '{a}' (mismatch)"
    if not same_crs(band_a["crs"], band_b["crs"]):
        raise SceneError(f"{both}: CRS {_crs_name(band_b)} against {_crs_name(band_a)}. {ONE_GRID}", "grid_mismatch")
    if (band_a["gcps"] or None) != (band_b["gcps"] or None):
        raise SceneError(f"{both}: their ground control points differ. {ONE_GRID}", "grid_mismatch")
    if (band_a["rpcs"] or None) != (band_b["rpcs"] or None):
        raise SceneError(f"{both}: their rational polynomial coefficients differ. {ONE_GRID}", "grid_mismatch")


def _on_one_grid(band_a: dict, band_b: dict) -> bool:
    if band_a["shape"] != band_b["shape"]:
        return False
    distance, allowed = _corner_distance(band_a, band_b)
    return distance <= allowed


def same_crs(a: str | None, b: str | None) -> bool:
    """Whether two WKT texts mean one CRS; names and writing may differ."""
    if a is None or b is None or a == b:
        return a == b
    return projections.same_crs(CRS.from_wkt(a), CRS.from_wkt(b))


def _size(band: dict) -> str:
    rows, cols = band["shape"]
    size = f"{rows} x {cols} pixels"
    return f"{size} of {band['transform'][0]:g} units" if band["transform"] else size


def _crs_name(band: dict) -> str:
    return "none" if band["crs"] is None else crs_name(CRS.from_wkt(band["crs"]))


def _corner_distance(band_a: dict, band_b: dict) -> tuple[float, float]:
    """Largest distance between the corners of two rasters of one shape, and what is allowed, in pixels of the first.

    What float64 cannot tell apart is allowed too: at northing 5,000,000 with pixels of 2 cm that is over the tolerance.
    """
    a, b = _affine(band_a), _affine(band_b)
    if a is None or b is None:
        return (0.0 if a == b else math.inf), TOLERANCE_PX
    rows, cols = band_a["shape"]
    to_pixels = inverse(a)
    distance = largest = 0.0
    for col, row in ((0, 0), (cols, 0), (0, rows), (cols, rows)):
        x, y = apply(b, col, row)
        c, r = apply(to_pixels, x, y)
        distance = max(distance, math.hypot(c - col, r - row))
        largest = max(largest, abs(x), abs(y))
    pixel = math.sqrt(abs(a[0] * a[4] - a[1] * a[3]))
    return distance, TOLERANCE_PX + 8 * sys.float_info.epsilon * largest / pixel


def _mask_place(scene: str, first: str, target: dict, role: str, band: dict) -> tuple[float, ...]:
    """Affine from target (column, row) to mask (column, row), both of pixel corners.

    Raises
    ------
    SceneError
        `grid_mismatch`: another CRS, no common ground, or rotated against the target.
    """
    both = f"scene '{scene}': mask band '{role}' does not fit band '{first}' (grid mismatch)"
    advice = f"Give it on the grid of '{first}' or on a coarser or finer one that is not rotated against it"
    if not same_crs(target["crs"], band["crs"]):
        raise SceneError(f"{both}: CRS {_crs_name(band)} against {_crs_name(target)}. {advice}", "grid_mismatch")
    from_target, from_mask = _affine(target), _affine(band)
    if from_target is None or from_mask is None:
        if from_target == from_mask and target["shape"] == band["shape"]:
            return IDENTITY
        raise SceneError(
            f"{both}: {_size(band)} against {_size(target)}, one without transform. {advice}", "grid_mismatch"
        )
    place = between(from_target, from_mask)
    (rows, cols), (mask_rows, mask_cols) = target["shape"], band["shape"]
    if abs(place[1]) * rows > 1e-3 or abs(place[3]) * cols > 1e-3:
        raise SceneError(f"{both}: it is rotated against it. {advice}", "grid_mismatch")
    (left, right), (top, bottom) = (
        sorted((place[2], place[2] + place[0] * cols)),
        sorted((place[5], place[5] + place[4] * rows)),
    )
    if right <= 0 or bottom <= 0 or left >= mask_cols or top >= mask_rows:
        raise SceneError(f"{both}: they have no ground in common. {advice}", "grid_mismatch")
    return place
