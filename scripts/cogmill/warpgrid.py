"""Where the pixels of a scene's products lie: for now on the grid that its bands share.

All bands that products use must lie on one grid, since a formula takes them pixel by pixel. Mask bands may be coarser
or finer: the record says where on them a target pixel falls.
"""

import math
import sys
import time
from pathlib import Path

from pyproj import CRS
from pyproj.exceptions import CRSError

from cogmill.errors import DamagedRecordError, SceneError
from cogmill.grids import GridSpec
from cogmill.ledger import end_record, new_record, read_record, write_json

# Of a pixel, at the corners of the raster. Half a pixel is a mistake, the last digits of a text are not.
TOLERANCE_PX = 1e-9
IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def make_control_grid(cogs_record: str | Path, params: dict, out_record: str | Path) -> dict:
    """Check that a scene's bands share a grid and write its `grids` record.

    Parameters
    ----------
    cogs_record : path
        Record of the scene's stored bands.
    params : dict
        `crs` ("source": the bands' own grid is the target). `bands`, optional: roles that products use; all bands of
        kind "continuous" otherwise. `masks`, optional: roles of the mask bands that the campaign uses; all others
        otherwise. Masks of the whole scene (kind "mask") are always placed.
    out_record : path

    Returns
    -------
    dict
        The record; state "failed" with the reason of the `cogs` record, `band_missing` where products or masks need a
        band that is not stored, or `grid_mismatch`.
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
            record |= _place(cogs, params)
            end_record(record, "done")
        except SceneError as error:
            end_record(record, "failed", error.reason, str(error))
        except CRSError as error:
            message = f"scene '{cogs['scene']}': a CRS of its bands cannot be understood (grid mismatch): {error}"
            end_record(record, "failed", "grid_mismatch", message)
    record["seconds"] = {"total": round(time.perf_counter() - clock, 6)}
    write_json(out_record, record)
    return record


def _place(cogs: dict, params: dict) -> dict:
    """Target grid and the places of the mask bands on it."""
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
    first = used[0]
    for role in used[1:]:
        _check_same_grid(scene, first, bands[first], role, bands[role])
    target = bands[first]
    return {
        "grid": GridSpec(target["crs"], _affine(target), tuple(target["shape"])).to_json(),
        "gcps": target["gcps"],
        "rpcs": target["rpcs"],
        "operation": "identity",
        "bands": used,
        "masks": {
            role: {"affine": list(_mask_place(scene, first, target, role, band))}
            for role, band in bands.items()
            if band["kind"] == "mask" or role in masks
        },
    }


def _not_stored(cogs: dict, role: str, key: str) -> SceneError:
    """With `cog.bands: all` the store leaves out what a scene lacks; here it shows whether that is needed."""
    scene = f"scene '{cogs['scene']}': "
    why = cogs.get("left_out", {}).get(role, "it is not in the store").removeprefix(scene)
    return SceneError(f"{scene}band '{role}', which '{key}' of the config needs, is missing: {why}", "band_missing")


def _measurements(bands: dict) -> list[str]:
    return [role for role, band in bands.items() if band["kind"] == "continuous"]


def _affine(band: dict) -> tuple[float, ...] | None:
    return tuple(band["transform"]) if band["transform"] else None


def _check_same_grid(scene: str, a: str, band_a: dict, b: str, band_b: dict) -> None:
    advice = "Give both on one grid (column 'path'), or take only one of them into the formulas (config key 'products')"
    both = f"scene '{scene}': band '{b}' is on another grid than '{a}' (mismatch)"
    if band_a["shape"] != band_b["shape"]:
        raise SceneError(f"{both}: {_size(band_b)} against {_size(band_a)}. {advice}", "grid_mismatch")
    if not same_crs(band_a["crs"], band_b["crs"]):
        raise SceneError(f"{both}: CRS {_crs_name(band_b)} against {_crs_name(band_a)}. {advice}", "grid_mismatch")
    if (band_a["gcps"] or None) != (band_b["gcps"] or None):
        raise SceneError(f"{both}: their ground control points differ. {advice}", "grid_mismatch")
    if (band_a["rpcs"] or None) != (band_b["rpcs"] or None):
        raise SceneError(f"{both}: their rational polynomial coefficients differ. {advice}", "grid_mismatch")
    distance, allowed = _corner_distance(band_a, band_b)
    if distance > allowed:
        raise SceneError(
            f"{both}: transform {band_b['transform']} against {band_a['transform']}, up to {distance:.3g} "
            f"pixels apart. {advice}",
            "grid_mismatch",
        )


def same_crs(a: str | None, b: str | None) -> bool:
    """Whether two WKT texts mean one CRS; names and writing may differ."""
    if a is None or b is None or a == b:
        return a == b
    one, other = CRS.from_wkt(a), CRS.from_wkt(b)
    if one.equals(other, ignore_axis_order=True):
        return True
    codes = one.to_epsg(min_confidence=70), other.to_epsg(min_confidence=70)
    return codes[0] is not None and codes[0] == codes[1]


def _size(band: dict) -> str:
    rows, cols = band["shape"]
    size = f"{rows} x {cols} pixels"
    return f"{size} of {band['transform'][0]:g} units" if band["transform"] else size


def _crs_name(band: dict) -> str:
    if band["crs"] is None:
        return "none"
    crs = CRS.from_wkt(band["crs"])
    code = crs.to_epsg()
    return f"EPSG:{code}" if code else crs.name


def _corner_distance(band_a: dict, band_b: dict) -> tuple[float, float]:
    """Largest distance between the corners of two rasters of one shape, and what is allowed, in pixels of the first.

    What float64 cannot tell apart is allowed too: at northing 5,000,000 with pixels of 2 cm that is over the tolerance.
    """
    a, b = _affine(band_a), _affine(band_b)
    if a is None or b is None:
        return (0.0 if a == b else math.inf), TOLERANCE_PX
    rows, cols = band_a["shape"]
    to_pixels = _inverse(a)
    distance = largest = 0.0
    for col, row in ((0, 0), (cols, 0), (0, rows), (cols, rows)):
        x, y = _apply(b, col, row)
        c, r = _apply(to_pixels, x, y)
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
    place = _between(from_mask, from_target)
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


def _apply(affine: tuple[float, ...], col: float, row: float) -> tuple[float, float]:
    a, b, c, d, e, f = affine
    return a * col + b * row + c, d * col + e * row + f


def _inverse(affine: tuple[float, ...]) -> tuple[float, ...]:
    a, b, c, d, e, f = affine
    size = a * e - b * d
    return e / size, -b / size, (b * f - e * c) / size, -d / size, a / size, (d * c - a * f) / size


def _between(mask: tuple[float, ...], target: tuple[float, ...]) -> tuple[float, ...]:
    """Affine from pixels of `target` to pixels of `mask`.

    The origins are subtracted before anything is divided: a pixel's centre may fall right on an edge of the mask's
    pixels, and the last digits of a northing must not decide on which side.
    """
    a, b, left, d, e, top = mask
    size = a * e - b * d
    vectors = ((target[0], target[3]), (target[1], target[4]), (target[2] - left, target[5] - top))
    cols = [(e * x - b * y) / size for x, y in vectors]
    rows = [(a * y - d * x) / size for x, y in vectors]
    return (*cols, *rows)
