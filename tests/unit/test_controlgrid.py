"""Control grids: the tagged error holds everywhere, PROJ does singular places, and no pixel comes from nowhere."""

import numpy as np
import pytest
import rasterio
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import Transformer

from cogmill import controlgrid
from cogmill.controlgrid import ControlGrid
from cogmill.errors import DamagedRecordError
from cogmill.grids import GridSpec
from cogmill.projections import Placement, area_of, choose_operation, horizontal

SINUSOIDAL = "+proj=sinu +R=6371007.181"
GEOS = "+proj=geos +h=35785831 +lon_0=0 +ellps=WGS84 +sweep=y"
ORTHO = "+proj=ortho +lat_0=40 +lon_0=10 +ellps=WGS84"
GNOMONIC = "+proj=gnom +lat_0=50 +lon_0=10 +ellps=WGS84"
ALBERS = "+proj=aea +lat_1=43 +lat_2=62 +lat_0=30 +lon_0=10 +ellps=GRS80 +towgs84=0,0,0"
POLYCONIC = "+proj=poly +lat_0=0 +lon_0=-54 +ellps=aust_SA +towgs84=0,0,0"
ROTATED_POLE = "+proj=ob_tran +o_proj=longlat +o_lon_p=0 +o_lat_p=39.25 +lon_0=18 +ellps=WGS84"

# source, its pixels, target, its pixels, and where (longitude, latitude)
PAIRS = [
    (32632, 10, 32633, 10, 12, 47),
    (32632, 10, 3035, 10, 9, 47),
    (32632, 1000, 3035, 1000, 9, 47),
    (32632, 10, 4326, 1e-4, 9, 47),
    (4326, 1 / 3600, 32633, 30, 15, 60),
    (32632, 10, 3857, 20, 9, 47),
    (3857, 20, 32633, 10, 15, 70),
    (SINUSOIDAL, 463.3, 32633, 500, 15, 47),
    (32633, 500, SINUSOIDAL, 463.3, 15, 47),
    (SINUSOIDAL, 463.3, 4326, 0.005, 100, 30),
    (SINUSOIDAL, 463.3, 4326, 0.005, 0, 0),
    (SINUSOIDAL, 926.6, 3413, 1000, 60, 70),
    (4326, 0.01, 3413, 1000, -45, 75),
    (3413, 1000, 4326, 0.01, -45, 75),
    (3413, 100, 32633, 100, 15, 78),
    (32633, 10, 3413, 10, 15, 79),
    (32633, 10, 32635, 10, 21, 83),
    (2154, 10, 3035, 10, 3, 46),
    (32631, 1000, 2154, 1000, 3, 46),
    (2154, 100, ALBERS, 100, 3, 46),
    (2056, 2, 32632, 2, 8, 46.8),
    (3078, 30, 32616, 30, -85, 44.5),
    (3375, 20, 32648, 20, 102, 4),
    (26713, 30, 32613, 30, -105, 40),
    (4267, 0.0003, 4326, 0.0003, -105, 40),
    (27700, 10, 32630, 10, -2, 53),
    (31467, 10, 3035, 10, 9, 49),
    (3068, 10, 32633, 10, 13.4, 52.5),
    (POLYCONIC, 1000, 4326, 0.01, -50, -10),
    ("ESRI:54030", 5000, 4326, 0.05, 60, 40),
    ("+proj=moll +ellps=WGS84", 5000, 3035, 4000, 20, 50),
    (ORTHO, 2000, 4326, 0.02, 15, 45),
    (GEOS, 3000, 3035, 3000, 10, 50),
    (4326, 0.03, GEOS, 3000, 20, 20),
    (6933, 1000, 32633, 1000, 15, 50),
    (4326, 0.02, 6931, 1000, 50, 70),
    (6931, 1000, 4326, 0.02, 50, 70),
    (4326, 0.01, 3395, 1000, 20, 75),
    (GNOMONIC, 1000, 4326, 0.01, 15, 47),
    (ROTATED_POLE, 0.01, 32632, 1000, 9, 47),
    (3031, 1000, 4326, 0.02, 100, -75),
    (32632, 1000, 4326, 0.01, 30, 60),
    (32632, 1000, 4326, 0.01, 9, 0),
    (32632, 0.02, 3035, 0.02, 9, 47),
    (4326, 2e-7, 32632, 0.02, 9, 47),
    (2056, 0.02, 32632, 0.02, 8, 46.8),
]


def crs_of(crs):
    return horizontal(crs if isinstance(crs, str) else f"EPSG:{crs}")


def raster(crs, pixel, left, top, shape) -> GridSpec:
    """Upright raster; `pixel` is one size or (width, height)."""
    width, height = pixel if isinstance(pixel, tuple) else (pixel, pixel)
    return GridSpec(crs_of(crs).to_wkt(), (width, 0.0, left, 0.0, -height, top), shape)


def around(crs, pixel, lon, lat, shape) -> GridSpec:
    """Raster with its middle at a place."""
    x, y = Transformer.from_crs(4326, crs_of(crs), always_xy=True).transform(lon, lat)
    return raster(crs, pixel, x - pixel * shape[1] / 2, y + pixel * shape[0] / 2, shape)


def placement(source, target) -> Placement:
    operation = choose_operation(horizontal(source.crs), horizontal(target.crs), area_of(source), True)
    return Placement(source, target, operation)


def outside(x, y, shape, more=0.0):
    rows, cols = shape
    return ~((x >= -more) & (x <= cols + more) & (y >= -more) & (y <= rows + more))


def check_pixels(place, grid, cols, rows, around_px=0.0):
    """The tagged error holds at all coordinates near the source, and coordinates elsewhere do not come near it."""
    x, y = grid.at(cols, rows)
    true_x, true_y = place.to_source(cols, rows)
    between = ~grid.is_exact(cols, rows)
    near = ~outside(true_x, true_y, place.source.shape, around_px)
    error = np.hypot(x - true_x, y - true_y)[between & near]
    assert not np.isnan(error).any()
    assert error.max(initial=0.0) <= grid.error_px
    phantom = between & ~near & ~outside(x, y, place.source.shape, around_px - grid.error_px)
    assert not phantom.any()
    return between & near


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]} {pair[1]:g} to {pair[2]} {pair[3]:g}"[-60:])
def test_the_tagged_error_is_an_upper_bound(pair):
    source_crs, source_pixel, target_crs, target_pixel, lon, lat = pair
    source = around(source_crs, source_pixel, lon, lat, (1200, 1400))
    target = around(target_crs, target_pixel, lon, lat, (700, 900))
    place = placement(source, target)
    grid, touched = controlgrid.make(place, 0.01)
    assert grid.step in controlgrid.STEPS and grid.error_px <= 0.01
    assert touched[grid.exact].all()
    random = np.random.default_rng(0)
    cols, rows = random.uniform(0, 900, 10_000), random.uniform(0, 700, 10_000)
    # edges of the raster: half a pixel before the first node, too
    cols[:1000], rows[1000:2000] = random.choice([0, 0.25, 900], 1000), random.choice([0, 0.25, 700], 1000)
    between = check_pixels(place, grid, cols, rows, around_px=2.0)
    assert between.sum() > 2000


def test_smooth_pairs_keep_the_largest_step():
    place = placement(around(32632, 10, 9, 47, (1200, 1400)), around(3035, 10, 9, 47, (700, 900)))
    grid, _ = controlgrid.make(place, 0.01)
    assert (grid.step, grid.exact.sum()) == (64, 0) and grid.x.shape == (700 // 64 + 2, 900 // 64 + 2)
    finer, _ = controlgrid.make(place, 1e-5)
    assert finer.step == 16 and finer.error_px <= 1e-5


def test_the_bound_is_not_far_above_the_error():
    place = placement(around(32632, 10, 9, 47, (1200, 1400)), around(3035, 10, 9, 47, (700, 900)))
    grid, _ = controlgrid.make(place, 0.01)
    cols, rows = np.meshgrid(np.arange(0, 900, 7.0), np.arange(0, 700, 7.0))
    error = np.hypot(*np.subtract(grid.at(cols, rows), place.to_source(cols, rows))).max()
    assert grid.error_px / 1.3 < error <= grid.error_px


HARD = {
    # the antimeridian, from both sides
    "utm 1 to degrees over 180": (
        raster(32601, 500, 166000, 700000, (400, 300)),
        raster(4326, 0.01, 178, 7, (500, 500)),
    ),
    "utm 1 to degrees over -180": (
        raster(32601, 500, 16000, 700000, (400, 500)),
        raster(4326, 0.01, -183, 7, (500, 500)),
    ),
    "utm 60 to Pacific mercator": (
        raster(32660, 500, 600000, 700000, (400, 500)),
        raster(3832, 500, 3.2e6, 7e5, (300, 400)),
    ),
    "degrees over 180 to utm 1": (raster(4326, 0.01, 175, 7, (500, 1000)), raster(32601, 1000, 1e5, 7e5, (300, 300))),
    "mercator over its edge": (
        raster(32601, 500, 16000, 700000, (400, 500)),
        raster(3857, 900, -2.03e7, 7e5, (400, 500)),
    ),
    # one turn around the earth cut elsewhere
    "0 to 360 to utm": (raster(4326, 0.1, 0, 90, (1800, 3600)), raster(32631, 2000, -3e5, 5.6e6, (500, 500))),
    "whole earth, cut elsewhere": (raster(4326, 0.5, 0, 90, (360, 720)), raster(4326, 0.5, -180, 90, (360, 720))),
    "rotated 0 to 360": (
        GridSpec(crs_of(4326).to_wkt(), (0.09, 0.02, 0, 0.02, -0.09, 60), (1000, 3600)),
        raster(32631, 2000, -3e5, 5.6e6, (500, 500)),
    ),
    "utm to the whole earth": (raster(32632, 5000, 3e5, 6e6, (200, 100)), raster(4326, 0.25, -180, 90, (720, 1440))),
    "sinusoidal over 180": (
        raster(SINUSOIDAL, 10000, -2.0e7, 3e6, (600, 4000)),
        raster(32601, 5000, -3e5, 3e6, (300, 300)),
    ),
    # poles
    "degrees to the pole": (raster(4326, 0.1, -180, 90, (100, 3600)), raster(3413, 5000, -1.2e6, 1.2e6, (480, 480))),
    "degrees to a pole off the nodes": (
        raster(4326, 0.1, -20, 90, (100, 700)),
        raster(3413, 5000, -1.0e6 - 160000, 1.0e6 + 135000, (400, 400)),
    ),
    "pole to degrees": (raster(3413, 5000, -1.2e6, 1.2e6, (480, 480)), raster(4326, 0.1, -180, 92, (200, 3600))),
    # the edge of the globe
    "full disk to degrees": (raster(GEOS, 30000, -5.6e6, 5.6e6, (372, 372)), raster(4326, 0.4, -90, 90, (450, 450))),
    "degrees to a full disk": (raster(4326, 0.5, -180, 90, (360, 720)), raster(GEOS, 30000, -6e6, 6e6, (400, 400))),
    "degrees to a globe": (raster(4326, 0.5, -180, 90, (360, 720)), raster(ORTHO, 40000, -7e6, 7e6, (350, 350))),
    "globe to degrees": (raster(ORTHO, 40000, -7e6, 7e6, (350, 350)), raster(4326, 0.5, -180, 90, (360, 720))),
    "a globe in a cell": (raster(4326, 0.5, -180, 90, (360, 720)), raster(ORTHO, 500000, -3e7, 3e7, (120, 120))),
    "utm used far from its zone": (
        raster(32632, 50000, -9.5e6, 9.5e6, (380, 400)),
        raster(4326, 0.4, -180, 90, (450, 900)),
    ),
    # small and large
    "a scene in a cell": (raster(32632, 10, 5e5, 5.2e6, (20, 30)), raster(3035, 100, 4.2e6, 2.7e6, (900, 900))),
    "a scene of a pixel": (raster(32632, 10, 5e5, 5.2e6, (150, 130)), raster(4326, 0.01, 5, 50, (500, 900))),
    "a coarse raster": (raster(4326, 5.0, -180, 90, (36, 72)), raster(3035, 10000, 1e6, 6e6, (500, 600))),
    # pixels of all shapes
    "south-up": (
        GridSpec(crs_of(32632).to_wkt(), (10.0, 0, 5e5, 0, 10.0, 5.2e6), (500, 600)),
        raster(3035, 10, 4.243e6, 2.653e6, (900, 900)),
    ),
    "rotated": (
        GridSpec(crs_of(32632).to_wkt(), (8.0, -6.0, 5e5, -6.0, -8.0, 5.2e6), (500, 600)),
        raster(3035, 10, 4.243e6, 2.653e6, (900, 900)),
    ),
    "sheared": (
        GridSpec(crs_of(32632).to_wkt(), (10.0, 3.0, 5e5, 0.0, -10.0, 5.2e6), (500, 600)),
        raster(3035, 10, 4.243e6, 2.653e6, (900, 900)),
    ),
    "not square": (
        raster(32632, (10, 30), 5e5, 5.2e6, (300, 600)),
        raster(3035, (25, 7), 4.243e6, 2.653e6, (900, 500)),
    ),
    "rotated target": (
        raster(32632, 10, 5e5, 5.2e6, (500, 600)),
        GridSpec(crs_of(3035).to_wkt(), (8.0, -6.0, 4.245e6, -6.0, -8.0, 2.652e6), (700, 900)),
    ),
}


@pytest.mark.parametrize("case", HARD)
def test_every_pixel_of_hard_places(case):
    source, target = HARD[case]
    place = placement(source, target)
    grid, touched = controlgrid.make(place, 0.01)
    rows, cols = target.shape
    for shift in (0.5, 0.0):  # centres and corners
        c, r = np.meshgrid(np.arange(cols + 1 - 2 * shift) + shift, np.arange(rows + 1 - 2 * shift) + shift)
        x, y = place.to_source(c, r)
        inside = ~outside(x, y, source.shape)
        assert shift == 0.0 or inside.any(), "the case shows nothing"
        check_pixels(place, grid, c.ravel(), r.ravel())
    centres, _ = controlgrid.hits(place, grid, touched)
    assert len(centres)


def test_singular_cells_make_no_finer_grid_for_all():
    # the line where the raster begins and ends goes through the target
    place = placement(raster(4326, 0.01, -180, 10, (2000, 36000)), raster(32601, 1000, -3e5, 7e5, (1000, 2000)))
    grid, _ = controlgrid.make(place, 0.5)
    assert grid.step > 8 and 0 < grid.exact.sum() < 0.1 * grid.exact.size
    col, row = Transformer.from_crs(4326, 32601, always_xy=True).transform(180, 3)
    assert grid.is_exact((col + 3e5) / 1000, (7e5 - row) / 1000)


@pytest.mark.parametrize(("dx", "dy"), [(0, 0), (31, 17), (-20, 30), (32, 32), (5, 60)])
def test_a_pole_within_a_cell_makes_it_exact(dx, dy):
    left, top = -1e5 * 10 - dx * 1e4, 1e5 * 10 + dy * 1e4
    place = placement(raster(4326, 0.1, -180, 90, (300, 3600)), raster(3413, 1e4, left, top, (300, 300)))
    grid, _ = controlgrid.make(place, 0.01)
    assert grid.is_exact(-left / 1e4, top / 1e4)


def test_a_source_that_the_target_does_not_touch_gives_no_hit():
    source, target = around(32632, 10, 9, 47, (100, 100)), around(3035, 10, 10, 48, (900, 900))
    for place in (placement(source, target), placement(source, around(4326, 1e-3, -171, -47, (900, 900)))):
        grid, touched = controlgrid.make(place, 0.01)
        assert not touched.any() and np.isnan(grid.x).all()
        assert not len(controlgrid.hits(place, grid, touched)[0])


def test_a_scene_beside_the_target_by_less_than_a_kernel_gives_no_hit():
    target = around(3035, 10, 9, 47, (300, 300))
    corner = Transformer.from_crs(3035, 32632, always_xy=True).transform(
        target.transform[2] + 3000, target.transform[5] - 3000
    )
    place = placement(raster(32632, 10, corner[0] + 20, corner[1] - 20, (100, 100)), target)
    grid, touched = controlgrid.make(place, 0.01)
    assert touched.any()
    assert not len(controlgrid.hits(place, grid, touched)[0])
    place = placement(raster(32632, 10, corner[0] - 20, corner[1] + 20, (100, 100)), target)
    assert len(controlgrid.hits(place, *controlgrid.make(place, 0.01))[0])


def test_hits_say_how_many_source_pixels_a_target_pixel_is():
    place = placement(around(32632, 10, 9, 47, (1000, 1000)), around(3035, (35), 9, 47, (200, 200)))
    centres, steps = controlgrid.hits(place, *controlgrid.make(place, 0.01))
    assert np.hypot(steps[..., 0], steps[..., 1]) == pytest.approx(3.5, rel=0.01)
    assert len(centres) == len(steps)


def test_large_targets_have_few_points_measured(monkeypatch):
    place = placement(around(32632, 10, 9, 47, (1000, 1000)), around(3035, 10, 9, 47, (200_000, 200_000)))
    measured = []
    to_source = place.to_source
    monkeypatch.setattr(place, "to_source", lambda cols, rows: measured.append(np.size(cols)) or to_source(cols, rows))
    monkeypatch.setattr(controlgrid, "STEPS", (1024, 512))
    grid, touched = controlgrid.make(place, 0.01)
    assert 1 <= touched.sum() <= 16 and max(measured) <= 2 * controlgrid.BLOCK_CELLS
    assert np.isfinite(grid.x).sum() <= 4 * touched.sum()
    assert len(controlgrid.hits(place, grid, touched)[0])


@settings(max_examples=30, deadline=None)
@given(
    affine=st.tuples(*[st.floats(-3, 3)] * 2, st.floats(-200, 200), *[st.floats(-3, 3)] * 2, st.floats(-200, 200)),
    shape=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    seed=st.integers(0, 2**31),
)
def test_any_pair_of_rasters_has_its_bound_and_no_phantom(affine, shape, seed):
    a, b, c, d, e, f = affine
    if abs(a * e - b * d) < 0.05:
        return
    x, y = 500000.0, 5200000.0
    source = GridSpec(
        crs_of(32632).to_wkt(), (100 * a, 100 * b, x + 100 * c, 100 * d, 100 * e, y + 100 * f), (150, 130)
    )
    target = around(3035, 100.0, 9, 47, shape)
    place = placement(source, target)
    grid, touched = controlgrid.make(place, 0.001)
    random = np.random.default_rng(seed)
    cols, rows = random.uniform(0, shape[1], 2000), random.uniform(0, shape[0], 2000)
    near = check_pixels(place, grid, cols, rows)
    if near.any():
        assert len(controlgrid.hits(place, grid, touched)[0])


@pytest.fixture
def saved(tmp_path):
    place = placement(*HARD["degrees to a full disk"])
    grid, _ = controlgrid.make(place, 0.01)
    return place, grid, tmp_path / "grid.tif", grid.save(tmp_path / "grid.tif", place.target, 0.01, "+proj=noop")


def test_a_grid_comes_back_as_it_was_saved(saved):
    _, grid, path, checksum = saved
    back = ControlGrid.load(path, checksum)
    assert (back.step, back.error_px) == (grid.step, grid.error_px) and back.exact.any()
    for name in ("x", "y", "exact"):
        assert np.array_equal(getattr(back, name), getattr(grid, name), equal_nan=name != "exact")
        assert getattr(back, name).dtype == getattr(grid, name).dtype
    assert [file.name for file in path.parent.iterdir()] == ["grid.tif"]


def test_the_file_lies_where_its_nodes_are_and_says_what_it_is(saved):
    place, grid, path, _ = saved
    with rasterio.open(path) as file:
        assert file.dtypes == ("float64", "float64") and file.descriptions == ("source column", "source row")
        assert file.tags()["AREA_OR_POINT"] == "Point"
        tags = {key: value for key, value in file.tags().items() if key.startswith("COGMILL_")}
        assert file.crs and rasterio.crs.CRS.from_wkt(place.target.crs) == file.crs
        a, _, c, _, e, f = place.target.transform
        for i, j in ((0, 0), (3, 5)):
            assert file.xy(i, j) == pytest.approx((c + a * (j * grid.step + 0.5), f + e * (i * grid.step + 0.5)))
        assert (file.dataset_mask()[:-1, :-1] == 0).sum() == grid.exact.sum()
    assert tags == {
        "COGMILL_STEP": str(grid.step),
        "COGMILL_ERROR_PX": repr(grid.error_px),
        "COGMILL_MAX_ERROR_PX": "0.01",
        "COGMILL_OPERATION": "+proj=noop",
    }


def test_a_grid_that_was_changed_or_lost_is_refused(saved):
    _, _, path, checksum = saved
    with pytest.raises(DamagedRecordError, match="run again"):
        ControlGrid.load(path, "0" * 16)
    path.unlink()
    with pytest.raises(DamagedRecordError, match="not there"):
        ControlGrid.load(path, checksum)
    path.write_bytes(b"no tiff")
    import xxhash

    with pytest.raises(DamagedRecordError, match="no control grid"):
        ControlGrid.load(path, xxhash.xxh3_64_hexdigest(b"no tiff"))
