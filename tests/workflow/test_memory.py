"""A scene far larger than memory allows, on one core."""

import os
import resource

import numpy as np
import pytest
import rasterio
from made import ORIGIN
from rasterio.windows import Window
from rio_cogeo.cogeo import cog_validate
from runs import new_campaign

SIDE = 40_000
LIMIT = 1_500_000_000  # bytes of address space


def restrict():
    """In the child: one core, and no more address space than `LIMIT`."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.mark.slow
def test_a_sparse_scene_of_40000_by_40000_within_1500_mb_on_one_core(tmp_path):
    (tmp_path / "raw").mkdir()
    profile = {
        "driver": "GTiff", "width": SIDE, "height": SIDE, "count": 2, "dtype": "uint16", "nodata": 0,
        "crs": "EPSG:32631", "transform": ORIGIN, "interleave": "band", "compress": "deflate", "sparse_ok": True,
        "tiled": True, "blockxsize": 256, "blockysize": 256,
    }  # fmt: skip
    random = np.random.default_rng(7)
    places = [Window(col, row, 400, 300) for col, row in random.integers(0, SIDE - 400, (5, 2)).tolist()]
    with rasterio.open(tmp_path / "raw" / "big.tif", "w", **profile) as file:
        for place in places:
            file.write(random.integers(1, 5000, (2, 300, 400), dtype=np.uint16), window=place)
    campaign = new_campaign(tmp_path, [{"scene": "BIG", "sensor": "rednir", "path": "raw/big.tif"}])
    done = campaign.run("--cores", "1", preexec_fn=restrict)
    assert done.code == 0, done.text
    assert cog_validate(campaign.product("BIG"), strict=True)[0]
    with rasterio.open(campaign.product("BIG")) as made, rasterio.open(tmp_path / "raw" / "big.tif") as source:
        for place in [*places, Window(0, 0, 600, 600)]:
            red, nir = source.read(window=place).astype("f8")
            with np.errstate(invalid="ignore"):
                wanted = np.where(red + nir > 0, (nir - red) / (nir + red), np.nan).astype("f4")
            np.testing.assert_array_equal(made.read(1, window=place), wanted)
    stats = campaign.record("products", "BIG")["products"]["ndvi"]["stats"]
    assert stats["valid"] + stats["invalid"] == SIDE * SIDE
    assert 0 < stats["valid"] <= len(places) * 300 * 400
