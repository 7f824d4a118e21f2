"""How pixels came onto their grid: target grids, coordinates, resampling, self-check; and sentences that say it."""

import json
import statistics
from collections import Counter, defaultdict

import numpy as np
from rasterio.crs import CRS
from rasterio.errors import CRSError

from cogmill.errors import CogmillError
from cogmill.indices import parse_formula
from cogmill.report.facts import Facts, SceneFacts, at, entries, listed, number, one_or_all, rounded, scalar, sum_of
from cogmill.resampling import ALIASING, MAX_RATIO, band_method

ON_LATTICE_PX = 1e-6  # an origin that is a whole multiple of the pixel size up to the last digits of a float
METHODS = {
    "nearest": "nearest neighbour",
    "bilinear": "bilinear interpolation",
    "cubic": "cubic convolution",
    "lanczos": "Lanczos windowed sinc interpolation",
    "average": "area-weighted average",
    "mode": "mode",
    "min": "minimum",
    "max": "maximum",
    "median": "median",
}
ORDERS = {
    "bands_then_index": "bands were resampled, then the formula was computed from them",
    "index_then_warp": "the formula was computed on the scene's own grid, then resampled",
}


def grid(facts: Facts) -> list[dict]:
    """Target grids: reference system, pixel size, how scenes came onto it, and how many scenes.

    An entry is what its scenes have in common; of what differs from scene to scene it holds the range.
    """
    groups: dict[str, list[SceneFacts]] = defaultdict(list)
    for scene in facts.scenes:
        if scene.state == "done":
            groups[json.dumps(_common(scene), sort_keys=True, default=str)].append(scene)
    found = [
        json.loads(common) | _ranges([scene.grid for scene in scenes], json.loads(common)) | {"scenes": len(scenes)}
        for common, scenes in sorted(groups.items(), key=lambda group: -len(group[1]))
    ]
    extent = _shared_extent([at(scene.grid, "grid", default={}) for scene in resampled(facts)])
    return [entry | ({"extent": extent} if "aligned" in entry else {}) for entry in found]


def resampled(facts: Facts) -> list[SceneFacts]:
    """The done scenes whose products are not on their own grid."""
    return [scene for scene in facts.scenes if scene.state == "done" and _operation(scene.grid) != "identity"]


def _shared_extent(grids: list[dict]):
    """left, bottom, right, top where all scenes have the same, else a word for it."""
    boxes = {bounds(grid) for grid in grids}
    box = boxes.pop() if len(boxes) == 1 and len(grids) > 1 else None
    return list(box) if box else "of each scene"


def _common(scene: SceneFacts) -> dict:
    spec = at(scene.grid, "grid")
    if spec is None:  # where no grid record was given, the grid is that of the bands that products use
        spec = next((b for b in entries(scene.cogs, "bands").values() if b.get("kind") == "continuous"), {})
    size = pixel_size(at(spec, "transform"))
    found = {
        "crs": crs_name(at(spec, "crs")),
        "unit": unit_of(at(spec, "crs")),
        "pixel_size": list(size) if size else None,
        "operation": _operation(scene.grid),
    }
    if found["operation"] == "identity":
        return found
    projection = at(scene.grid, "warp", "projection")
    if isinstance(projection, dict):
        known = ("name", "definition", "accuracy_m", "ballpark", "missing_grids", "proj")
        projection = {key: at(projection, key) for key in known}
    return found | {
        "source_crs": one_or_all(crs_name(at(source, "grid", "crs")) for source in _sources(scene.grid)),
        "engine": scalar(at(scene.grid, "warp", "engine")),
        "projection": projection,
    }


def _operation(record: dict) -> str:
    return str(at(record, "operation", default="identity"))


def _sources(record: dict) -> list[dict]:
    return [source for source in listed(record, "sources") if isinstance(source, dict)]


def _ranges(records: list[dict], common: dict) -> dict:
    """What of their grids differs from scene to scene; {} where pixels stay where they are."""
    if common["operation"] == "identity":
        return {}
    ratios = [number(at(source, "ratio")) for record in records for source in _sources(record)]
    ratios = [ratio for ratio in ratios if ratio is not None]
    found = {
        "aligned": all(aligned(at(record, "grid", default={})) for record in records),
        "source_pixels_a_target_pixel": [rounded(min(ratios), 4), rounded(max(ratios), 4)] if ratios else None,
    }
    return found | ({"control_grid": _control_grid(records)} if common["operation"] == "grid" else {})


def _control_grid(records: list[dict]) -> dict:
    def known(key):
        return [value for value in (number(at(record, "warp", key)) for record in records) if value is not None]

    return {
        "steps": {f"{step:g}": count for step, count in sorted(Counter(known("step")).items())},
        "allowed_error_px": max(known("max_error_px"), default=None),
        "largest_error_px": rounded(max(known("error_px"), default=None), 3),
        "exact_cells": int(sum(known("exact_cells"))),
    }


def _crs(wkt) -> CRS | None:
    try:
        return CRS.from_wkt(str(wkt)) if wkt else None
    except CRSError:
        return None


def crs_name(wkt) -> str:
    """EPSG code of a WKT where it has one, else the WKT itself."""
    crs = _crs(wkt)
    if crs is None:
        return str(wkt) if wkt else "none"
    code = crs.to_epsg()
    return f"EPSG:{code}" if code else crs.to_wkt()


def unit_of(wkt) -> str | None:
    """Unit of the coordinates: m, degrees, or the name that the reference system gives."""
    crs = _crs(wkt)
    if crs is None:
        return None
    unit = "degrees" if crs.is_geographic else str(crs.linear_units)
    return "m" if unit in ("metre", "meter") else unit


def _transform(transform) -> list[float] | None:
    values = [number(value) for value in transform] if isinstance(transform, list | tuple) else []
    return values if len(values) == 6 and None not in values else None


def pixel_size(transform) -> tuple[float, float] | None:
    """Width and height of a pixel in units of the reference system, from a transform of 6 numbers."""
    values = _transform(transform)
    if values is None:
        return None
    a, b, _, d, e, _ = values
    return float(np.hypot(a, d)), float(np.hypot(b, e))


def bounds(spec: dict) -> tuple[float, ...] | None:
    """left, bottom, right, top of a grid that is not rotated."""
    values, shape = _transform(at(spec, "transform")), at(spec, "shape")
    sides = [number(side) for side in shape] if isinstance(shape, list | tuple) else []
    if values is None or len(sides) != 2 or None in sides or values[1] or values[3]:
        return None
    a, _, left, _, e, top = values
    return left, top + e * sides[0], left + a * sides[1], top


def aligned(spec: dict) -> bool:
    """Whether a grid's origin lies at whole multiples of its pixel size."""
    values = _transform(at(spec, "transform"))
    if values is None or values[1] or values[3] or not values[0] or not values[4]:
        return False
    places = values[2] / values[0], values[5] / values[4]
    return all(abs(place - round(place)) < ON_LATTICE_PX for place in places)


def resampling(facts: Facts) -> dict:
    """How resampled bands took their values: order, method of each product, and what was allowed."""
    warped = resampled(facts)
    if not warped:
        return {"scenes": 0}
    methods = {name: _methods(facts, name, warped) for name in facts.product_names}
    interpolated = {band for bands in methods.values() for band, method in bands.items() if method in ALIASING}
    return {
        "scenes": len(warped),
        "order": scalar(at(facts.spec, "warp", "order")),
        "methods": {name: _short(bands) for name, bands in methods.items()},
        "allow_aliasing": scalar(at(facts.spec, "warp", "allow_aliasing")),
        "aliased_scenes": sum(_aliased(scene.grid, interpolated) for scene in warped),
    }


def _methods(facts: Facts, name: str, scenes: list[SceneFacts]) -> dict[str, str]:
    """{band: method} of a product, classes and flags as they are really taken; {} where its spec does not say."""
    spec = facts.product_spec(name)
    method = spec.get("resampling")
    if method is None:
        return {}
    kinds = {role: str(band.get("kind")) for scene in scenes for role, band in entries(scene.cogs, "bands").items()}
    try:
        names = parse_formula(str(spec.get("formula"))).names
    except (CogmillError, ValueError):
        return {}
    return {band: band_method(str(method), kinds.get(band, "continuous")) for band in names}


def _short(bands: dict[str, str]):
    """The method where all bands share it, else {band: method}; None where nothing is known."""
    return next(iter(bands.values())) if len(set(bands.values())) == 1 else bands or None


def _aliased(record: dict, interpolated: set[str]) -> bool:
    return any(
        (number(at(source, "ratio")) or 0) > MAX_RATIO and interpolated & set(map(str, listed(source, "bands")))
        for source in _sources(record)
    )


def self_check(facts: Facts) -> dict:
    """Tiles that were computed a second time by other code, and how far they were off.

    `differing_validity` counts pixels that are valid in one of the two alone, `excused` those that the error allowed of
    a coordinate near a pixel's edge, or rounding at a pole of the formula, may have decided.
    """
    checks = {scene.scene: at(scene.line, "self_check") for scene in facts.scenes}
    checks = {scene: check for scene, check in checks.items() if isinstance(check, dict)}
    parts = defaultdict(list)
    for check in checks.values():
        for name, part in entries(check, "products").items():
            parts[name].append(part)
    return {
        "tiles": len(checks),
        "passed": sum(at(check, "passed") is True for check in checks.values()),
        "failed": sorted(scene for scene, check in checks.items() if at(check, "passed") is not True),
        "pixels": int(sum_of(at(check, "pixels") for check in checks.values())),
        "products": {name: _compared(found) for name, found in sorted(parts.items())},
    }


def _compared(parts: list[dict]) -> dict:
    def known(key):
        return [value for value in (number(part.get(key)) for part in parts) if value is not None]

    medians = known("median_difference")
    return {
        "compared": int(sum(known("compared"))),
        "differing_validity": int(sum(known("differing_validity"))),
        "excused": int(sum(known("excused"))),
        "largest_difference": rounded(max(known("largest_difference"), default=None), 3),
        "median_of_median_differences": rounded(statistics.median(medians) if medians else None, 3),
    }


def sentences(doc: dict) -> list[str]:
    """What was done to the pixels, as text for a paper; from the document, so that the two cannot differ."""
    done = doc["outputs"]["scenes"]["done"]
    if not done:
        return ["No scene was processed."]
    formulas = [f"{name} = {product['formula']}" for name, product in doc["products"].items() if product["formula"]]
    version = _words(doc["software"].get("cogmill"))
    found = [
        f"{_words(formulas) or 'The products'} {'were' if len(formulas) != 1 else 'was'} computed from {_plural(done)} "
        f"with cogmill {version}."
    ]
    if doc["masks"]:
        found.append(
            f"Pixels were masked by the original values of the quality bands {_words(doc['masks'])}, and stored "
            "numbers converted to physical values, before anything else."
        )
    found += _grid_sentences(doc["grid"])
    found += _resampling_sentences(doc["resampling"])
    return found + _check_sentences(doc["self_check"])


def _words(names) -> str:
    """`a, b and c` of any names."""
    names = [names] if isinstance(names, str) else [str(name) for name in names or ()]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _plural(count: int, word: str = "scene") -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _grid_sentences(found: list[dict]) -> list[str]:
    same = sum(entry["scenes"] for entry in found if entry["operation"] == "identity")
    sentences = [f"Not resampled, as each stayed on its own grid: {_plural(same)}."] if same else []
    targets: dict[tuple, list[dict]] = defaultdict(list)
    for entry in found:
        if entry["operation"] != "identity":
            targets[entry["crs"], str(_size(entry))].append(entry)
    for (crs, size), entries_ in targets.items():
        lattice = " at whole multiples of the pixel size" if all(entry["aligned"] for entry in entries_) else ""
        count = sum(entry["scenes"] for entry in entries_)
        sentences.append(f"The grid of {_plural(count)} is that of {crs} with pixels of {size}{lattice}.")
        ways: dict[tuple, list[dict]] = defaultdict(list)
        for entry in entries_:
            ways[entry["operation"], str(at(entry["projection"], "proj"))].append(entry)
        sentences += [_coordinates(operation, entries_) for (operation, _), entries_ in ways.items()]
    return sentences


def _size(entry: dict) -> str:
    sides = [f"{side:g}" for side in entry["pixel_size"] or ()]
    return f"{' x '.join(sides) or 'unknown size'} {entry['unit'] or ''}".strip()


def _coordinates(operation: str, found: list[dict]) -> str:
    """How pixels were placed: of entries of the grid section that share the operation and the version of PROJ."""
    sources = _words(dict.fromkeys(_words(entry["source_crs"]) for entry in found))
    if operation == "gdal":
        return f"Scenes of {sources} were warped by GDAL (engine gdal), approximating no coordinate."
    if operation == "affine":
        return f"Scenes of {sources}, the target's own reference system, were placed by an affine transform."
    if operation not in ("exact", "grid"):
        return f"Scenes of {sources} were placed by '{operation}'."
    ways, version = "; ".join(_projection(entry) for entry in found), at(found[0]["projection"], "proj")
    how = f"Pixel coordinates in the scenes were computed with PROJ {version or '(version unknown)'} ({ways})"
    if operation == "exact":
        return f"{how} for every pixel."
    nodes = [entry["control_grid"] for entry in found]
    steps = sorted({step for entry in nodes for step in entry["steps"]}, key=float)
    errors = [entry["largest_error_px"] for entry in nodes if entry["largest_error_px"] is not None]
    exact = sum(entry["exact_cells"] for entry in nodes)
    return (
        f"{how} at the nodes of a control grid ({' or '.join(steps) or 'unknown'} pixels apart) and interpolated "
        f"bilinearly between them, with an error of at most {f'{max(errors):g}' if errors else 'unknown'} source pixels"
        + (f"; at every pixel in {_plural(exact, 'cell')} of it." if exact else ".")
    )


def _projection(entry: dict) -> str:
    """One source's operation in words."""
    found = entry["projection"]
    if not isinstance(found, dict):
        return f"{_words(entry['source_crs'])}: no change of reference system"
    accuracy = number(found["accuracy_m"])
    parts = [
        f"{_words(entry['source_crs'])}: operation '{found['name']}'",
        "of unknown accuracy" if accuracy is None else f"accuracy {accuracy:g} m",
        "ballpark: no datum shift is known" if found["ballpark"] is True else "",
        f"without the grids {_words(map(str, found['missing_grids']))}" if listed(found, "missing_grids") else "",
    ]
    return ", ".join(filter(None, parts))


def _resampling_sentences(found: dict) -> list[str]:
    if not found["scenes"]:
        return []
    names: dict[str, list[str]] = defaultdict(list)
    for product, method in found["methods"].items():
        for band, one in (method if isinstance(method, dict) else {"": method}).items():
            if one:
                names[str(METHODS.get(one, one))].append(f"{band} of {product}" if band else product)
    how = "; ".join(f"{method} ({_words(products)})" for method, products in names.items())
    order = ORDERS.get(found["order"], "bands were resampled")
    aliased = found["aliased_scenes"]
    # gdalwarp widens its kernels by a ratio of pixel sizes that it guesses
    kernels = " Kernels have their width in source pixels." if set(names) & {METHODS[name] for name in ALIASING} else ""
    return [
        f"Resampling: {how or 'method not recorded'}; {order}.{kernels}"
        + (
            f" In {_plural(aliased)} a target pixel is wider than {MAX_RATIO} source pixels, so that some are skipped "
            "(allow_aliasing)."
            if aliased
            else ""
        )
    ]


def _check_sentences(found: dict) -> list[str]:
    if not found["tiles"]:
        return []
    largest = [p["largest_difference"] for p in found["products"].values() if p["largest_difference"] is not None]
    end = "all" if found["passed"] == found["tiles"] else f"{found['passed']} of them"
    return [
        f"A second computation by separate code, in float64 from exact coordinates, covered "
        f"{_plural(found['tiles'], 'tile')} ({_plural(found['pixels'], 'pixel')}): {end} within the error allowed"
        + (f" (largest difference {max(largest):g})." if largest else ".")
    ]
