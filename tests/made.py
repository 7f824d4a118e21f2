"""Small scenes that tests make themselves, taken through `to_cog` and `warp_grid` in this process."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rasterio
from rasterio.transform import Affine

from cogmill.campaign import Campaign
from cogmill.ingest import to_cog
from cogmill.warpgrid import make_control_grid

ORIGIN = Affine(10, 0, 500000, 0, -10, 5000000)
NDVI = "(nir - red) / (nir + red)"


def write_raster(path, bands, *, crs="EPSG:32631", transform=ORIGIN, nodata=None, mask=None, **options) -> Path:
    """Write `bands` (a list of (rows, cols) arrays of one dtype), as a GeoTIFF unless `options` name a driver."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, cols = bands[0].shape
    profile = {"driver": "GTiff", "width": cols, "height": rows, "count": len(bands), "dtype": bands[0].dtype}
    profile |= {"crs": crs, "transform": transform, "nodata": nodata} | options
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(path, "w", **profile) as file,
    ):
        for number, band in enumerate(bands, 1):
            file.write(band, number)
        if mask is not None:
            file.write_mask(mask)
    return path


def red_nir(shape=(700, 900), seed=0, low=1, high=5000) -> list[np.ndarray]:
    """Random uint16 red and NIR."""
    random = np.random.default_rng(seed)
    return [random.integers(low, high, shape, dtype=np.uint16) for _ in range(2)]


SENSOR = """\
title: Red and NIR for tests
bands:
  red: {position: 1}
  nir: {position: 2}
"""


def config_text(folder: Path, products=None, **keys) -> dict:
    """A config document for scenes below `folder`."""
    return {
        "sheet": str(folder / "scenes.csv"),
        "sensors": str(folder / "sensors"),
        "products": products or {"ndvi": NDVI},
        **keys,
    }


def write_sheet(folder: Path, rows: list[dict]) -> None:
    """Write `scenes.csv` and the sensor `rednir` that tests use."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(columns), *(",".join(str(row.get(name, "")) for name in columns) for row in rows)]
    (folder / "scenes.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "sensors").mkdir(exist_ok=True)
    (folder / "sensors" / "rednir.yaml").write_text(SENSOR, encoding="utf-8")


@dataclass
class Made:
    """A campaign whose scenes went through `to_cog` and `warp_grid`."""

    campaign: Campaign
    results: Path

    def path(self, kind: str, scene: str) -> Path:
        return self.results / kind / scene / "record.json"

    def batch(self, scenes=None, products=None, **run) -> dict:
        """Arguments of `compute_batch` for these scenes."""
        scenes = list(scenes or self.campaign.scenes)
        return {
            "scenes": scenes,
            "cogs": [str(self.path("cogs", scene)) for scene in scenes],
            "grids": [str(self.path("grids", scene)) for scene in scenes],
            "home": str(self.results / "products"),
            "params": self.campaign.compute_params(scenes, products),
            "run": self.campaign.run_params() | run,
            "ledger": self.results / "ledger" / f"{scenes[0]}.jsonl",
            "threads": 2,
        }


def prepare(folder: Path, rows: list[dict], products=None, **keys) -> Made:
    """Write sheet and sensor, then take each scene through `to_cog` and `warp_grid`."""
    write_sheet(folder, rows)
    campaign = Campaign.from_config(config_text(folder, products, **keys), [], check_files=False)
    made = Made(campaign, folder / "results")
    for scene in campaign.scenes:
        to_cog(scene=scene, record=made.path("cogs", scene), threads=2, **campaign.ingest_params(scene))
        make_control_grid(made.path("cogs", scene), campaign.grid_params(scene), made.path("grids", scene))
    return made
