"""The validated config: what each key means, its type and its default, all in one place.

`config/config.yaml`, the JSON schemas and the tables of `config/README.md` are made from here:

    python -m cogmill.config --write
"""

# ruff: noqa: RUF009 - `key` makes a dataclass field
import math
import re
import sys
from dataclasses import dataclass

from cogmill.errors import FormulaError
from cogmill.grids import LARGEST_SIDE
from cogmill.indices import Expression, parse_formula
from cogmill.resampling import ALIASING, MAX_RATIO, METHODS
from cogmill.schema import (
    Choice,
    Either,
    Flag,
    ListOf,
    MapOf,
    Number,
    OneOrEach,
    Section,
    Spot,
    Text,
    Whole,
    key,
    read_section,
    shown,
)
from cogmill.yamlfiles import Problems, YamlFiles

AUTO_BATCH = 25  # scenes; short enough to lose little when a job is killed
INTEGER_RANGES = {
    name: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if name[0] == "i" else (0, 2**bits - 1)
    for bits in (8, 16, 32)
    for name in (f"int{bits}", f"uint{bits}")
}
DTYPES = ("float32", *INTEGER_RANGES)
KINDS = ("continuous", "classes", "bits")
NUMBERS = r"[0-9]+(\+[0-9]+)?"  # of a code; a height's may follow
CODE = rf"[Ee][Pp][Ss][Gg]:{NUMBERS}"
EXTENT = ("left", "bottom", "right", "top")
LONGEST_NAME = 80  # of a product; names of logs and temporary files made of it and a scene's id keep within 255 bytes
ROLE = r"[a-z][a-z0-9_]*"  # what formulas, masks and sensors call a band


class Formula(Text):
    """Arithmetic over band names, read by `cogmill.indices.parse_formula`."""

    def read(self, spot: Spot) -> Expression | None:
        if not isinstance(spot.value, str):
            return super().read(spot)
        try:
            return parse_formula(spot.value)
        except FormulaError as error:
            if error.position is None:
                return spot.problem(str(error))
            return spot.problem_at(error.position, str(error))

    def schema(self) -> dict:
        return {"type": "string", "minLength": 1}


class Crs(Text):
    """`source`, or what PROJ may understand. PROJ is not here to be asked; what it surely would not take is refused."""

    def read(self, spot: Spot) -> str | None:
        value = spot.value
        if (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, str) and value.isdecimal()):
            return spot.problem(f"{shown(value)} found; of a code, write EPSG:{value}")
        if not isinstance(value, str) or not value.strip():
            return spot.problem(f"{shown(value)} found, source, a code such as EPSG:3035, a WKT or a PROJ text wanted")
        text = " ".join(value.split())  # a WKT may go over several lines
        if re.match("EPSG:", text, re.IGNORECASE) and not re.fullmatch(CODE, text):
            return spot.problem(f"{value!r} found, a number after EPSG: wanted, such as EPSG:3035")
        if text.casefold() == "source" and text != "source":
            return spot.problem(f"{value!r} found; source is written in small letters")
        return text

    def schema(self) -> dict:
        code = rf"[Ee][Pp][Ss][Gg]:(?!{NUMBERS}\s*$)[\s\S]*"
        wrong = rf"^\s*([0-9]+|{code}|(?!source\s*$)[Ss][Oo][Uu][Rr][Cc][Ee])\s*$"
        return {"type": "string", "pattern": r"\S", "not": {"pattern": wrong}}


@dataclass(frozen=True)
class Product:
    """One output raster of every scene; stored = (value - offset) / scale."""

    formula: Expression = key(
        Formula(),
        "Arithmetic over the sensor's band names: numbers, + - * / **, unary minus, parentheses.",
    )
    dtype: str = key(
        Choice(DTYPES), "Data type of the file. Integers are packed: see scale, offset, nodata.", "float32"
    )
    scale: float | None = key(
        Number(zero=False),
        "Step of packed integers: 0.0001 keeps four decimals, 1 whole numbers. Required with integers of kind "
        "continuous; else empty, which is 1.",
        None,
    )
    offset: float = key(Number(), "Value that a packed 0 stands for. 0 with float32.", 0.0)
    nodata: float | None = key(
        Number(nan=True),
        "Stored value of invalid pixels. Empty: NaN for float32, the lowest number of int8, int16 and int32, the "
        "highest of uint8, uint16 and uint32.",
        None,
    )
    unit: str = key(Text(), "Unit of the values, as written into the file.", "1")
    description: str | None = key(
        Text(), "Band description, as written into the file. Empty: the product's name.", None
    )
    kind: str = key(
        Choice(KINDS),
        "How overviews are made: the mean of continuous values, the most frequent of classes, the top left of bits. "
        "Classes and bits need an integer dtype.",
        "continuous",
    )
    resampling: str | None = key(
        Choice(METHODS),
        "How the pixels of this product's bands are resampled: see warp.resampling, which holds where this is empty.",
        None,
    )

    def check(self, spot: Spot) -> None:
        """Note what cannot be together."""

        def mistake(name: str, text: str) -> None:
            (spot.child(name) if isinstance(spot.value, dict) and name in spot.value else spot).problem(text)

        if self.dtype == "float32":
            scaled = self.scale not in (None, 1)
            if scaled or self.offset != 0:
                name = "scale" if scaled else "offset"
                mistake(
                    name,
                    f"{getattr(self, name)} found, but float32 is stored as it is: leave it out, or pack integers",
                )
            if self.nodata is not None and not math.isnan(self.nodata):
                mistake("nodata", f"{self.nodata} found, but float32 marks invalid pixels by NaN: leave it out")
            if self.kind != "continuous":
                mistake("kind", f"'{self.kind}' needs an integer dtype, not float32")
        elif self.nodata is not None:
            low, high = INTEGER_RANGES[self.dtype]
            if math.isnan(self.nodata) or self.nodata != int(self.nodata) or not low <= self.nodata <= high:
                mistake(
                    "nodata",
                    f"{self.nodata} found, a whole number from {low} to {high} wanted with {self.dtype}",
                )
        if self.dtype != "float32" and self.kind == "continuous" and self.scale is None:
            # most indices lie within -1 and 1, and would all become 0 or 1
            text = f"{self.dtype} rounds to whole numbers: give scale, e.g. 0.0001, or 1 for whole numbers"
            mistake("dtype", text)

    @property
    def stored_nodata(self) -> int | str:
        """Nodata of the file: an integer, or the word nan for float32."""
        if self.dtype == "float32":
            return "nan"
        if self.nodata is not None:
            return int(self.nodata)
        low, high = INTEGER_RANGES[self.dtype]
        return low if low < 0 else high

    def to_json(self, name: str, resampling: str = "bilinear") -> dict:
        """Every field resolved, in built-in types; equal for formulas that differ in spaces only.

        `resampling` is that of products without one of their own.
        """
        return {
            "formula": self.formula.canonical,
            "dtype": self.dtype,
            "scale": 1.0 if self.scale is None else float(self.scale),
            "offset": float(self.offset),
            "nodata": self.stored_nodata,
            "unit": self.unit,
            "description": self.description or name,
            "kind": self.kind,
            "resampling": self.resampling or resampling,
        }


@dataclass(frozen=True)
class Mask:
    """Which values of a quality band make a pixel invalid in every product."""

    classes: tuple[int, ...] = key(ListOf(Whole()), "Values that are invalid.", ())
    bits: tuple[int, ...] = key(ListOf(Whole(0, 63)), "Bits that make a pixel invalid where set; 0 is the lowest.", ())

    def check(self, spot: Spot) -> None:
        """A mask that masks nothing is a mistake."""
        if not self.classes and not self.bits:
            spot.problem("masks nothing: give classes or bits")

    def to_json(self) -> dict:
        return {"classes": sorted(set(self.classes)), "bits": sorted(set(self.bits))}


@dataclass(frozen=True)
class CogConfig:
    """The COG store."""

    bands: str = key(
        Choice(("needed", "all")),
        "Which bands to store: those that products or masks need, or all of the sensor.",
        "needed",
    )
    overviews: bool = key(Flag(), "Whether stored bands get overviews; true to keep the store as a product.", False)
    zstd_level: int = key(Whole(1, 19), "Compression of stored bands: higher is smaller and slower.", 9)


@dataclass(frozen=True)
class GridConfig:
    """The target grid."""

    crs: str = key(
        Crs(),
        "CRS of the products: source for each scene's own, a code such as EPSG:3035, a WKT or a PROJ text. With source "
        "and nothing else given here, products keep the pixels of their scene; nothing is resampled.",
        "source",
    )
    resolution: tuple[float, float] | None = key(
        OneOrEach(ListOf(Number(0, zero=False), ("x", "y"))),
        "Size of a target pixel in units of grid.crs: metres for most projected CRSs, degrees for geographic ones. "
        "Needed with a crs other than source; else empty is the scene's own.",
        None,
    )
    aligned: bool = key(
        Flag(),
        "Whether pixel edges lie at whole multiples of the resolution, so that scenes share pixels: the extent is "
        "widened to them. false: pixels begin at the extent's top left corner.",
        True,
    )
    extent: str | tuple[float, float, float, float] = key(
        Either("scene", ListOf(Number(), EXTENT)),
        "What to cover: scene for each scene's own extent, or the outer edges in units of grid.crs, the same for all "
        "scenes. In degrees, right is above 180 where it lies over the antimeridian.",
        "scene",
    )
    like: str | None = key(
        Text(),
        "A raster file whose CRS, pixels and size all products get, instead of the four keys above. Relative to the "
        "working directory.",
        None,
    )
    max_error_px: float = key(
        Number(0, 0.5),
        "How far the place of a target pixel in its scene may be off, in pixels of the scene: places are computed on a "
        "coarse grid that is as fine as this needs, and interpolated. 0 computes every pixel's, which takes longer.",
        0.01,
    )

    def check(self, spot: Spot) -> None:
        """One target, told once and whole."""
        if self.like is not None:
            for name, nothing in (("crs", "source"), ("resolution", None), ("aligned", True), ("extent", "scene")):
                if getattr(self, name) != nothing:
                    spot.child(name).problem("cannot be used together with grid.like, which says it: leave out one")
            return
        if self.crs != "source" and self.resolution is None:
            spot.child("crs").problem(
                "needs grid.resolution, the size of a pixel in units of this CRS (metres or degrees)"
            )
        if self.extent != "scene":
            left, bottom, right, top = self.extent
            if left >= right or bottom >= top:
                wrong = f"right {right} is not above left {left}" if left >= right else ""
                wrong += f"{' and ' if wrong else ''}top {top} is not above bottom {bottom}" if bottom >= top else ""
                spot.child("extent").problem(f"{wrong}; the order is [{', '.join(EXTENT)}]")
            elif self.resolution:
                cols, rows = (right - left) / self.resolution[0], (top - bottom) / self.resolution[1]
                if max(cols, rows) > LARGEST_SIDE:
                    spot.child("resolution").problem(
                        f"{cols:.10g} x {rows:.10g} pixels (columns x rows) would cover grid.extent, at most "
                        f"{LARGEST_SIDE} a side are made; both are in units of grid.crs"
                    )


@dataclass(frozen=True)
class WarpConfig:
    """How pixels get from a scene's grid to the target's."""

    resampling: str = key(
        Choice(METHODS),
        "How a target pixel takes its value, of bands of measurements. nearest, bilinear, cubic and lanczos take 1, "
        "2 x 2, 4 x 4 and 6 x 6 pixels about its centre; average, mode, min, max and median all pixels that it "
        "touches, for target pixels larger than the scene's. Bands of bits are always taken by nearest, those of "
        "classes too unless this is mode, min or max. Pixels that are invalid or masked are left out.",
        "bilinear",
    )
    order: str = key(
        Choice(("bands_then_index", "index_then_warp")),
        "Whether bands are resampled and formulas computed of them, or formulas computed on the scene's own pixels and "
        "their results resampled.",
        "bands_then_index",
    )
    engine: str = key(
        Choice(("grid", "gdal")),
        "grid: cogmill's own resampling. gdal: GDAL's warper, slower and for comparison; scenes that are placed by "
        "ground control points or RPCs, without a transform, need it.",
        "grid",
    )
    allow_aliasing: bool = key(
        Flag(),
        f"Whether {', '.join(ALIASING[:-1])} and {ALIASING[-1]}, which skip pixels then, may be used where a target "
        f"pixel is larger than {MAX_RATIO:g} pixels of the scene. Otherwise such scenes fail.",
        False,
    )
    allow_ballpark: bool = key(
        Flag(),
        "Whether a scene may change its CRS although PROJ knows no way between the two datums, which shifts it by up "
        "to some hundred metres. Otherwise such scenes fail.",
        False,
    )


@dataclass(frozen=True)
class ComputeConfig:
    """How products are computed; none of these keys changes a pixel."""

    device: str = key(
        Choice(("auto", "gpu", "cpu")),
        "Where to compute. auto: the CPU until there are GPU kernels; gpu: refused until then; cpu: as auto, without "
        "asking the cluster for a GPU.",
        "auto",
    )
    window: str | int = key(
        Either("auto", Whole(1)),
        "Height of a window in rows of 512 x 512 tiles; auto goes by memory.window_mb.",
        "auto",
    )
    zstd_level: int = key(Whole(1, 19), "Compression of products: higher is smaller and slower.", 9)
    stall_s: int = key(
        Whole(1, 604800),
        "Seconds without a sign of life after which a worker process is ended and the scene tried again.",
        300,
    )

    def check(self, spot: Spot) -> None:
        """What `choose_device` refuses is told before anything has run."""
        if self.device == "gpu":
            spot.child("device").problem("this version of cogmill has no GPU kernels yet: set auto or cpu")


@dataclass(frozen=True)
class MemoryConfig:
    """Memory of one job."""

    spool_mb: int = key(
        Whole(0),
        "Compressed tiles kept in memory while a file is made, in MB; the rest goes to a temporary file.",
        256,
    )
    window_mb: int = key(Whole(16), "Pixels held at a time, in MB.", 256)


@dataclass(frozen=True)
class Config:
    """The whole config."""

    products: dict[str, Product] = key(
        MapOf(
            Section(Product, short="formula"),
            f"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}",
            f"at most {LONGEST_NAME} letters, digits, _ and -",
            reserved=("record",),
        ),
        "What to compute from every scene: a name and a formula, or a name and the keys below. ~ instead leaves a "
        "product of an earlier config file out.",
        example="""\
ndvi:
  formula: (nir - red) / (nir + red)
  description: Normalised difference vegetation index
# ndwi: (green - nir) / (green + nir)
# ndvi_packed:
#   formula: (nir - red) / (nir + red)
#   dtype: int16
#   scale: 0.0001""",
    )
    sheet: str = key(
        Text(), "The sample sheet: one line a scene. Relative to the working directory.", "config/scenes.csv"
    )
    sensors: str = key(
        Text(),
        "Folder of your own sensor files, which go before the built-in ones. Relative to the working directory.",
        "config/sensors",
    )
    masks: dict[str, Mask] = key(
        MapOf(Section(Mask), ROLE, "the name of a band (small letters, digits, _)"),
        "Pixels to leave out, by quality band. A scene whose sensor lacks that band is not masked by it.",
        {},
        example="""\
{}
# For instance:
# masks:
#   scl: {classes: [0, 1, 3, 8, 9, 10]}  # Sentinel-2: no data, saturated, cloud shadow, clouds, cirrus; add 11 for snow
#   qa_pixel: {bits: [0, 1, 2, 3, 4]}    # Landsat: fill, dilated cloud, cirrus, cloud, cloud shadow""",
    )
    cog: CogConfig = key(Section(CogConfig), "The COG store, results/cogs.", CogConfig())
    grid: GridConfig = key(Section(GridConfig), "The target grid: the pixels of the products.", GridConfig())
    warp: WarpConfig = key(Section(WarpConfig), "How pixels get from a scene's grid to the target's.", WarpConfig())
    compute: ComputeConfig = key(
        Section(ComputeConfig), "How products are computed; changes no pixel.", ComputeConfig()
    )
    memory: MemoryConfig = key(Section(MemoryConfig), "Memory of one job; changes no pixel.", MemoryConfig())
    self_check: bool = key(
        Flag(),
        "Whether up to two tiles of each compute job are computed again, another way and with exact coordinates, and "
        "compared; a difference fails the scene.",
        True,
    )
    scenes_per_job: str | int = key(
        Either("auto", Whole(1)),
        f"Scenes of a compute job, on average; auto is {AUTO_BATCH} for now.",
        "auto",
    )
    max_attempts: int = key(
        Whole(1),
        "A scene whose fault another attempt could mend (disk, network, memory) is recorded as failed after so many.",
        3,
    )
    max_failed_fraction: float = key(
        Number(0, 1),
        "The run ends with an error when a larger part of the scenes failed: 0 is none, 1 is all.",
        0.0,
    )
    pathvars: dict[str, str] = key(
        MapOf(Text(), "results|logs|benchmarks", "results, logs or benchmarks"),
        "Snakemake's own: where results, logs and benchmarks go, such as {results: /data/campaign7}.",
        {},
        example="{}",
    )

    def check(self, spot: Spot) -> None:
        """A campaign without products is a mistake."""
        if not self.products:
            at = spot.child("products") if "products" in spot.value else spot
            at.problem("no product is asked for")

    @property
    def batch_size(self) -> int:
        """Scenes of a compute job, on average."""
        return AUTO_BATCH if self.scenes_per_job == "auto" else self.scenes_per_job


def read_config(doc, sources, problems: Problems) -> tuple[Config | None, Spot]:
    """Check a merged config and note all mistakes.

    Parameters
    ----------
    doc : dict
        The config in force, as Snakemake merged it.
    sources : sequence of (path, text)
        The files that it comes from, the one that wins last.
    problems : Problems

    Returns
    -------
    (Config or None, Spot)
        Values that are wrong are None in it. The spot is that of the whole config, for later checks.
    """
    return read_section(Config, doc, YamlFiles(sources, problems), problems)


def load_config(doc, sources=()) -> Config:
    """The validated config (see `read_config`).

    Raises
    ------
    ConfigError
        All mistakes, one a line, as `config/config.yaml:12:5: key 'cog.zstd_level': 40 is above 19`.
    """
    problems = Problems()
    config, _ = read_config(doc, sources, problems)
    problems.stop()
    return config


if __name__ == "__main__":
    from cogmill.describe import main

    sys.exit(main())
