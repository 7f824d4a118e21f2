"""One tile of a scene's products, computed again by other code and compared pixel by pixel.

Nothing of what made the products takes part (see reference.py): coordinates come from PROJ itself, pixels from GDAL,
arithmetic is float64. A product may differ from that by what its coordinates' error and float32 explain, no more.
"""

import hashlib
import itertools
import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rasterio

from cogmill.indices import parse_formula
from cogmill.ledger import decode_number, encode_number
from cogmill.reference import LARGEST, UNIT, Block, Field, Formula, Places, Stored, resample
from cogmill.resampling import AREA_METHODS, INTERPOLATING, band_method

log = logging.getLogger("cogmill")

TILE = 512
TRIES = 8  # tiles, or places in one, that are looked at for valid pixels
MAX_TAPS = 40_000_000  # look-ups of source pixels, so that a check takes seconds at most
MAX_SOURCE_PIXELS = 3_000_000
TAPS = {"nearest": 1, "bilinear": 4, "cubic": 20, "lanczos": 36}
MARGIN = 5  # source pixels around the coordinates that methods look at
GDAL_LANCZOS = 100  # times the error of lanczos elsewhere
FINER = (-1, -0.5, 0, 0.5, 1)
FINELY_TRIED = 1000  # pixels; more are too many to be at edges
WIDE = ("uint32", "int32", "uint64", "int64", "float64")  # float32 does not hold them
SMALLEST_STEP = 1e-9  # of a packed number, as rounding in float64 may have it


def why_unchecked(grid: dict) -> str | None:
    """Why a scene's products cannot be checked; None where they can.

    Parameters
    ----------
    grid : dict
        The scene's `grids` record.
    """
    if grid["operation"] == "gdal":
        if any(source["gcps"] or source["rpcs"] or not source["grid"]["transform"] for source in grid["sources"]):
            return "ground control points and rational polynomials are GDAL's alone: there is no other way to compare"
        if not grid["warp"].get("projection") and not _one_crs(grid):
            return "GDAL chose the operation between the CRSs itself: there is no other way to compare"
    return None


def _one_crs(grid: dict) -> bool:
    return all(source["grid"]["crs"] == grid["grid"]["crs"] for source in grid["sources"])


def check_tile(
    scene: str,
    cogs: dict,
    cogs_folder: Path,
    grid: dict,
    products: dict[str, dict],
    masks: dict[str, dict],
    warp: dict,
    files: dict[str, Path],
    tile: tuple[int, int] | None = None,
    beat: Callable[[], None] = lambda: None,
) -> dict | None:
    """Compute at most one tile of a scene's products again and compare.

    Parameters
    ----------
    scene : str
        Its id decides which tile is taken.
    cogs, grid : dict
        The scene's `cogs` and `grids` records.
    cogs_folder : Path
        Of the stored bands.
    products : dict
        {name: {"formula", "dtype", "scale", "offset", "nodata", "resampling"}}.
    masks : dict
        {role: {"classes", "bits"}}; masks of the whole scene (kind "mask") need not be named.
    warp : dict
        Its key `order`: bands_then_index or index_then_warp.
    files : dict
        {name: file of the product}.
    tile : (tile row, tile column), optional
        One with valid pixels by default.
    beat : callable
        Called before each step of some seconds.

    Returns
    -------
    dict or None
        tile; pixels, how many of it were compared; seconds; passed; message, None where it passed; and products:
        {name: {"compared", "differing_validity", "excused", "largest_difference", "median_difference",
        "allowed_at_largest", "wrong"}}, counts of pixels, and differences in the product's unit. `excused` are pixels
        that an edge within the coordinates' error, or rounding at a pole of the formula, may have decided.
        None where there is no other way to compute the products (see `why_unchecked`).

    Raises
    ------
    OSError
        A file cannot be read.
    """
    clock = time.perf_counter()
    reason = why_unchecked(grid)
    if reason or not products:
        log.info("scene %r: no self-check: %s", scene, reason or "no product")
        return None
    specs = {name: spec | {"expression": parse_formula(spec["formula"])} for name, spec in products.items()}
    seed = random.Random(hashlib.sha256(scene.encode()).hexdigest())
    first = files[next(iter(specs))]
    if tile is None:
        tile = pick_tile(seed, tuple(grid["grid"]["shape"]), first, specs[next(iter(specs))])
    checker = _Checker(cogs, cogs_folder, grid, specs, masks, warp.get("order", "bands_then_index"))
    block = _pick_block(seed, checker.most_pixels(), _tile_block(tile, grid["grid"]["shape"]), first, specs)
    checker.start(block)
    results, messages = {}, []
    for name in specs:
        results[name], message = checker.compare(name, files[name], beat)
        if message:
            messages.append(f"scene {scene!r}: self-check of product {name!r}, tile ({tile[0]}, {tile[1]}): {message}")
    return {
        "tile": list(tile),
        "pixels": block.rows * block.cols,
        "seconds": round(time.perf_counter() - clock, 6),
        "passed": not messages,
        "message": "; ".join(messages) or None,
        "products": results,
    }


def pick_tile(seed: random.Random, shape: tuple[int, int], file: Path, spec: dict) -> tuple[int, int]:
    """A tile (tile row, tile column) at random, rather one with valid and invalid pixels, or with valid ones.

    Parameters
    ----------
    seed : random.Random
    shape : (rows, cols)
    file, spec
        A product and what it is.
    """
    across = -(-shape[1] // TILE)
    number = -(-shape[0] // TILE) * across
    tries = [divmod(place, across) for place in seed.sample(range(number), min(TRIES, number))]
    with rasterio.open(file) as product:
        return _fittest(tries, lambda tile: _valid(_read(product, _tile_block(tile, shape)), spec))


def _fittest(tries: list, valid: Callable):
    """The first with valid and invalid pixels, else with valid ones, else the first."""
    best, rank = tries[0], 0
    for each in tries:
        share = float(np.mean(valid(each)))
        found = 2 if 0.02 < share < 0.98 else 1 if share > 0 else 0
        if found > rank:
            best, rank = each, found
        if rank == 2:
            break
    return best


def _pick_block(seed: random.Random, most: int, tile: Block, file: Path, specs: dict) -> Block:
    """As much of a tile as can be computed in a second or two."""
    if tile.rows * tile.cols <= most:
        return tile
    rows = min(tile.rows, max(1, math.isqrt(most)))
    cols = min(tile.cols, max(1, most // rows))
    tries = [
        Block(tile.row + seed.randint(0, tile.rows - rows), tile.col + seed.randint(0, tile.cols - cols), rows, cols)
        for _ in range(TRIES)
    ]
    with rasterio.open(file) as product:
        return _fittest(tries, lambda block: _valid(_read(product, block), next(iter(specs.values()))))


def _tile_block(tile: tuple[int, int], shape) -> Block:
    row, col = tile[0] * TILE, tile[1] * TILE
    return Block(row, col, min(TILE, shape[0] - row), min(TILE, shape[1] - col))


def _read(product, block: Block) -> np.ndarray:
    return product.read(1, window=block.raster_window())


def _valid(pixels: np.ndarray, spec: dict) -> np.ndarray:
    if pixels.dtype.kind == "f":
        return np.isfinite(pixels)
    return pixels != decode_number(spec["nodata"])


@dataclass
class _Wanted:
    """Values of a product before they are packed, NaN where invalid, with what arithmetic may change of them."""

    value: np.ndarray
    error: np.ndarray
    unsure: np.ndarray


class _Checker:
    """One block of a scene's products, computed and compared."""

    def __init__(self, cogs: dict, folder: Path, grid: dict, specs: dict, masks: dict, order: str):
        self.grid, self.specs = grid, specs
        self.same = grid["operation"] == "identity"
        self.index_first = order == "index_then_warp" and not self.same
        self.stored = Stored(cogs, folder, masks)
        self.sources = {role: i for i, source in enumerate(grid["sources"]) for role in source["bands"]}
        self.methods = {name: self._methods(spec) for name, spec in specs.items()}

    def _methods(self, spec: dict) -> dict[str, str]:
        """{band: method}."""
        names = spec["expression"].names
        if self.same:
            return dict.fromkeys(names, "nearest")
        methods = {name: band_method(spec["resampling"], self.stored.bands[name]["kind"]) for name in names}
        if self.index_first and len(set(methods.values())) > 1:  # the index has one method, that of codes
            return dict.fromkeys(names, "nearest")
        return methods

    def most_pixels(self) -> int:
        """Pixels that can be computed in reasonable time."""
        if self.same:
            return TILE * TILE
        ratio = max(1.0, *(source.get("ratio") or 1.0 for source in self.grid["sources"]))
        area = (math.ceil(ratio) + 1) ** 2
        taps = 0
        for methods in self.methods.values():
            variants = 17 if set(methods.values()) & set(AREA_METHODS) else 5
            # the most frequent of n pixels takes n look-ups for each
            each = [TAPS.get(method, area * (area if method == "mode" else 1)) for method in methods.values()]
            taps += variants * (max(each) if self.index_first else sum(each))
        return max(256, min(MAX_TAPS // taps, int(MAX_SOURCE_PIXELS / ratio**2)))

    def start(self, block: Block) -> None:
        """Find where the pixels of `block` lie; before anything is compared."""
        self.block = block
        self.places = Places(self.grid, block)
        self.everything = np.arange(block.rows * block.cols)
        areas = any(set(methods.values()) & set(AREA_METHODS) for methods in self.methods.values())
        self.windows = [self._window(i, areas) for i in range(len(self.grid["sources"]))]
        self.fields: dict[object, Field] = {}

    def _window(self, source: int, areas: bool) -> Block:
        """Part of a source that the block's pixels may take something from."""
        rows, cols = self.grid["sources"][source]["grid"]["shape"]
        xs, ys = [], []
        for area in (False, True)[: 1 + areas]:
            points = self.places.at(source, area)
            for x, y in zip(points[::2], points[1::2], strict=True):
                with np.errstate(invalid="ignore"):
                    near = (x > -MARGIN) & (x < cols + MARGIN) & (y > -MARGIN) & (y < rows + MARGIN)
                xs.append(x[near])
                ys.append(y[near])
        xs, ys = np.concatenate(xs), np.concatenate(ys)
        if not xs.size:
            return Block(0, 0, 1, 1)
        left, right = (min(max(math.floor(x), 0), cols) for x in (xs.min() - MARGIN, xs.max() + MARGIN))
        top, bottom = (min(max(math.floor(y), 0), rows) for y in (ys.min() - MARGIN, ys.max() + MARGIN))
        left, top = min(left, cols - 1), min(top, rows - 1)
        return Block(top, left, max(1, bottom - top), max(1, right - left))

    def _field(self, role: str, exact: bool = False) -> Field:
        """Values of a band around the block, `exact` ones or float32."""
        if (role, exact) not in self.fields:
            i = self.sources[role]
            source = self.grid["sources"][i]
            values = self.stored.values(role, source, self.windows[i], exact)
            self.fields[role, exact] = Field.of(values, self.windows[i], source["grid"]["shape"])
        return self.fields[role, exact]

    def _is_exact(self, role: str, bare: bool) -> bool:
        """Whether a band's values are not rounded to float32: bands alone, and resampled ones of wide types."""
        return bare if self.same else self.stored.bands[role]["dtype"] in WIDE

    def _index_field(self, product: str) -> Field:
        """Values of a product's formula on its bands' grid, around the block."""
        key = ("product", product)
        if key not in self.fields:
            expression = self.specs[product]["expression"]
            inner = {role: self._field(role) for role in expression.names}
            field = next(iter(inner.values()))
            found = Formula(expression.node, rounded=True)({role: (f.values, 0.0) for role, f in inner.items()})
            known = ~np.isnan([f.values for f in inner.values()]).any(axis=0) & (np.abs(found.value) <= LARGEST)
            noise = np.where(found.unsure, np.inf, found.error)
            values = np.where(known, found.value, np.nan)
            self.fields[key] = Field(values, field.row, field.col, field.shape, noise)
        return self.fields[key]

    def _wanted(self, product: str, signs, pick) -> _Wanted:
        """A product at some of the block's pixels, their coordinates moved by the error allowed."""
        expression, methods = self.specs[product]["expression"], self.methods[product]
        bare = expression.node[0] == "name"
        if self.index_first and not bare:
            role = expression.names[0]
            value, error = self._resampled(self._index_field(product), self.sources[role], methods[role], signs, pick)
            error = np.broadcast_to(error, value.shape)
            return _Wanted(value, error, ~np.isfinite(error) & ~np.isnan(value))
        bands = {
            role: self._resampled(
                self._field(role, self._is_exact(role, bare)), self.sources[role], method, signs, pick
            )
            for role, method in methods.items()
        }
        if not (bare and self.specs[product]["dtype"] != "float32"):
            # rounded to float32: resampled bands before the formula, a band alone when it is stored
            bands = {role: (value, noise + UNIT * np.abs(value)) for role, (value, noise) in bands.items()}
        found = Formula(expression.node)(bands)
        known = ~np.isnan([value for value, _ in bands.values()]).any(axis=0)
        value = np.where(known & (np.abs(found.value) <= LARGEST), found.value, np.nan)
        return _Wanted(value, found.error, found.unsure & known)

    def _resampled(self, field: Field, source: int, method: str, signs, pick):
        value, noise = resample(field, method, self.places.at(source, method in AREA_METHODS, signs, pick))
        # GDAL leaves out source pixels that have hardly any weight
        return value, noise * (GDAL_LANCZOS if method == "lanczos" and self.grid["operation"] == "gdal" else 1)

    def _moves(self, product: str, steps=(-1, 1)) -> Iterator[tuple]:
        """Directions in which coordinates may be wrong: all corners of the box of that size, or more of it."""
        area = bool(set(self.methods[product].values()) & set(AREA_METHODS))
        if area:
            return itertools.product(steps, repeat=4)
        return ((*pair, 0, 0) for pair in itertools.product(steps, repeat=2))

    def compare(self, product: str, file: Path, beat: Callable[[], None]) -> tuple[dict, str | None]:
        """Numbers of the comparison, and what is wrong."""
        spec = self.specs[product]
        beat()
        with rasterio.open(file) as opened:
            problem = _header_problem(opened, self.grid, spec)
            if problem:
                return _nothing_compared(self.block), problem
            found = _read(opened, self.block).ravel()
        packing = _Packing(spec)
        judged = _Judged(found, packing, self._wanted(product, (0, 0, 0, 0), self.everything))
        judged.unsure |= self.places.unsure | self._at_gdals_border(product)
        rest = np.flatnonzero(~judged.good())
        if rest.size:
            variants = []
            for signs in self._moves(product):
                beat()
                variants.append(self._wanted(product, signs, rest))
            judged.excuse(rest, variants, self._is_copied(product))
            rest = rest[~judged.good()[rest]][:FINELY_TRIED]
        if rest.size:
            # an edge may cut off a part of what the coordinates' error allows
            finer = [self._wanted(product, signs, rest) for signs in self._moves(product, FINER)]
            judged.excuse(rest, finer, self._is_copied(product))
        return judged.numbers(), judged.message(self.block)

    def _at_gdals_border(self, product: str) -> np.ndarray:
        """Target pixels that reach out of a source: GDAL's versions differ in whether such an area has a value."""
        found = np.zeros(self.everything.shape, bool)
        if self.grid["operation"] == "gdal":
            for role, method in self.methods[product].items():
                if method in AREA_METHODS:
                    rows, cols = self._field(role, False).shape
                    x0, y0, x1, y1 = self.places.at(self.sources[role], True)
                    with np.errstate(invalid="ignore"):
                        for x, y in ((x0, y0), (x1, y1)):
                            found |= (x < 0) | (y < 0) | (x > cols) | (y > rows)
        return found

    def _is_copied(self, product: str) -> bool:
        """Whether values are those of source pixels of one grid, so that nothing between two of them can come out."""
        methods = self.methods[product]
        return not set(methods.values()) & set(INTERPOLATING) - {"median"} and (
            len({self.sources[role] for role in methods}) == 1
        )


def _header_problem(file, grid: dict, spec: dict) -> str | None:
    """What of a product's header is not as it should be."""
    wanted = {
        "shape": tuple(grid["grid"]["shape"]),
        "dtype": spec["dtype"],
        "nodata": float(decode_number(spec["nodata"])),
        "scale": float(spec["scale"]),
        "offset": float(spec["offset"]),
    }
    found = {
        "shape": file.shape,
        "dtype": file.dtypes[0],
        "nodata": None if file.nodata is None else float(file.nodata),
        "scale": file.scales[0],
        "offset": file.offsets[0],
    }
    for what, value in wanted.items():
        if found[what] != value and not (value != value and found[what] != found[what]):  # NaN is no NaN's equal
            return f"its file has {what} {found[what]!r}, wanted is {value!r}"
    transform = grid["grid"]["transform"]
    if transform and any(
        abs(a - b) > 1e-12 * max(abs(a), abs(b)) for a, b in zip(tuple(file.transform)[:6], transform, strict=True)
    ):
        return f"its file has transform {tuple(file.transform)[:6]}, wanted is {tuple(transform)}"
    return None


def _nothing_compared(block: Block) -> dict:
    return {
        "compared": 0,
        "differing_validity": 0,
        "excused": 0,
        "largest_difference": None,
        "median_difference": None,
        "allowed_at_largest": None,
        "wrong": block.rows * block.cols,
    }


class _Packing:
    """How values are stored in a product."""

    def __init__(self, spec: dict):
        self.scale, self.offset, self.packed = spec["scale"], spec["offset"], spec["dtype"] != "float32"
        self.nodata = decode_number(spec["nodata"])
        if self.packed:
            self.limits = np.iinfo(spec["dtype"])
            self.beside = self.nodata + 1 if self.nodata == self.limits.min else self.nodata - 1

    @property
    def half_step(self) -> float:
        return abs(self.scale) / 2 if self.packed else 0.0

    def values(self, stored: np.ndarray) -> np.ndarray:
        """float64, NaN where invalid."""
        if not self.packed:
            return np.where(np.isfinite(stored), stored, np.nan).astype(np.float64)
        return np.where(stored == self.nodata, np.nan, stored.astype(np.float64) * self.scale + self.offset)

    def within(self, stored: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Whether a value from `low` to `high` would be stored as it is."""
        with np.errstate(invalid="ignore"):
            if not self.packed:
                return (stored >= low) & (stored <= high)
            ends = [(end - self.offset) / self.scale for end in (low, high)]
            low, high = np.minimum(*ends), np.maximum(*ends)
            low = self._rounded(low - SMALLEST_STEP * np.maximum(1, np.abs(low)))
            high = self._rounded(high + SMALLEST_STEP * np.maximum(1, np.abs(high)))
            is_nodata = (low <= self.nodata) & (self.nodata <= high) & (stored == self.beside)
            return (low <= stored) & (stored <= high) & (stored != self.nodata) | is_nodata

    def _rounded(self, number):
        return np.clip(np.floor(number + 0.5), self.limits.min, self.limits.max)

    def limited(self, values: np.ndarray) -> np.ndarray:
        """Values as far as the type can hold them, not rounded."""
        if not self.packed:
            return values
        ends = sorted(limit * self.scale + self.offset for limit in (self.limits.min, self.limits.max))
        return np.clip(values, *ends)


class _Judged:
    """Pixels found against those wanted, first as they are, then with what the coordinates' error may do."""

    def __init__(self, stored: np.ndarray, packing: _Packing, wanted: _Wanted):
        self.stored, self.packing, self.wanted = stored, packing, wanted
        self.found, self.unsure = packing.values(stored), wanted.unsure
        self.allowed = wanted.error + packing.half_step
        self.is_valid, self.should_be = ~np.isnan(self.found), ~np.isnan(wanted.value)
        self.right = np.where(
            self.should_be & self.is_valid,
            packing.within(stored, wanted.value - wanted.error, wanted.value + wanted.error),
            self.should_be == self.is_valid,
        )
        self.excused = np.zeros(stored.shape, bool)
        with np.errstate(invalid="ignore"):
            self.difference = np.abs(self.found - packing.limited(wanted.value))

    def good(self) -> np.ndarray:
        return self.right | self.unsure

    def excuse(self, rest: np.ndarray, variants: list[_Wanted], copied: bool) -> None:
        """Look at pixels `rest` again.

        Parameters
        ----------
        rest : indices of pixels
        variants : list of _Wanted
            What is wanted there with coordinates that are off by as much as they may be.
        copied : bool
            Whether values are copies of source pixels: then one of the variants must be met, else anything in
            between, and half as much again for values between the variants that were looked at.
        """
        values = np.array([self.wanted.value[rest], *(variant.value for variant in variants)])
        errors = np.array([self.wanted.error[rest], *(variant.error for variant in variants)])
        errors = np.max(np.where(np.isnan(values), 0.0, errors), axis=0)
        stored, is_valid = self.stored[rest], self.is_valid[rest]
        low, high = np.fmin.reduce(values), np.fmax.reduce(values)
        margin = errors + (0.0 if copied else 0.5 * (high - low))
        if copied:
            met = np.any([self.packing.within(stored, each - errors, each + errors) for each in values], axis=0)
        else:
            met = self.packing.within(stored, low - margin, high + margin)
        right = np.where(is_valid, met, np.isnan(values).any(axis=0))
        self.right[rest] = right
        self.excused[rest] = right & (copied | (is_valid != self.should_be[rest]))
        # poles of a formula
        self.unsure[rest] |= np.any([variant.unsure for variant in variants], axis=0)
        with np.errstate(invalid="ignore"):
            reach = np.maximum(high - self.wanted.value[rest], self.wanted.value[rest] - low) + margin
        self.allowed[rest] = np.where(np.isnan(reach), self.allowed[rest], reach + self.packing.half_step)

    def numbers(self) -> dict:
        both = self.is_valid & self.should_be & ~self.unsure
        differences = self.difference[both]
        at = int(np.argmax(differences)) if differences.size else None
        return {
            "compared": int(self.stored.size),
            "differing_validity": int(np.count_nonzero(self.is_valid != self.should_be)),
            "excused": int(np.count_nonzero(self.excused | self.unsure)),
            "largest_difference": None if at is None else encode_number(float(differences[at])),
            "median_difference": None if at is None else encode_number(float(np.median(differences))),
            "allowed_at_largest": None if at is None else encode_number(float(self.allowed[both][at])),
            "wrong": int(np.count_nonzero(~self.good())),
        }

    def message(self, block: Block) -> str | None:
        """The worst pixel, and how many are wrong; None where none is."""
        wrong = ~self.good()
        if not wrong.any():
            return None
        excess = np.where(np.isnan(self.difference), np.inf, self.difference - self.allowed)
        worst = int(np.argmax(np.where(wrong, excess, -np.inf)))
        row, col = divmod(worst, block.cols)
        found, wanted = self.found[worst], self.packing.limited(self.wanted.value)[worst]
        return (
            f"{np.count_nonzero(wrong)} of {wrong.size} pixels are wrong, the worst at row {block.row + row}, column "
            f"{block.col + col}: found {_text(found)}, wanted {_text(wanted)}"
            + ("" if math.isnan(found) or math.isnan(wanted) else f" within {self.allowed[worst]:.3g}")
        )


def _text(value: float) -> str:
    return "invalid" if math.isnan(value) else f"{value:.9g}"
