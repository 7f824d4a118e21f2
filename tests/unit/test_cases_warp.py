"""The shared cases that concern other grids than the scene's own, through the whole pipeline."""

import json

import numpy as np
import pytest
import rasterio
from campaigns import Run, run_campaign
from conftest import SHARED
from made import NDVI

from cogmill.errors import ConfigError
from cogmill.ledger import read_json

pytestmark = [
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),
]

FILE = SHARED / "cases" / "cases.json"
DOCS = {case["id"]: case for case in json.loads(FILE.read_text(encoding="utf-8"))["cases"]} if FILE.is_file() else {}
WARPED = {name: case for name, case in DOCS.items() if case.get("warp") and name != "C54"}
ERRORS_PX = [0, 0.01]
# the cases are point samples, whatever the ratio
ALLOWED = {"C46": {"allow_aliasing": True}}
REDNIR = {"red": {"position": 1}, "nir": {"position": 2}}


def targets(case: dict) -> dict[tuple, list[int]]:
    """{target grid: positions of the case's entries for it}."""
    found: dict[tuple, list[int]] = {}
    for number, entry in enumerate(case["warp"]):
        grid = (entry["dst_crs"], tuple(entry["dst_transform"]), tuple(entry["dst_shape"]))
        found.setdefault(grid, []).append(number)
    return found


def like(folder, crs: str, transform, shape) -> str:
    """An empty raster on a target grid."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "like.tif"
    profile = {"driver": "GTiff", "height": shape[0], "width": shape[1], "count": 1, "dtype": "uint8"}
    with rasterio.open(
        path, "w", crs=crs, transform=rasterio.Affine(*transform), sparse_ok=True, tiled=True, **profile
    ):
        pass
    return str(path)


def row(scene: str, path: str, **more) -> dict:
    # the cases' numbers are meant as they are stored
    return {"scene": scene, "sensor": "bands", "path": path, "scale": "1", "offset": "0"} | more


def product(entry: dict) -> str:
    return f"b{entry['band']}_{entry['method']}"


@pytest.fixture(scope="module")
def runs(cases, tmp_path_factory):
    """{(case, position of the entry, max_error_px): run}: a campaign for each case, target and error."""
    done = {}

    def run(case_id: str, number: int, error_px: float) -> Run:
        case = DOCS[case_id]
        grid, numbers = next((grid, found) for grid, found in targets(case).items() if number in found)
        if (case_id, grid, error_px) not in done:
            folder = tmp_path_factory.mktemp(case_id)
            entries = [case["warp"][n] for n in numbers]
            kind = "bits" if case_id == "C85" else "continuous"
            sensor = {f"b{e['band']}": {"position": e["band"], "kind": kind} for e in entries}
            specs = {product(e): {"formula": f"b{e['band']}", "resampling": e["method"]} for e in entries}
            done[case_id, grid, error_px] = run_campaign(
                folder,
                [row(case_id, cases.src(case_id, entries[0]["file"]))],
                specs,
                {"bands": sensor},
                grid={"like": like(folder, *grid), "max_error_px": error_px},
                warp=ALLOWED.get(case_id, {}),
            )
        return done[case_id, grid, error_px]

    return run


ENTRIES = [
    pytest.param(name, number, id=f"{name}-{number}-{entry['method']}")
    for name, case in WARPED.items()
    for number, entry in enumerate(case["warp"])
] or [pytest.param(None, None, id="none")]


@pytest.mark.parametrize("error_px", ERRORS_PX)
@pytest.mark.parametrize(("case_id", "number"), ENTRIES)
def test_warped_pixels_are_what_the_case_says(cases, runs, case_id, number, error_px):
    run = runs(case_id, number, error_px)
    line = run.lines[case_id]
    assert line["state"] == "done", line["message"]
    assert cases.warp(case_id, number, run.product(case_id, product(DOCS[case_id]["warp"][number]))) == []


# --- what cannot be warped


def campaign(cases, tmp_path, case_ids, products=None, sensors=None, roles=("scene",), **keys) -> Run:
    rows = [row(name, cases.src(name, *roles)) for name in case_ids]
    return run_campaign(tmp_path, rows, products or {"ndvi": NDVI}, sensors or {"bands": REDNIR}, **keys)


def check_refused(run: Run, case_id: str, state: str = "failed") -> dict:
    line = run.lines[case_id]
    assert line["state"] == state and not line["retryable"], line["message"]
    message = line["message"].casefold()
    assert case_id.casefold() in message
    assert any(hint.casefold() in message for hint in DOCS[case_id]["hint_any"]), line["message"]
    assert run.files("products", case_id) == [] and not line["products"]
    return line


UNPLACED = [name for name, case in DOCS.items() if case.get("warp_verdict") == "error"] or ["none"]


@pytest.mark.parametrize("engine", ["grid", "gdal"])
def test_what_lies_nowhere_is_not_warped(cases, tmp_path, engine):
    keys = {"grid": {"crs": "EPSG:3035", "resolution": 10}, "warp": {"engine": engine}}
    run = campaign(cases, tmp_path, UNPLACED, **keys)
    assert len(UNPLACED) >= 2
    for case_id in UNPLACED:
        check_refused(run, case_id)


@pytest.mark.parametrize("engine", ["grid", "gdal"])
def test_a_target_far_away_is_skipped(cases, tmp_path, engine):
    ((crs, transform, shape), _) = next(iter(targets(DOCS["C54"]).items()))
    target = like(tmp_path / "target", crs, transform, shape)
    run = campaign(cases, tmp_path, ["C54"], grid={"like": target}, warp={"engine": engine})
    assert check_refused(run, "C54", "skipped")["reason"] == "no_overlap"


@pytest.mark.parametrize("case_id", [name for name in DOCS if name.startswith(("C49", "C84"))] or ["none"])
class TestTwoGrids:
    """Red on one grid and NIR on another."""

    def run(self, cases, tmp_path, case_id, **keys) -> Run:
        paths = {role: cases.src(case_id, role) for role in ("red", "nir")}
        folder = paths["red"].rpartition("/")[0]
        names = {role: {"names": [path.rpartition("/")[2]]} for role, path in paths.items()}
        rows = [row(case_id, f"{folder}/{{band}}")]
        return run_campaign(tmp_path, rows, {"ndvi": NDVI, "red": "red", "nir": "nir"}, {"bands": names}, **keys)

    def test_it_is_refused_unless_a_target_is_asked_for(self, cases, tmp_path, case_id):
        check_refused(self.run(cases, tmp_path, case_id), case_id)

    def test_a_target_asked_for_holds_both(self, cases, tmp_path, case_id):
        run = self.run(
            cases, tmp_path, case_id, grid={"crs": "EPSG:32631", "resolution": 10}, warp={"resampling": "nearest"}
        )
        if case_id in ("C49", "C84_disjoint"):  # two CRSs in one scene, or no ground in common
            check_refused(run, case_id)
            return
        line = run.lines[case_id]
        assert line["state"] == "done", line["message"]
        pixels = {}
        for name in ("ndvi", "red", "nir"):
            with rasterio.open(run.product(case_id, name)) as file:
                pixels[name], transform = file.read(1), file.transform
        for role in ("red", "nir"):
            with rasterio.open(cases.src(case_id, role)) as source:
                check_nearest(source, pixels[role], transform)
        red, nir = (pixels[role].astype("f8") for role in ("red", "nir"))
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(pixels["ndvi"], ((nir - red) / (nir + red)).astype("f4"))
        assert np.isfinite(pixels["ndvi"]).mean() > 0.5


def check_nearest(source, pixels: np.ndarray, transform) -> None:
    """Each target pixel holds the source's pixel that its centre lies in; on an edge either neighbour."""
    size, left, top = source.transform.a, source.transform.c, source.transform.f
    x = (transform.c + transform.a * (np.arange(pixels.shape[1]) + 0.5) - left) / size
    y = (top - transform.f - transform.e * (np.arange(pixels.shape[0]) + 0.5)) / size
    values = np.pad(source.read(1).astype("f4"), 1, constant_values=np.nan)
    ways = []
    for shift in (-1e-9, 1e-9):
        cols, rows = (
            np.clip(np.floor(at + shift), -1, n).astype(int) + 1 for at, n in ((x, source.width), (y, source.height))
        )
        ways.append(values[np.ix_(rows, cols)])
    matches = [(pixels == way) | (np.isnan(pixels) & np.isnan(way)) for way in ways]
    assert np.logical_or(*matches).all()
    assert np.isfinite(pixels).any()


# --- datum, antimeridian, ground control points, classes


@pytest.mark.parametrize("engine", ["grid", "gdal"])
def test_the_datum_shift_is_applied(cases, tmp_path, engine):
    grid = {"crs": "EPSG:32610", "resolution": 10}
    run = campaign(
        cases,
        tmp_path,
        ["C50"],
        {"value": "red"},
        {"bands": {"red": {"position": 1}}},
        grid=grid,
        warp={"engine": engine},
    )
    assert run.lines["C50"]["state"] == "done", run.lines["C50"]["message"]
    assert cases.marker("C50", run.product("C50", "value")) == []
    operation = read_json(run.made.path("grids", "C50"))["warp"]["projection"]
    assert not operation["ballpark"]
    assert operation["accuracy_m"] is not None and operation["accuracy_m"] < 50


@pytest.mark.parametrize(("crs", "resolution"), [("EPSG:4326", 0.03), ("EPSG:3857", 5000)])
def test_a_scene_over_the_antimeridian_gets_a_target_of_its_size(cases, tmp_path, crs, resolution):
    run = campaign(cases, tmp_path, ["C44"], {"value": "red"}, grid={"crs": crs, "resolution": resolution})
    line = run.lines["C44"]
    assert line["state"] == "done", line["message"]
    with rasterio.open(run.product("C44", "value")) as file, rasterio.open(cases.src("C44")) as source:
        assert max(file.shape) < 1000
        pixels, values = file.read(1), source.read(1)
        ground = np.isfinite(pixels).sum() * resolution**2
    # all of it is there: as much ground as the source covers, and the same values
    assert np.isfinite(pixels).mean() > 0.3 and ground > 0
    assert np.nanmean(pixels) == pytest.approx(values.mean(), rel=0.02)
    np.testing.assert_allclose((np.nanmin(pixels), np.nanmax(pixels)), (values.min(), values.max()), rtol=0.02)


def test_ground_control_points_need_the_engine_that_can_use_them(cases, tmp_path):
    target = like(tmp_path / "target", "EPSG:32631", (10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0), (48, 64))
    for engine in ("grid", "gdal"):
        (tmp_path / engine).mkdir()
        keys = {"grid": {"like": target}, "warp": {"engine": engine}}
        run = campaign(cases, tmp_path / engine, ["C36"], {"NDVI": NDVI}, **keys)
        if run.lines["C36"]["state"] == "failed":
            assert engine == "grid"
            check_refused(run, "C36")
            assert "gdal" in run.lines["C36"]["message"]
            continue
        assert cases.index("C36", "NDVI", run.product("C36", "NDVI")) == []
        with rasterio.open(run.product("C36", "NDVI")) as file:
            assert not file.gcps[0] and file.crs.to_epsg() == 32631
    assert run.lines["C36"]["state"] == "done", run.lines["C36"]["message"]


@pytest.mark.parametrize("method", ["bilinear", "cubic", "lanczos", "average", "median"])
def test_bits_are_never_interpolated_when_asked(cases, tmp_path, method):
    sensor = {"bands": {"qa": {"position": 1, "kind": "bits"}}}
    products = {"qa": {"formula": "qa", "resampling": method}}
    with pytest.raises(ConfigError, match="never interpolated"):
        campaign(cases, tmp_path, ["C85"], products, sensor, grid={"crs": "EPSG:32631", "resolution": 7})


def test_bits_are_taken_by_nearest_where_the_campaign_interpolates(cases, tmp_path):
    entry = DOCS["C85"]["warp"][0]
    target = like(tmp_path / "target", entry["dst_crs"], entry["dst_transform"], entry["dst_shape"])
    sensor = {"bands": {"qa": {"position": 1, "kind": "bits"}}}
    products = {"qa": {"formula": "qa", "dtype": "uint8", "kind": "bits", "nodata": 255}}
    run = campaign(cases, tmp_path, ["C85"], products, sensor, grid={"like": target}, warp={"resampling": "cubic"})
    assert run.lines["C85"]["state"] == "done", run.lines["C85"]["message"]
    assert cases.warp("C85", 0, run.product("C85", "qa")) == []
