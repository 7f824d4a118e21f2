"""Judge the demo's products by the truth, and say where everything is.

    python check_demo.py FOLDER

The truth is evaluated here, at the centres of the scenes' pixels, by the functions of `make_scenes.py`, and brought
onto the products' grid at coordinates that PROJ gives for each pixel: nothing of cogmill is imported. Exit code 1 when
a product is missing, lies on another lattice than asked for, is valid where it must not be or the other way round, or
is further from the truth than the rounding of its input and `grid.max_error_px` allow.
"""

import argparse
import functools
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rasterio
from make_scenes import (
    DAMAGED,
    MASKED_BITS,
    MASKED_CLASSES,
    QA_VALUES,
    RESOLUTION,
    SCENES,
    TARGET_CRS,
    Scene,
    ground,
    reflectance,
    scene_class,
    sky,
    strips,
)
from pyproj import Transformer

PRODUCTS = {"ndvi": ("nir", "red"), "ndmi": ("nir", "swir16")}  # (a - b) / (a + b)
FLOAT32 = 1e-6  # a few roundings to float32 of numbers up to 1
STEP = {"ndvi": 0.0, "ndmi": 1e-4}  # packed products are rounded to this step
MAX_ERROR_PX = 0.01  # of a coordinate, in pixels of the scene: the default of grid.max_error_px
PAD = 2  # pixels around a source, so that a tap has an address wherever it falls
ROWS = 128  # of a product, judged at a time
SAME_DAY = ("S2A_32TQM_20230615", "S2A_33TTG_20230615")  # one sky over two zones


@dataclass(frozen=True)
class Source:
    """The pixels of one size of a scene, padded by PAD: `clear`, bool, and {band: true reflectance}.

    `spread` {band: range of the clear values} and `whole` (all clear) are those of the 4 x 4 pixels around the corner
    that four pixels share, at the address of the top left one of the four.
    """

    factor: int
    clear: np.ndarray
    bands: dict[str, np.ndarray]
    spread: dict[str, np.ndarray]
    whole: np.ndarray


@dataclass(frozen=True)
class Verdict:
    """How one product compares with the truth; `worst` is the largest error over the one allowed there.

    `differing` counts pixels whose validity is wrong, `on_edge` those where it differs because the coordinate lies
    within MAX_ERROR_PX of the edge of a pixel.
    """

    scene: str
    product: str
    valid: int
    differing: int
    on_edge: int
    mean_error: float
    largest_error: float
    worst: float

    @property
    def good(self) -> bool:
        return self.valid > 0 and self.differing == 0 and self.worst <= 1


@functools.cache
def masked_classes(scene: Scene) -> np.ndarray:
    """Which pixels of a scene's mask band have a class that the config masks: bool (rows, cols)."""
    band = "scl" if "scl" in scene.files else "qa_pixel"
    kinds = np.concatenate(
        [
            scene_class(ground(x, y), sky(x, y, scene.day), scene.seen(x, y), scene.day)
            for x, y in strips(scene, scene.factor(band))
        ]
    )
    if band == "scl":
        return np.isin(kinds, MASKED_CLASSES)
    bits = sum(1 << bit for bit in MASKED_BITS)
    return np.isin(kinds, [kind for kind, value in QA_VALUES.items() if value & bits])


def clear_truth(scene: Scene, factor: int = 1) -> np.ndarray:
    """Which pixels of a band are seen, and not masked by the class of their mask band's pixel: bool (rows, cols)."""
    coarser = scene.factor("scl" if "scl" in scene.files else "qa_pixel") // factor
    seen = np.concatenate([scene.seen(x, y) for x, y in strips(scene, factor)])
    masked = masked_classes(scene).repeat(coarser, axis=0).repeat(coarser, axis=1)
    return ~masked[: seen.shape[0], : seen.shape[1]] & seen


def sources(scene: Scene) -> list[Source]:
    """The truth at the pixels of the scene's bands, one entry for each pixel size."""
    names = sorted({band for pair in PRODUCTS.values() for band in pair})
    return [
        _source(scene, factor, [band for band in names if scene.factor(band) == factor])
        for factor in sorted({scene.factor(band) for band in names})
    ]


def _source(scene: Scene, factor: int, names: list[str]) -> Source:
    lands = [ground(x, y) for x, y in strips(scene, factor)]
    bands = {
        name: np.pad(np.concatenate([reflectance(land, scene.day, name) for land in lands]), PAD) for name in names
    }
    clear = np.pad(clear_truth(scene, factor), PAD)
    spread = {
        name: around(np.where(clear, value, -np.inf), np.maximum) - around(np.where(clear, value, np.inf), np.minimum)
        for name, value in bands.items()
    }
    return Source(factor, clear, bands, spread, around(clear, np.logical_and))


def around(values: np.ndarray, take) -> np.ndarray:
    """`take` (np.maximum, say) over columns c - 1 to c + 2 and rows r - 1 to r + 2; the padding stands for what is
    outside of the array."""
    for axis in (0, 1):
        fill = take.identity if take is np.logical_and else (-np.inf if take is np.maximum else np.inf)
        widths = [(1, 2) if k == axis else (0, 0) for k in (0, 1)]
        wide, size = np.pad(values, widths, constant_values=fill), values.shape[axis]
        parts = [wide.take(range(k, k + size), axis=axis) for k in range(4)]
        values = take(take(parts[0], parts[1]), take(parts[2], parts[3]))
    return values


def valid_at(source: Source, x, y) -> np.ndarray:
    """Whether the pixel under a coordinate is in the raster and clear; x, y in pixels, from the raster's corner."""
    rows, cols = (side - 2 * PAD for side in source.clear.shape)
    inside = (x >= 0) & (y >= 0) & (x + 1e-10 <= cols) & (y + 1e-10 <= rows)
    col = np.clip(np.floor(x + 1e-10), 0, cols - 1).astype(np.intp)
    row = np.clip(np.floor(y + 1e-10), 0, rows - 1).astype(np.intp)
    return inside & source.clear[row + PAD, col + PAD]


def bilinear(source: Source, x, y) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{band: (reflectance, how far it may be off)} at coordinates whose pixel is clear.

    Taps that are not clear are dropped, and the weights of the others made to sum to 1. A coordinate that is off by
    e pixels changes the value by at most sqrt(2) e times the range of the taps around where all are clear. Where some
    are dropped, the slope of a weight is divided by a sum of weights that is 1/4 or more, hence 8 instead of 1.
    """
    col, row = np.floor(x - 0.5).astype(np.intp), np.floor(y - 0.5).astype(np.intp)
    u, v = x - 0.5 - col, y - 0.5 - row
    col, row = col + PAD, row + PAD
    weights = {(0, 0): (1 - u) * (1 - v), (0, 1): u * (1 - v), (1, 0): (1 - u) * v, (1, 1): u * v}
    weights = {(r, c): weight * source.clear[row + r, col + c] for (r, c), weight in weights.items()}
    total = sum(weights.values())
    slope = np.where(source.whole[row, col], 1, 8) * (np.sqrt(2) * MAX_ERROR_PX / source.factor)
    return {
        name: (
            sum(weight * values[row + r, col + c] for (r, c), weight in weights.items()) / total,
            slope * source.spread[name][row, col],
        )
        for name, values in source.bands.items()
    }


def normalised_difference(first, second, rounding: float):
    """(a - b) / (a + b) of interpolated reflectances, and its largest error.

    The inputs are rounded to steps of the sensor's scale, so each reflectance is off by at most half a step, also as a
    mean with weights; the coordinate's error comes on top. For errors e, f of a, b >= 0 the result is off by
    2 (e b - f a) / ((a + b) (a + b + e + f)).
    """
    (a, a_off), (b, b_off) = ((value, off + rounding / 2) for value, off in (first, second))
    allowed = 2 * (a_off * b + b_off * a) / ((a + b) * np.maximum(a + b - a_off - b_off, 1e-9))
    return (a - b) / (a + b), allowed


def source_pixels(scene: Scene, transform, rows: range, cols: int, to_scene: Transformer):
    """Where the centres of a product's pixels lie on the scene: x, y (rows, cols), in its pixels from its corner."""
    col, row = np.meshgrid(np.arange(cols) + 0.5, np.array(rows) + 0.5)
    x, y = to_scene.transform(transform.c + transform.a * col, transform.f + transform.e * row)
    return (x - scene.origin[0]) / scene.pixel, (scene.origin[1] - y) / scene.pixel


def judge_scene(products: Path, scene: Scene) -> list[Verdict]:
    """Compare all products of a scene with the truth."""
    paths = {name: products / scene.name / f"{name}.tif" for name in PRODUCTS}
    paths = {name: path for name, path in paths.items() if path.exists()}
    if not paths:
        return []
    truth = sources(scene)
    to_scene = Transformer.from_crs(TARGET_CRS, scene.crs, always_xy=True)
    found = {name: _Tally() for name in paths}
    for name, path in paths.items():
        with rasterio.open(path) as product:
            value = product.read(1, masked=True)
            found[name].value = value.data * product.scales[0] + product.offsets[0]
            found[name].valid, transform = ~np.ma.getmaskarray(value), product.transform
    rows, cols = found[name].valid.shape
    for top in range(0, rows, ROWS):
        strip = range(top, min(top + ROWS, rows))
        _judge_strip(found, scene, truth, strip, *source_pixels(scene, transform, strip, cols, to_scene))
    return [tally.verdict(scene.name, name) for name, tally in found.items()]


class _Tally:
    """One product, and what the strips judged so far add up to."""

    def __init__(self):
        self.value = self.valid = None
        self.differing = self.on_edge = self.compared = 0
        self.sum = self.largest = self.worst = 0.0

    def verdict(self, scene: str, product: str) -> Verdict:
        mean = self.sum / self.compared if self.compared else np.nan
        worst = self.worst if self.compared else np.inf
        return Verdict(scene, product, int(self.valid.sum()), self.differing, self.on_edge, mean, self.largest, worst)


def _judge_strip(found: dict, scene: Scene, truth: list[Source], strip: range, x, y) -> None:
    corners = [(0, 0), *((dx, dy) for dx in (-MAX_ERROR_PX, MAX_ERROR_PX) for dy in (-MAX_ERROR_PX, MAX_ERROR_PX))]
    at = {
        source.factor: [valid_at(source, (x + dx) / source.factor, (y + dy) / source.factor) for dx, dy in corners]
        for source in truth
    }
    bands = {}
    for source in truth:
        clear = at[source.factor][0]
        for band, parts in bilinear(source, x[clear] / source.factor, y[clear] / source.factor).items():
            bands[band] = [_spread_out(part, clear) for part in parts]
    for name, tally in found.items():
        factors = {scene.factor(band) for band in PRODUCTS[name]}
        wanted = np.logical_and.reduce([at[factor][0] for factor in factors])
        surely = np.logical_and.reduce([np.logical_and.reduce(at[factor]) for factor in factors])
        maybe = np.logical_and.reduce([np.logical_or.reduce(at[factor]) for factor in factors])
        valid = tally.valid[strip.start : strip.stop]
        wrong = (valid & ~maybe) | (~valid & surely)
        tally.differing += int(wrong.sum())
        tally.on_edge += int(((valid != wanted) & ~wrong).sum())
        both = valid & wanted
        first, second = ([part[both] for part in bands[band]] for band in PRODUCTS[name])
        value, allowed = normalised_difference(first, second, scene.scale)
        error = np.abs(tally.value[strip.start : strip.stop][both] - value)
        if error.size:
            tally.compared += error.size
            tally.sum += float(error.sum())
            tally.largest = max(tally.largest, float(error.max()))
            tally.worst = max(tally.worst, float((error / (allowed + STEP[name] / 2 + FLOAT32)).max()))


def _spread_out(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """The array whose elements at `where` are `values`; NaN elsewhere."""
    out = np.full(where.shape, np.nan)
    out[where] = values
    return out


def lattice_faults(products: Path) -> list[str]:
    """What is wrong with the products' grids: CRS, pixel size, an origin off the lattice, too much or little ground."""
    faults = []
    for scene in SCENES:
        for path in sorted((products / scene.name).glob("*.tif")):
            with rasterio.open(path) as product:
                if product.crs != rasterio.crs.CRS.from_string(TARGET_CRS) or product.res != (RESOLUTION, RESOLUTION):
                    faults.append(f"{path}: {product.crs}, pixels of {product.res}")
                elif product.transform.c % RESOLUTION or product.transform.f % RESOLUTION:
                    faults.append(f"{path}: its origin {product.transform.c}, {product.transform.f} is off the lattice")
                elif not _encloses(product.bounds, scene):
                    faults.append(f"{path}: {product.bounds} does not enclose its scene as tightly as pixels can")
    return faults


def _encloses(bounds, scene: Scene) -> bool:
    """Whether the bounds hold the scene's outline and no further row or column; a hundredth of a pixel is nothing."""
    rows, cols = scene.shape
    right, bottom = np.linspace(0, cols, cols + 1), np.linspace(0, rows, rows + 1)
    col = np.concatenate([right, right, 0 * bottom, 0 * bottom + cols])
    row = np.concatenate([0 * right, 0 * right + rows, bottom, bottom])
    to_target = Transformer.from_crs(scene.crs, TARGET_CRS, always_xy=True)
    x, y = to_target.transform(scene.origin[0] + scene.pixel * col, scene.origin[1] - scene.pixel * row)
    margins = (x.min() - bounds.left, y.min() - bounds.bottom, bounds.right - x.max(), bounds.top - y.max())
    return all(-0.01 <= margin / RESOLUTION <= 1.01 for margin in margins)


def zones_agree(products: Path) -> tuple[bool, str]:
    """Whether two tiles of one day, of neighbouring zones, show the same ground where both do.

    The landscape has edges sharper than a pixel, which two lattices sample differently; but their difference must be
    smallest where they lie on each other as their georeferencing says, not a pixel aside.
    """
    paths = [products / name / "ndvi.tif" for name in SAME_DAY]
    if not all(path.exists() for path in paths):
        return False, f"{' and '.join(SAME_DAY)} are not both there"
    with rasterio.open(paths[0]) as one, rasterio.open(paths[1]) as other:
        values = [source.read(1, masked=True).filled(np.nan) for source in (one, other)]
        col = round((other.transform.c - one.transform.c) / RESOLUTION)
        row = round((one.transform.f - other.transform.f) / RESOLUTION)
    medians = {}
    for shift in ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)):
        first, second = _overlap(*values, row + shift[0], col + shift[1])
        difference = np.abs(first - second)
        medians[shift] = float(np.nanmedian(difference)) if np.isfinite(difference).any() else np.inf
        if shift == (0, 0):
            common = int(np.isfinite(difference).sum())
    here, aside = medians.pop((0, 0)), min(medians.values())
    told = f"{common:,} pixels in common, median difference of ndvi {here:.4f}; a pixel aside it were {aside:.4f}"
    return common > 0 and here < aside / 2, told


def _overlap(one: np.ndarray, other: np.ndarray, row: int, col: int):
    """The parts that lie on each other when `other` begins at (row, col) of `one`."""
    height = min(one.shape[0] - max(row, 0), other.shape[0] + min(row, 0))
    width = min(one.shape[1] - max(col, 0), other.shape[1] + min(col, 0))
    if height < 1 or width < 1:
        return one[:0], other[:0]
    first = one[max(row, 0) :, max(col, 0) :][:height, :width]
    return first, other[max(-row, 0) :, max(-col, 0) :][:height, :width]


def damaged_state(products: Path) -> tuple[bool, str]:
    """Whether the damaged scene failed, as it must, and what its record says."""
    record = products / DAMAGED.name / "record.json"
    if not record.exists():
        return False, f"{DAMAGED.name} has no record"
    doc = json.loads(record.read_text(encoding="utf-8"))
    made = sorted(path.name for path in record.parent.glob("*.tif"))
    told = f"{DAMAGED.name}: {doc['state']}, {doc['reason']}: {doc['message']}"
    if made:
        told += f" (and yet there is {', '.join(made)})"
    return doc["state"] == "failed" and not made, told


def table(verdicts: list[Verdict]) -> str:
    """The comparison as text."""
    lines = [
        f"{'scene':<34}{'product':<9}{'valid pixels':>13}{'wrong':>7}{'on edge':>9}{'mean error':>12}{'largest':>10}"
        f"{'% of allowed':>14}"
    ]
    lines += [
        f"{v.scene:<34}{v.product:<9}{v.valid:>13,}{v.differing:>7,}{v.on_edge:>9,}{v.mean_error:>12.1e}"
        f"{v.largest_error:>10.1e}{100 * v.worst:>12.1f} %"
        for v in verdicts
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="Compare the demo's products with the truth.")
    parser.add_argument("folder", type=Path, help="folder of the demo")
    results = parser.parse_args().folder / "results"
    products = results / "products"
    faults = lattice_faults(products)
    if faults:
        sys.exit("The demo is wrong:\n  " + "\n  ".join(faults))
    with ThreadPoolExecutor(2) as pool:
        verdicts = [
            verdict for found in pool.map(lambda scene: judge_scene(products, scene), SCENES) for verdict in found
        ]
    made = {(verdict.scene, verdict.product) for verdict in verdicts}
    missing = [f"{s.name}/{name}.tif" for s in SCENES for name in PRODUCTS if (s.name, name) not in made]
    agree, zones = zones_agree(products)
    as_wanted, told = damaged_state(products)
    print(f"Products against the truth, at the exact coordinate of each pixel of {TARGET_CRS}, {RESOLUTION:g} m")
    print("(wrong: pixels whose validity differs; on edge: it may, the coordinate being that near a pixel's edge):\n")
    print(table(verdicts))
    print(f"\nZones 32 and 33 on one day {'agree' if agree else 'DO NOT agree'}: {zones}")
    print(f"\nThe damaged scene, {'as it must be' if as_wanted else 'NOT as it must be'}:\n  {told}\n")
    for name, path in (
        ("COGs", f"{products}/SCENE/PRODUCT.tif"),
        ("Pictures", f"{results}/report/quicklooks/"),
        ("Report", f"{results}/report/report.html"),
        ("Methods", f"{results}/report/methods.yaml"),
    ):
        print(f"{name + ':':<10}{path}")
    wrong = [f"{v.scene}/{v.product}.tif" for v in verdicts if not v.good]
    if missing or wrong or not as_wanted or not agree:
        sys.exit(
            f"\nThe demo is wrong. Missing: {missing or 'nothing'}; off the truth: {wrong or 'nothing'}; "
            f"zones {'agree' if agree else 'disagree'}"
        )
    print("\nAll products are as true as their inputs' rounding and the control grid's error allow.")


if __name__ == "__main__":
    main()
