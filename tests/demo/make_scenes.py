"""Make the demo campaign: six satellite-like scenes of two UTM zones, their sample sheet and a config.

    python make_scenes.py FOLDER

The landscape is invented, but a closed form of map coordinates (x, y in EPSG:32632) and date: `ground`,
`reflectance`, `sky` and `scene_class` say what lies where, and each raster is that function at its pixel
centres, rounded to the sensor's integers; those of a scene of zone 33 are brought to EPSG:32632 by PROJ first.
`check_demo.py` calls the same functions to judge the products, so the truth is stored nowhere. Files are rewritten
only when their bytes change; a second run touches nothing.
"""

import argparse
import csv
import io
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np
from pyproj import Transformer
from rasterio.io import MemoryFile
from rasterio.transform import Affine

CRS = "EPSG:32632"  # of the landscape, and of all scenes but one
TARGET_CRS, RESOLUTION = "EPSG:3035", 10.0  # the one grid that the config asks for
WEST, NORTH = 716_040.0, 4_688_040.0  # corner of the demo area, on the 60 m lattice of tile 32TQM
HEIGHT = 14_000.0  # metres from that corner down to where the landscape's v is 0

# Classes of Sentinel-2's SCL layer that the landscape knows, and those that the config masks
NO_DATA, SHADOW, VEGETATION, BARE, WATER, THIN_CLOUD, CLOUD = 0, 3, 4, 5, 6, 8, 9
MASKED_CLASSES = (0, 1, 3, 8, 9, 10)
# Landsat Collection 2 QA_PIXEL values (fill, clear land, dilated cloud, water, cloud, cloud shadow)
QA_VALUES = {
    NO_DATA: 1,
    VEGETATION: 21824,
    BARE: 21824,
    THIN_CLOUD: 21826,
    WATER: 21952,
    CLOUD: 22280,
    SHADOW: 23888,
}
MASKED_BITS = (0, 1, 2, 3, 4)

THIN = -0.016  # thickness from which on a cloud brightens the ground
# A class of 20 m pixels must cover all four 10 m pixels in it, 5 m off each way; no thickness changes faster.
MARGIN = 0.022

BANDS = ("blue", "green", "red", "nir", "swir16")
SPECTRA = {  # surface reflectance in BANDS
    "soil": (0.085, 0.120, 0.170, 0.250, 0.330),
    "leaves": (0.030, 0.072, 0.036, 0.480, 0.200),
    "straw": (0.130, 0.185, 0.250, 0.350, 0.380),
    "broadleaf": (0.024, 0.048, 0.026, 0.370, 0.150),
    "conifer": (0.020, 0.034, 0.023, 0.230, 0.090),
    "scrub": (0.045, 0.075, 0.068, 0.260, 0.210),
    "gravel": (0.180, 0.220, 0.260, 0.300, 0.320),
    "river": (0.068, 0.084, 0.062, 0.030, 0.012),
    "lake": (0.046, 0.044, 0.024, 0.013, 0.008),
    "roofs": (0.130, 0.145, 0.185, 0.240, 0.260),
    "asphalt": (0.085, 0.092, 0.100, 0.125, 0.140),
    "cloud": (0.560, 0.560, 0.570, 0.600, 0.420),
}
# Each crop: day of green-up, of senescence, pace (days; double logistic), peak cover, straw left after it
CROPS = (
    (60, 158, 9.0, 0.95, 1.0),  # winter wheat
    (60, 166, 9.0, 0.92, 1.0),  # durum wheat
    (148, 262, 9.0, 0.97, 0.3),  # maize
    (142, 236, 8.0, 0.88, 0.4),  # sunflower
    (70, 320, 14.0, 0.85, 0.0),  # alfalfa
    (105, 290, 14.0, 0.62, 0.0),  # vineyard
    (10, 360, 20.0, 0.50, 0.0),  # olives
    (85, 175, 12.0, 0.70, 0.6),  # meadow, dry in summer
)


def lattice(i, j, seed: int) -> np.ndarray:
    """Random numbers in [0, 1) of integer points (i, j); integer arithmetic, so the same on every machine."""
    mix = np.asarray(i).astype(np.int64).astype(np.uint32) * np.uint32(0x9E3779B1)
    mix = mix ^ (np.asarray(j).astype(np.int64).astype(np.uint32) * np.uint32(0x85EBCA77))
    mix = mix ^ np.uint32((seed * 0xC2B2AE3D) & 0xFFFFFFFF)
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        mix = (mix ^ (mix >> np.uint32(shift))) * np.uint32(factor)
    return (mix ^ (mix >> np.uint32(15))) * (1.0 / 2**32)


def noise(u, v, size: float, seed: int) -> np.ndarray:
    """Smooth noise in [0, 1] whose bumps are `size` metres wide: lattice values joined by smooth steps."""
    s, t = u / size, v / size
    i, j = np.floor(s).astype(np.int64), np.floor(t).astype(np.int64)
    s, t = s - i, t - j
    s, t = s * s * (3 - 2 * s), t * t * (3 - 2 * t)
    i0, j0 = i.min(), j.min()
    # the lattice points of these coordinates are few: make each once, then look them up
    table = lattice(np.arange(i0, i.max() + 2)[np.newaxis, :], np.arange(j0, j.max() + 2)[:, np.newaxis], seed)
    i, j = i - i0, j - j0
    low = table[j, i] * (1 - s) + table[j, i + 1] * s
    high = table[j + 1, i] * (1 - s) + table[j + 1, i + 1] * s
    return low * (1 - t) + high * t


def step(value, centre, width) -> np.ndarray:
    """0 below, 1 above `centre`, logistic over `width`."""
    return 1 / (1 + np.exp(np.clip((centre - value) / width, -50, 50)))


def mix(first, second, share):
    return first + (second - first) * share


@dataclass(frozen=True)
class Ground:
    """What does not change between dates; every field has the shape of the coordinates given to `ground`."""

    crop: np.ndarray  # index into CROPS
    shift: np.ndarray  # days that this parcel is late
    vigour: np.ndarray  # cover relative to the crop's peak, rows and patches in the field included
    soil: np.ndarray  # brightness of the soil
    forest: np.ndarray  # 0..1
    conifer: np.ndarray  # 0..1
    scrub: np.ndarray  # 0..1, hedges and riverside
    built: np.ndarray  # 0 none, 1 asphalt, 2 roofs
    water: np.ndarray  # 0 none, 1 river, 2 lake
    gravel: np.ndarray  # bool
    relief: np.ndarray  # factor of illumination


def _parcels(u, v):
    """Strips of fields whose bearing varies by district: crop, lateness (days), vigour, distance to the field's
    edge (m) and one random number of each field."""
    warp_u = u + 900 * (noise(u, v, 2600, 11) - 0.5)
    warp_v = v + 900 * (noise(u, v, 2600, 12) - 0.5)
    block_i, block_j = np.floor(warp_u / 2700), np.floor(warp_v / 2300)
    angle = lattice(block_i, block_j, 21) * 1.4 - 0.7
    cos, sin = np.cos(angle), np.sin(angle)
    along, across = cos * u + sin * v, cos * v - sin * u
    height = 150 + 170 * lattice(block_i, block_j, 22)
    strip = np.floor(across / height)
    length = 240 + 520 * lattice(strip + 1000 * block_i, block_j, 23)
    along = along + 3000 * lattice(strip, block_i + 57 * block_j, 24)
    field = np.floor(along / length)
    name_i, name_j = field + 4099 * block_i, strip + 4099 * block_j
    crop = np.floor(lattice(name_i, name_j, 31) ** 1.15 * len(CROPS)).astype(np.int64)
    shift = 22 * (lattice(name_i, name_j, 32) - 0.5)
    rows = 0.5 + 0.5 * np.sin(2 * np.pi * across / (42 + 30 * lattice(name_i, name_j, 33)))
    row_contrast = np.where(crop >= 5, 0.30, 0.09)
    vigour = (0.80 + 0.28 * lattice(name_i, name_j, 34)) * (1 - row_contrast * rows)
    edge_along, edge_across = along - length * field, across - height * strip
    edge = np.minimum(np.minimum(edge_along, length - edge_along), np.minimum(edge_across, height - edge_across))
    return crop, shift, vigour, edge, lattice(name_i, name_j, 35)


def _waters(u, v):
    """Distance (m) from the river's middle line and from the lake's shore, negative on the lake."""
    middle = 4300 + 1150 * np.sin(u / 2650 + 0.6) + 420 * np.sin(u / 940) + 90 * np.sin(u / 310 + 1.0)
    slope = 0.434 * np.cos(u / 2650 + 0.6) + 0.447 * np.cos(u / 940) + 0.290 * np.cos(u / 310 + 1.0)
    river = np.abs(v - middle) / np.sqrt(1 + slope * slope)
    du, dv = u - 11_300, v - 10_100
    bearing = np.arctan2(dv, du)
    radius = 1750 + 170 * np.sin(3 * bearing + 0.4) + 90 * np.sin(7 * bearing) + 40 * np.sin(13 * bearing + 2)
    return river, np.hypot(du, dv) - radius


TOWNS = (  # middle (u, v) and radius in metres, bearing of the streets in radians
    (5500, 6700, 950, 0.3),
    (1900, 11_300, 420, -0.2),
    (13_600, 2300, 460, 0.5),
    (8700, 12_300, 380, 0.1),
)


def _built(u, v):
    """Streets and roads (1) and roofs (2): a town by the river, three villages, two country roads."""
    road = np.abs(v - (6900 + 500 * np.sin(u / 3800) + 0.05 * u)) < 11
    road |= np.abs(u - (5600 + 420 * np.sin(v / 2300))) < 11
    built = road.astype(np.int64)
    for town_u, town_v, size, turn in TOWNS:
        near = np.hypot(u - town_u, v - town_v) < 1.3 * size
        if not near.any():
            continue
        du, dv = (u - town_u)[near], (v - town_v)[near]
        inside = np.hypot(du, dv) < size * (0.72 + 0.55 * noise(du, dv, 420, size))
        a, b = np.cos(turn) * du + np.sin(turn) * dv, np.cos(turn) * dv - np.sin(turn) * du
        street = (np.mod(a, 130) < 22) | (np.mod(b, 90) < 20)
        house = lattice(np.floor(a / 26), np.floor(b / 30), 41) < 0.62
        built[near] = np.where(inside & street, 1, np.where(inside & house, 2, built[near]))
    return built


def ground(x, y) -> Ground:
    """The landscape at map coordinates.

    Parameters
    ----------
    x, y : float64 arrays of one shape
        Easting and northing of pixel centres in `CRS`, metres.
    """
    u, v = x - WEST, y - (NORTH - HEIGHT)
    crop, shift, vigour, edge, chance = _parcels(u, v)
    river, lake = _waters(u, v)
    p, q = 0.8 * u + 0.6 * v, 0.8 * v - 0.6 * u  # turned, so that the lattice of the noise does not show
    hills = noise(p, q, 3100, 51) * 0.6 + noise(u, v, 1100, 52) * 0.28 + noise(p, q, 340, 53) * 0.12
    hills = hills + 0.34 * np.exp(-np.square(np.maximum(lake, 0) / 1500.0)) - 0.30 * np.exp(-np.square(river / 900.0))
    patches = noise(u, v, 130, 54)
    speckle = lattice(np.floor(u / 20), np.floor(v / 20), 55)
    bank = 34 + 22 * noise(u, v, 600, 56)
    water = np.where(lake < 0, 2, np.where(river < bank, 1, 0))
    forest = step(hills, 0.575, 0.012)
    belt = (river < bank + 150 * noise(u, v, 260, 57)) & (patches > 0.3)
    hedge = (edge < 9) & (chance > 0.45) & (forest < 0.5)
    east = noise(u + 120, v + 90, 1100, 52) - noise(u - 120, v - 90, 1100, 52)
    return Ground(
        crop=crop,
        shift=shift,
        vigour=np.clip(vigour * (0.78 + 0.36 * patches) * (0.97 + 0.06 * speckle), 0, 1.05),
        soil=(0.78 + 0.44 * noise(u, v, 480, 58)) * (0.96 + 0.08 * speckle),
        forest=forest * (0.86 + 0.14 * speckle),
        conifer=step(noise(u, v, 700, 59) + 0.5 * hills, 0.92, 0.03),
        scrub=np.where(belt | hedge, 0.85, 0.0),
        built=np.where(water == 0, _built(u, v), 0),
        water=water,
        gravel=(water == 0) & (river < bank + 16) & (patches > 0.55),
        relief=1 + 0.9 * east * np.clip((hills - 0.35) * 3, 0, 1),
    )


def _cover(land: Ground, day: date):
    """Green cover of the fields, and how much straw lies between, both 0..1."""
    doy = day.timetuple().tm_yday
    green, dead, pace, peak, straw = (np.array(column)[land.crop] for column in zip(*CROPS, strict=True))
    growing, fading = step(doy - land.shift, green, pace), step(doy - land.shift, dead, pace)
    return np.clip(peak * land.vigour * growing * (1 - fading), 0.02, 0.98), straw * fading


def reflectance(land: Ground, day: date, band: str) -> np.ndarray:
    """Surface reflectance of the ground on `day`, without clouds: float64, 0.005 and more."""
    of = {name: values[BANDS.index(band)] for name, values in SPECTRA.items()}
    cover, straw = _cover(land, day)
    value = mix(mix(of["soil"] * land.soil, of["straw"] * (0.85 + 0.15 * land.soil), straw), of["leaves"], cover)
    trees = mix(of["broadleaf"], of["conifer"], land.conifer)
    value = mix(value, trees, land.forest)
    value = mix(value, of["scrub"], land.scrub)
    value = np.where(land.gravel, of["gravel"] * land.soil, value)
    value = np.where(land.built == 1, of["asphalt"], np.where(land.built == 2, of["roofs"] * land.soil, value))
    value = value * land.relief
    value = np.where(land.water == 1, of["river"], np.where(land.water == 2, of["lake"], value))
    return np.maximum(value, 0.005)


@dataclass(frozen=True)
class Sky:
    """Clouds of one date: thickness over the pixel, and towards the sun (`shading`); above 0 is cloud."""

    thickness: np.ndarray
    shading: np.ndarray


def _thickness(x, y, day: date):
    # far from the origin of `ground`'s noise, and turned against it, so that clouds do not follow the hills
    u, v, seed = 0.8 * x - 0.6 * y, 0.6 * x + 0.8 * y, day.toordinal() % 10_007
    octaves = ((2300, 0.52), (900, 0.29), (330, 0.13), (110, 0.06))
    return sum(weight * noise(u, v, size, seed + k) for k, (size, weight) in enumerate(octaves)) - 0.675


def sky(x, y, day: date) -> Sky:
    """The clouds at map coordinates on `day`; the sun is in the south-east, shadows fall to the north-west."""
    return Sky(_thickness(x, y, day), _thickness(x + 420, y - 560, day))


def scene_class(land: Ground, above: Sky, seen, day: date) -> np.ndarray:
    """SCL class, uint8: nodata where not `seen`, cloud, shadow, water, vegetation or bare ground."""
    red, nir = (reflectance(land, day, band) for band in ("red", "nir"))
    kind = np.where(land.water > 0, WATER, np.where((nir - red) / (nir + red) > 0.4, VEGETATION, BARE))
    kind = np.where(above.shading > -MARGIN, SHADOW, kind)
    kind = np.where(above.thickness > THIN - MARGIN, THIN_CLOUD, kind)
    kind = np.where(above.thickness > 0, CLOUD, kind)
    return np.where(seen, kind, NO_DATA).astype(np.uint8)


def at_sensor(land: Ground, above: Sky, day: date, band: str) -> np.ndarray:
    """Reflectance that the sensor records: the ground, shaded or under cloud."""
    value = reflectance(land, day, band) * (1 - 0.55 * np.clip(above.shading / 0.02, 0, 1))
    opaque = np.clip((above.thickness - THIN) / 0.05, 0, 1)
    return mix(value, SPECTRA["cloud"][BANDS.index(band)] * (0.75 + 0.45 * opaque), opaque)


@dataclass(frozen=True)
class Scene:
    """One scene of the campaign.

    `edges` are half planes (a, b, c), the swath's edges: a pixel was seen when a*u + b*v > c for each, with
    u, v in metres from the south-west corner.
    """

    name: str
    sensor: str
    folder: str
    pattern: str  # file name with {band}
    day: date
    time: str
    crs: str
    pixel: float
    shape: tuple[int, int]
    origin: tuple[float, float]
    files: dict[str, str] = field(hash=False)  # band -> token in the file name
    scale: float
    offset: float
    edges: tuple[tuple[float, float, float], ...]

    def seen(self, x, y):
        u, v = x - WEST, y - (NORTH - HEIGHT)
        inside = np.ones(np.broadcast(u, v).shape, bool)
        for a, b, c in self.edges:
            inside &= a * u + b * v > c
        return inside

    def path(self, band: str) -> str:
        return f"{self.folder}/{self.pattern.format(band=self.files[band])}"

    def factor(self, band: str) -> int:
        """Pixel size of a band relative to the scene's."""
        return 2 if self.files[band].endswith("_20m") else 1

    def centres(self, factor: int = 1):
        """Centres of pixels `factor` times as large, in the scene's CRS: x (1, cols) and y (rows, 1)."""
        size = self.pixel * factor
        rows, cols = -(-self.shape[0] // factor), -(-self.shape[1] // factor)
        x = self.origin[0] + (np.arange(cols) + 0.5) * size
        y = self.origin[1] - (np.arange(rows) + 0.5) * size
        return x[np.newaxis, :], y[:, np.newaxis]


SENTINEL2_FILES = {
    "red": "B04_10m",
    "nir": "B08_10m",
    "swir16": "B11_20m",
    "scl": "SCL_20m",
}
LANDSAT8_FILES = {"red": "SR_B4", "nir": "SR_B5", "swir16": "SR_B6", "qa_pixel": "QA_PIXEL"}
# Each tile has the pixel lattice of its own zone; the second one begins in the middle of the first.
SENTINEL2_TILES = {
    "32TQM": {"crs": CRS, "shape": (960, 1240), "origin": (WEST, NORTH)},
    "33TTG": {"crs": "EPSG:32633", "shape": (900, 900), "origin": (229_980.0, 4_688_460.0)},
}


def _sentinel2(day: date, tile: str = "32TQM", edges=()) -> Scene:
    stamp = f"{day:%Y%m%d}T101031"
    return Scene(
        name=f"S2A_{tile}_{day:%Y%m%d}",
        sensor="sentinel2_l2a",
        folder=f"sentinel2/{day:%Y%m%d}",
        pattern=f"T{tile}_{stamp}_{{band}}.tif",
        day=day,
        time=f"{day}T10:10:31Z",
        pixel=10.0,
        **SENTINEL2_TILES[tile],
        files=SENTINEL2_FILES,
        scale=1e-4,
        offset=-0.1,  # processing baseline 04.00: DN = reflectance * 10000 + 1000
        edges=edges,
    )


def _landsat8(day: date, tilt: float) -> Scene:
    name = f"LC08_L2SP_192031_{day:%Y%m%d}_02_T1"
    cos, sin = np.cos(tilt), np.sin(tilt)
    return Scene(
        name=name,
        sensor="landsat8_l2",
        folder=f"landsat8/{name}",
        pattern=f"{name}_{{band}}.TIF",
        day=day,
        time=f"{day}T09:58:47Z",
        crs=CRS,
        pixel=30.0,
        shape=(370, 450),
        origin=(WEST - 825.0, NORTH + 765.0),
        files=LANDSAT8_FILES,
        scale=2.75e-5,
        offset=-0.2,
        edges=((cos, sin, 1900.0), (-cos, -sin, -14_200.0), (-sin, cos, 2200.0)),
    )


SCENES = (
    _sentinel2(date(2023, 6, 15), edges=((0.97, 0.24, 3300.0),)),
    _sentinel2(date(2023, 6, 15), "33TTG"),
    _sentinel2(date(2023, 8, 24)),
    _landsat8(date(2023, 5, 9), 0.20),
    _landsat8(date(2023, 7, 12), 0.20),
)
DAMAGED = _sentinel2(date(2023, 7, 20))  # its near-infrared file is cut off, as after an interrupted download


def put(path: Path, data: bytes) -> bool:
    """Write a file whole, and only when its bytes change: its time stays, so nothing is computed again."""
    if path.exists() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
    return True


def strips(scene: Scene, factor: int = 1, rows: int = 128):
    """Coordinates of a scene's pixels in `CRS`, in strips whose temporaries stay in the CPU's cache."""
    x, y = scene.centres(factor)
    parts = [np.broadcast_arrays(x, y[top : top + rows]) for top in range(0, y.shape[0], rows)]
    if scene.crs == CRS:
        return parts
    to_landscape = Transformer.from_crs(scene.crs, CRS, always_xy=True)
    return [to_landscape.transform(*part) for part in parts]


def digital_numbers(scene: Scene, band: str, land: Ground, above: Sky, seen) -> np.ndarray:
    """What the file of a band holds: uint16 (uint8 for SCL), nodata where the scene saw nothing."""
    if band in ("scl", "qa_pixel"):
        kind = scene_class(land, above, seen, scene.day)
        return np.array([QA_VALUES.get(k, 0) for k in range(10)], np.uint16)[kind] if band == "qa_pixel" else kind
    value = (at_sensor(land, above, scene.day, band) - scene.offset) / scene.scale
    return np.where(seen, np.clip(np.floor(value + 0.5), 1, 65_535), 0).astype(np.uint16)


def render(scenes: list[Scene], factor: int, pool: ThreadPoolExecutor) -> dict:
    """Pixels of scenes that share a grid, as {(scene, band): (rows, cols)}; bands of this `factor` only."""
    wanted = [(scene, band) for scene in scenes for band in scene.files if scene.factor(band) == factor]

    def strip(coordinates):
        land = ground(*coordinates)
        skies = {scene: (sky(*coordinates, scene.day), scene.seen(*coordinates)) for scene in scenes}
        return [digital_numbers(scene, band, land, *skies[scene]) for scene, band in wanted]

    parts = pool.map(strip, strips(scenes[0], factor) if wanted else [])
    return dict(zip(wanted, map(np.concatenate, zip(*parts, strict=True)), strict=False))


def geotiff(scene: Scene, band: str, pixels: np.ndarray) -> bytes:
    """One band as a GeoTIFF in memory: tiles of 256 pixels, DEFLATE with predictor, as agencies ship them."""
    size = scene.pixel * scene.factor(band)
    profile = {
        "driver": "GTiff",
        "height": pixels.shape[0],
        "width": pixels.shape[1],
        "count": 1,
        "dtype": pixels.dtype.name,
        "crs": scene.crs,
        "transform": Affine(size, 0, scene.origin[0], 0, -size, scene.origin[1]),
        "nodata": QA_VALUES[NO_DATA] if band == "qa_pixel" else 0,
        "tiled": True,
        "blockxsize": 256,
        "blockysize": 256,
        "compress": "deflate",
        "predictor": 2,
        "zlevel": 5,
    }
    with MemoryFile() as memory:
        with memory.open(**profile) as target:
            target.write(pixels, 1)
        return bytes(memory.getbuffer())


def make_rasters(folder: Path) -> int:
    """Write the band files of all scenes; returns how many were new or changed."""

    def write(item):
        (scene, band), pixels = item
        data = geotiff(scene, band, pixels)
        if scene is DAMAGED and band == "nir":
            data = data[: len(data) * 3 // 5]
        return put(folder / scene.path(band), data)

    changed, grids = 0, {}
    for scene in (*SCENES, DAMAGED):
        grids.setdefault((scene.crs, scene.pixel, scene.origin), []).append(scene)
    with ThreadPoolExecutor(2) as pool:
        for scenes in grids.values():
            for factor in (1, 2):
                changed += sum(pool.map(write, render(scenes, factor, pool).items()))
    return changed


def sheet_text() -> str:
    """The sample sheet: one line a scene, paths as seen from the campaign's folder, where the workflow runs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("scene", "sensor", "path", "datetime", "group"))
    for scene in (*SCENES, DAMAGED):
        path = f"{scene.folder}/{scene.pattern}"
        writer.writerow((scene.name, scene.sensor, path, scene.time, scene.folder.split("/")[0]))
    return text.getvalue()


def config_text() -> str:
    return f"""# The demo campaign, written by tests/demo/make_scenes.py.
sheet: scenes.csv

products:
  ndvi:
    formula: "(nir - red) / (nir + red)"
    dtype: float32
    description: Normalised difference vegetation index
  ndmi: # of Sentinel-2, near infrared has pixels of 10 m, short-wave infrared of 20 m
    formula: "(nir - swir16) / (nir + swir16)"
    dtype: int16
    scale: 0.0001
    description: Normalised difference moisture index

grid: # one lattice of pixels for the scenes of both UTM zones
  crs: {TARGET_CRS}
  resolution: {RESOLUTION:g}

warp:
  resampling: bilinear

self_check: true

masks:
  scl:
    classes: [{", ".join(map(str, MASKED_CLASSES))}] # no data, saturated, cloud shadow, clouds, cirrus
  qa_pixel:
    bits: [{", ".join(map(str, MASKED_BITS))}] # fill, dilated cloud, cirrus, cloud, cloud shadow

max_failed_fraction: 0.25 # one of the six scenes is damaged, on purpose
"""


def make_campaign(folder: Path) -> int:
    """Write the whole campaign into `folder`; returns how many files were new or changed."""
    changed = make_rasters(folder)
    changed += put(folder / "scenes.csv", sheet_text().encode())
    return changed + put(folder / "config.yaml", config_text().encode())


def main():
    parser = argparse.ArgumentParser(description="Make the demo campaign: six satellite-like scenes.")
    parser.add_argument("folder", type=Path, help="folder to write it into")
    folder = parser.parse_args().folder
    changed = make_campaign(folder)
    print(f"{folder}: {len(SCENES) + 1} scenes, {changed} files new or changed")


if __name__ == "__main__":
    main()
