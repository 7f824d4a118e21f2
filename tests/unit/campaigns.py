"""Campaigns over given files, taken through all steps, and what every product of them must be."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rasterio
import tifffile
import yaml
import zstandard
from made import Made, config_text
from rio_cogeo.cogeo import cog_validate

from cogmill.campaign import Campaign
from cogmill.cog.validate import validate_cog
from cogmill.ingest import to_cog
from cogmill.ledger import read_json
from cogmill.supervisor import compute_batch
from cogmill.warpgrid import make_control_grid


@dataclass
class Run:
    """A campaign that ran; `lines` is its ledger by scene."""

    made: Made
    lines: dict

    def cogs(self, scene: str) -> dict:
        """The scene's record of stored bands."""
        return read_json(self.made.path("cogs", scene))

    def stored(self, scene: str, role: str) -> Path:
        return self.made.path("cogs", scene).parent / self.cogs(scene)["bands"][role]["path"]

    def product(self, scene: str, name: str = "ndvi") -> Path:
        return self.made.path("products", scene).parent / f"{name}.tif"

    def files(self, kind: str, scene: str) -> list[str]:
        """Names of rasters and temporary files that lie in the scene's folder."""
        folder = self.made.path(kind, scene).parent
        return [path.name for pattern in ("*.tif", ".*.tmp") for path in folder.glob(pattern)]


def run_campaign(folder: Path, rows: list[dict], products: dict, sensors: dict | None = None, **keys) -> Run:
    """Write sheet and sensors, check them as a user's are, and take all scenes through all steps as one batch.

    Parameters
    ----------
    folder : Path
    rows : list of dict
        Lines of the sheet.
    products : dict
        {name: formula}.
    sensors : dict
        {name: {role: {"position", "names", "kind"}}}.
    keys
        More keys of the config.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    (folder / "scenes.csv").write_text(text.getvalue(), encoding="utf-8")
    (folder / "sensors").mkdir()
    for name, bands in (sensors or {}).items():
        doc = yaml.safe_dump({"title": name, "bands": bands}, allow_unicode=True)
        (folder / "sensors" / f"{name}.yaml").write_text(doc, encoding="utf-8")
    campaign = Campaign.from_config(config_text(folder, products, **keys))
    made = Made(campaign, folder / "results")
    for scene in campaign.scenes:
        to_cog(scene=scene, record=made.path("cogs", scene), threads=2, **campaign.ingest_params(scene))
        make_control_grid(made.path("cogs", scene), campaign.grid_params(scene), made.path("grids", scene))
    return Run(made, {line["scene"]: line for line in compute_batch(**made.batch())})


def check_product(path: Path) -> np.ndarray:
    """A strictly valid COG with the same pixels in all readers; its pixels."""
    assert validate_cog(path) == []
    with rasterio.open(path) as file:
        pixels = file.read(1)
        # GDAL and rio-cogeo reckon an overview's decimation by widths, which says nothing of a raster 1 pixel wide
        if file.width > 1 or file.height <= 512:
            assert cog_validate(path, strict=True, quiet=True) == (True, [], [])
        assert file.count == 1 and file.dtypes == ("float32",) and np.isnan(file.nodata)
        # numbers of a product are what they are, whatever its inputs' tags said
        assert (file.scales, file.offsets) == ((1.0,), (0.0,))
        assert np.array_equal(file.read_masks(1) > 0, np.isfinite(pixels))
    assert tifffile_pixels(path).tobytes() == pixels.tobytes()
    return pixels


def tifffile_pixels(path: Path) -> np.ndarray:
    """Full-resolution pixels of a tiled ZSTD file of one float32 band with predictor 3.

    tifffile finds the tiles; decoding is here, since tifffile alone has neither ZSTD nor this predictor.
    """
    with tifffile.TiffFile(path) as tiff:
        page = tiff.pages[0]
        assert (page.compression, page.predictor, page.dtype) == (50000, 3, np.float32), page
        rows, cols, high, wide = page.imagelength, page.imagewidth, page.tilelength, page.tilewidth
        across = -(-cols // wide)
        fill = np.float32(page.nodata)
        out = np.full((-(-rows // high) * high, across * wide), fill, np.float32)
        for number, (offset, count) in enumerate(zip(page.dataoffsets, page.databytecounts, strict=True)):
            if count == 0:  # a sparse tile
                continue
            tiff.filehandle.seek(offset)
            data = zstandard.ZstdDecompressor().decompress(tiff.filehandle.read(count))
            deltas = np.frombuffer(data, np.uint8).reshape(high, 4 * wide)
            planes = np.cumsum(deltas, axis=1, dtype=np.uint8).reshape(high, 4, wide)
            tile = np.ascontiguousarray(planes.transpose(0, 2, 1)).view(">f4")[:, :, 0]
            row, col = number // across * high, number % across * wide
            out[row : row + high, col : col + wide] = tile
        return out[:rows, :cols].copy()


def check_ndvi(pixels, red, nir, valid, radiometry=((1.0, 0.0), (1.0, 0.0))) -> None:
    """`pixels` are the float64 formula on the stored numbers, rounded to float32, with the same validity.

    To the bit where float32 holds the numbers, their sum and their difference; as close as float32 arithmetic comes
    otherwise. Where red and NIR cancel out in the sum, that may be anything, so those pixels are left out.

    Parameters
    ----------
    pixels : (rows, cols) float32
    red, nir : (rows, cols) of any dtype
    valid : (rows, cols) bool
        Where both are valid.
    radiometry : ((scale, offset), (scale, offset))
        Of red and NIR.
    """
    exact = all(band.dtype.kind in "iu" and band.dtype.itemsize <= 2 for band in (red, nir))
    exact = exact and all(tuple(pair) == (1.0, 0.0) for pair in radiometry)
    with np.errstate(all="ignore"):
        x, y = (
            band.astype("f8") * scale + offset for band, (scale, offset) in zip((red, nir), radiometry, strict=True)
        )
        wanted = (y - x) / (y + x)
        wanted[~(valid & np.isfinite(wanted))] = np.nan
        if exact:
            np.testing.assert_array_equal(pixels, wanted.astype("f4"))
            return
        # rounding both numbers weighs as much more as their sum is smaller than they are; then three steps, and the
        # rounding of the wanted value
        weight = (np.abs(x) + np.abs(y)) / np.abs(x + y)
        allowed = 1.01 * 2.0**-24 * (weight * (1 + np.abs(wanted)) + 4 * np.abs(wanted))
    sure = ~(weight > 2.0**18) | ~valid
    np.testing.assert_array_equal(np.isnan(pixels[sure]), np.isnan(wanted[sure]), "validity")
    off = np.abs(pixels - wanted) > allowed
    assert not off[sure].any(), f"{off[sure].sum()} of {off.size} pixels are further from the formula than rounding is"
