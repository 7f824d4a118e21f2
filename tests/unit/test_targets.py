"""Target grids: which pixels a scene's products get, anywhere on earth."""

import math

import numpy as np
import pytest
import rasterio
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import Transformer
from rasterio.transform import Affine

from cogmill.errors import SceneError
from cogmill.grids import GridSpec, apply, between, compose, inverse
from cogmill.projections import area_of, choose_operation, horizontal
from cogmill.targets import LARGEST_SIDE, TOLERANCE_PX, target_crs, target_grid, wants_target

PLAIN = {"crs": "source", "resolution": None, "aligned": True, "extent": "scene", "like": None}
SINUSOIDAL = "+proj=sinu +R=6371007.181 +units=m"
TILE_M = 1111950.5196666666  # side of a MODIS tile
DISK = "+proj=geos +h=35785831 +lon_0=-75 +sweep=x +ellps=GRS80"
WORLD = 20037508.342789244


def raster(crs: str, shape, transform) -> GridSpec:
    return GridSpec(horizontal(crs).to_wkt(), tuple(map(float, transform)), shape)


def utm(zone: int, left: float, top: float, size: float = 10, side: int = 10980) -> GridSpec:
    return raster(f"EPSG:{zone}", (side, side), (size, 0, left, 0, -size, top))


def target(source: GridSpec, suggest=None, **params) -> GridSpec:
    """The target, with the operation that a scene would be given."""
    params = PLAIN | params
    if isinstance(params["resolution"], (int, float)):
        params["resolution"] = [params["resolution"]] * 2
    operation = None
    if params["crs"] != "source":
        operation = choose_operation(horizontal(source.crs), horizontal(params["crs"]), area_of(source), True)
    return target_grid("S1", params, source, operation, suggest)


def mistake(*args, **params) -> SceneError:
    with pytest.raises(SceneError) as caught:
        target(*args, **params)
    assert str(caught.value).startswith("scene 'S1': ")
    return caught.value


def bounds(grid: GridSpec) -> tuple[float, float, float, float]:
    """Left, bottom, right, top."""
    a, b, left, d, e, top = grid.transform
    assert (b, d) == (0, 0)
    assert a > 0 > e
    return left, top + e * grid.shape[0], left + a * grid.shape[1], top


def assert_on_lattice(grid: GridSpec) -> None:
    width, _, left, _, height, top = grid.transform
    for edge, size in ((left, width), (top, -height)):
        assert abs(edge - round(edge / size) * size) <= math.ulp(edge)


def test_what_asks_for_a_target():
    assert not wants_target(PLAIN)
    assert not wants_target(PLAIN | {"aligned": False})
    for change in ({"crs": "EPSG:3035"}, {"resolution": [1.0, 1.0]}, {"extent": [0, 0, 1, 1]}, {"like": "a.tif"}):
        assert wants_target(PLAIN | change)


@pytest.mark.parametrize("resolution", [None, 10, 20, 60, 0.1])
def test_a_scene_on_the_lattice_keeps_its_edges(resolution):
    source = utm(32632, 399960, 5200020, side=1098)
    grid = target(source, resolution=resolution)
    side = 10980 / (resolution or 10)
    assert grid.crs == source.crs
    assert bounds(grid) == pytest.approx(bounds(source), abs=1e-9)
    assert grid.shape == (side, side)
    assert_on_lattice(grid)


def test_two_names_of_one_datum_move_no_edge():
    """Between the ellipsoids of WGS 84 and ETRS89 lies a tenth of a millimetre, which must not cost a pixel."""
    source = utm(32632, 399960, 5200020)
    grid = target(source, crs="EPSG:25832", resolution=10)
    assert (grid.shape, grid.transform) == (source.shape, source.transform)


@pytest.mark.parametrize("aligned", [True, False])
def test_edges_are_widened_to_the_lattice_or_begin_at_the_top_left(aligned):
    source = raster("EPSG:32632", (100, 100), (10, 0, 400003, 0, -10, 5200007))
    grid = target(source, resolution=[20, 30], aligned=aligned)
    if aligned:
        assert bounds(grid) == (400000, 5199007 // 30 * 30, 401020, 5200020)
    else:
        assert grid.transform == (20, 0, 400003, 0, -30, 5200007)
        assert grid.shape == (34, 50)


def test_an_extent_is_the_same_for_all_scenes():
    for source in (utm(32632, 399960, 5200020), utm(32633, 300000, 5200020)):
        grid = target(source, crs="EPSG:3035", resolution=[10, 25], extent=[4321003, 2700000, 4322000, 2700101])
        assert bounds(grid) == (4321000, 2700000, 4322000, 2700125)
        assert grid.shape == (5, 100)
    grid = target(
        source, crs="EPSG:3035", resolution=[10, 25], extent=[4321003, 2700000, 4322000, 2700101], aligned=False
    )
    assert grid.transform == (10, 0, 4321003, 0, -25, 2700101)
    assert grid.shape == (5, 100)


def test_decimal_steps_are_rounded_once():
    source = raster("EPSG:4326", (10, 10), (0.01, 0, 0.3, 0, -0.01, 0.7))
    grid = target(source, resolution=0.1)
    assert grid.transform == (0.1, 0, 0.3, 0, -0.1, 0.7)
    assert grid.shape == (1, 1)


def test_a_pixel_larger_than_the_scene_is_one_pixel():
    assert target(utm(32632, 399960, 5198020, side=2), resolution=[20, 5000]).shape == (1, 1)


def test_a_rotated_scene_is_covered_whole():
    source = raster("EPSG:32632", (100, 200), (8, 6, 400000, 6, -8, 5200000))
    grid = target(source, resolution=10)
    x, y = apply(source.transform, np.array([0, 200, 0, 200]), np.array([0, 0, 100, 100]))
    assert bounds(grid) == (x.min(), y.min(), x.max(), y.max())
    assert target(source).transform[0] == 10  # the length of its pixels' edges


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-5, 1e4),
    st.floats(-1e6, 1e6),
    st.floats(-1e7, 1e7),
    st.integers(1, 3000),
    st.floats(0.05, 20),
    st.booleans(),
)
def test_scenes_of_any_place_and_size_lie_within_their_target(size, left, top, side, ratio, aligned):
    source = raster("EPSG:32632", (side, side), (size, 0, left, 0, -size, top))
    resolution = size * ratio
    grid = target(source, resolution=resolution, aligned=aligned)
    slack = TOLERANCE_PX * resolution + 4 * math.ulp(2e7)
    assert_holds(bounds(grid), bounds(source), resolution, slack)
    if aligned:
        assert_on_lattice(grid)


def assert_holds(outer, inner, resolution: float, slack: float) -> None:
    """Bounds hold other bounds, and are less than two pixels larger on each side."""
    for sign, out, within in zip((-1, -1, 1, 1), outer, inner, strict=True):
        assert -slack <= sign * (out - within) < 2 * resolution + slack


def dense_bounds(source: GridSpec, crs: str, middle: float | None = None, turn: float = 360) -> tuple:
    """Bounds of many points of a scene, by pyproj alone; x within half a turn of `middle`."""
    rows, cols = source.shape
    col, row = np.meshgrid(np.linspace(0, cols, 801), np.linspace(0, rows, 801))
    x, y = apply(source.transform, col, row)
    x, y = Transformer.from_crs(horizontal(source.crs), crs, always_xy=True).transform(x, y)
    if middle is not None:
        x = middle + (x - middle + turn / 2) % turn - turn / 2
    return x.min(), y.min(), x.max(), y.max()


PAIRS = [
    (utm(32632, 399960, 5200020), "EPSG:3035", 10, None),
    (utm(32632, 399960, 5200020), "EPSG:32633", 30, None),
    (utm(32632, 399960, 5200020), "EPSG:4326", 1e-4, 9),
    (utm(32632, 300000, 9000000), "EPSG:3413", 10, None),
    (raster("EPSG:4326", (1000, 2000), (0.01, 0, 0, 0, -0.01, 70)), "EPSG:3035", 1000, None),
    (raster("EPSG:3035", (5000, 5000), (1000, 0, 2500000, 0, -1000, 6000000)), "EPSG:4326", 0.01, 10),
    (raster(SINUSOIDAL, (2400, 2400), (TILE_M / 2400, 0, TILE_M, 0, -TILE_M / 2400, 5 * TILE_M)), "EPSG:3035", 500, 0),
    (raster("EPSG:3413", (1000, 1000), (100, 0, 400000, 0, -100, -50000)), "EPSG:4326", 0.01, -40),
]


@pytest.mark.parametrize(("source", "crs", "resolution", "middle"), PAIRS)
def test_the_target_is_as_large_as_the_scene_and_not_two_pixels_larger(source, crs, resolution, middle):
    grid = target(source, crs=crs, resolution=resolution)
    turn = 360 if crs == "EPSG:4326" else 1e9
    assert_holds(bounds(grid), dense_bounds(source, crs, middle, turn), resolution, 1e-3 * resolution)
    assert_on_lattice(grid)
    assert grid.crs == horizontal(crs).to_wkt()


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([32601, 32631, 32660, 32733]),
    st.floats(2e5, 7e5),
    st.floats(1e5, 9e6),
    st.integers(50, 10980),
    st.sampled_from([("EPSG:4326", 360), ("EPSG:3857", 2 * WORLD), ("EPSG:3832", 2 * WORLD)]),
)
def test_utm_scenes_of_any_place_stay_in_one_piece(zone, left, top, side, to):
    source = utm(zone, left, top, side=side)
    crs, turn = to
    resolution = turn / 4e6
    grid = target(source, crs=crs, resolution=resolution)
    left, _, right, _ = bounds(grid)
    assert_holds(bounds(grid), dense_bounds(source, crs, (left + right) / 2, turn), resolution, 1e-3 * resolution)


@pytest.mark.parametrize(
    ("crs", "resolution", "west"),
    [("EPSG:4326", 1e-4, 179.7172), ("EPSG:3857", 10, 20006030), ("EPSG:3832", 10, 3308100)],
)
def test_a_scene_over_the_antimeridian_is_no_strip_around_the_world(crs, resolution, west):
    grid = target(utm(32601, 250000, 5200020), crs=crs, resolution=resolution)
    assert grid.transform[2] == pytest.approx(west)
    assert max(grid.shape) < 20_000


def test_a_scene_that_begins_at_the_antimeridian_lies_west():
    source = raster("EPSG:3857", (10, 10), (10000, 0, -WORLD, 0, -10000, 0))
    assert target(source, crs="EPSG:4326", resolution=0.1).transform[2] == -180
    source = raster("EPSG:3857", (10, 10), (10000, 0, WORLD - 100000, 0, -10000, 0))
    assert bounds(target(source, crs="EPSG:4326", resolution=0.1))[2] == pytest.approx(180)


def test_a_map_of_the_world_is_taken_once():
    source = raster("EPSG:3857", (1000, 1000), (WORLD / 500, 0, -WORLD, 0, -WORLD / 500, WORLD))
    assert bounds(target(source, crs="EPSG:4326", resolution=0.5)) == (-180, -85.5, 180, 85.5)
    source = raster("EPSG:4326", (180, 360), (1, 0, 0, 0, -1, 90))  # from 0 to 360 degrees
    grid = target(source, crs="EPSG:3857", resolution=WORLD / 100, aligned=False)
    assert bounds(grid) == pytest.approx((-WORLD, -WORLD, WORLD, WORLD), abs=2e3)  # pixels are 111 km
    assert grid.shape == (200, 200)


def test_a_polar_scene_reaches_around_the_pole():
    whole = target(raster("EPSG:3413", (1000, 1000), (100, 0, -70000, 0, -100, 30000)), crs="EPSG:4326", resolution=0.1)
    assert (bounds(whole)[0], *bounds(whole)[2:]) == (-180, 180, 90)
    south = target(raster("EPSG:3031", (1000, 1000), (100, 0, -70000, 0, -100, 30000)), crs="EPSG:4326", resolution=0.1)
    assert bounds(south)[:3] == (-180, -90, 180)
    quarter = target(raster("EPSG:3413", (1000, 1000), (100, 0, 0, 0, -100, 0)), crs="EPSG:4326", resolution=0.1)
    assert (bounds(quarter)[0], *bounds(quarter)[2:]) == pytest.approx((-45, 45, 90))


def test_points_without_a_place_do_not_count():
    """A full disk has corners beside the earth, a MODIS tile at the map's edge has a part beside it."""
    disk = target(raster(DISK, (500, 500), (22000, 0, -5.5e6, 0, -22000, 5.5e6)), crs="EPSG:4326", resolution=0.1)
    left, bottom, right, top = bounds(disk)
    assert (left + right) / 2 == pytest.approx(-75, abs=0.1)
    assert 70 < top < 82
    assert bottom == pytest.approx(-top, abs=0.1)
    tile = raster(SINUSOIDAL, (2400, 2400), (TILE_M / 2400, 0, 9 * TILE_M, 0, -TILE_M / 2400, 6 * TILE_M))
    edge = bounds(target(tile, crs="EPSG:4326", resolution=0.005))
    assert edge == pytest.approx((140.015, 50, 180, 60))


def test_a_scene_on_the_far_side_tells_to_set_an_extent():
    error = mistake(utm(32601, 399960, 5200020), crs="+proj=ortho +lat_0=-45 +lon_0=10 +ellps=WGS84", resolution=10)
    assert error.reason == "extent"
    assert "set grid.extent" in str(error)


@pytest.mark.parametrize(
    "params",
    [
        {"crs": "EPSG:3035", "resolution": 0.01},
        {"resolution": 0.5},
        {"resolution": [10, 0.001]},
        {"crs": "EPSG:3035", "resolution": 1, "extent": [0, 0, 1e6, 10], "aligned": False},
        {"crs": "EPSG:3413", "resolution": 1e-300},
    ],
)
def test_absurd_sizes_are_refused(params):
    error = mistake(utm(32632, 399960, 5200020), **params)
    assert error.reason == "extent"
    assert f"at most {LARGEST_SIDE} a side are made" in str(error)
    assert "grid.resolution" in str(error)
    assert "grid.extent" in str(error)


@pytest.mark.parametrize("text", ["EPSG:999999", "nowhere", "+proj=nothing", "EPSG:5773", "EPSG:4978"])
def test_a_crs_that_proj_cannot_use_is_named(text):
    with pytest.raises(SceneError, match=r"grid\.crs is '") as caught:
        target_crs("S1", PLAIN | {"crs": text}, None)
    assert caught.value.reason == "crs"
    assert text in str(caught.value)


def test_heights_are_left_out_of_a_crs():
    assert target_crs("S1", PLAIN | {"crs": "EPSG:32632+5773"}, None) == horizontal("EPSG:32632").to_wkt()
    assert target_crs("S1", PLAIN, None) is None


@pytest.mark.parametrize("params", [{"extent": [0, 0, 100, 100]}, {"crs": "EPSG:3035"}])
def test_a_target_without_a_resolution(params):
    source = GridSpec(horizontal("EPSG:32632").to_wkt(), None, (10, 10))
    with pytest.raises(SceneError, match=r"set grid\.resolution"):
        target_grid("S1", PLAIN | params, source, None)
    with pytest.raises(SceneError, match=r"set grid\.extent"):
        target_grid("S1", PLAIN | {"resolution": [1.0, 1.0]}, source, None)


def test_points_of_a_sensor_model_give_the_extent():
    source = GridSpec(horizontal("EPSG:4326").to_wkt(), None, (10, 10))

    def points():
        return np.array([[179.95, -179.9], [np.inf, -179.85]]), np.array([[1.0, 1.25], [np.inf, 1.1]])

    grid = target(source, suggest=points, resolution=0.05)
    assert bounds(grid) == pytest.approx((179.95, 1, 180.15, 1.25))
    with pytest.raises(SceneError, match="none of its points has a place"):
        target(source, suggest=lambda: (np.array([np.inf]), np.array([np.nan])), resolution=0.05)


def write_raster(path, crs="EPSG:3035", transform=(20, 5, 4000000, 5, -20, 3000000), shape=(7, 9)) -> str:
    options = {"driver": "GTiff", "height": shape[0], "width": shape[1], "count": 1, "dtype": "uint8"}
    if transform:
        options["transform"] = Affine(*transform)
    with rasterio.open(path, "w", crs=crs, **options):
        return str(path)


def test_a_target_like_a_file_has_its_pixels(tmp_path):
    path = write_raster(tmp_path / "like.tif")
    params = PLAIN | {"like": path}
    assert horizontal(target_crs("S1", params, None)).to_epsg() == 3035
    grid = target_grid("S1", params, utm(32632, 399960, 5200020), None)
    assert grid.transform == (20, 5, 4000000, 5, -20, 3000000)
    assert grid.shape == (7, 9)
    assert grid.crs == target_crs("S1", params, None)


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"crs": None}, "has no CRS"),
        ({"transform": None}, "has no transform"),
        ({"crs": None, "transform": None}, "has no CRS and no transform"),
        (None, "cannot be read as a raster"),
    ],
)
def test_a_file_that_gives_no_target_is_named(tmp_path, options, text):
    path = tmp_path / "like.tif"
    if options is not None:
        write_raster(path, **options)
    error = mistake(utm(32632, 399960, 5200020), like=str(path))
    assert error.reason == "like"
    assert f"{path}, which grid.like names, {text}" in str(error)


AFFINES = st.tuples(*[st.floats(-100, 100)] * 6).filter(lambda a: abs(a[0] * a[4] - a[1] * a[3]) > 1)


@given(AFFINES, AFFINES, st.floats(-1000, 1000), st.floats(-1000, 1000))
def test_affines_lead_there_and_back(one, other, col, row):
    x, y = apply(one, col, row)
    assert apply(inverse(one), x, y) == pytest.approx((col, row), abs=1e-4)
    assert apply(compose(other, one), col, row) == pytest.approx(apply(other, x, y), abs=1e-4)
    # the same ground: pixels of `one`, seen on the pixels of `other`
    assert apply(other, *apply(between(one, other), col, row)) == pytest.approx((x, y), abs=1e-4)


def test_affines_take_arrays():
    x, y = apply((2, 0, 1, 0, 3, 4), np.array([0, 1]), np.array([[0], [1]]))
    assert np.array_equal(x, [[1, 3], [1, 3]] if x.ndim == 2 else [1, 3])
    assert np.array_equal(np.broadcast_to(y, (2, 2)), [[4, 4], [7, 7]])


def test_pixels_between_grids_are_exact_at_large_northings():
    fine, coarse = (0.02, 0.0, 399960.04, 0.0, -0.02, 5200020.06), (0.04, 0.0, 399960.04, 0.0, -0.04, 5200020.06)
    assert between(fine, coarse) == (0.5, 0, 0, 0, 0.5, 0)
    assert GridSpec(None, (3, 0, 0, 4, -2, 0), (1, 1)).pixel_size() == (5, 2)
