"""The shared cases that concern the COG store: what must come through unchanged, and what must be refused."""

import json
from pathlib import Path

import pytest
import rasterio
from rasterio.enums import ColorInterp
from rasterio.errors import RasterioError

from cogmill.ingest import to_cog
from cogmill.warpgrid import make_control_grid

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "cases.json"
DOCS = json.loads(CASES.read_text(encoding="utf-8"))["cases"] if CASES.is_file() else []
SCENES = [case for case in DOCS if "sheet" not in case["files"]]


def ids(wanted) -> list:
    """Parameters of a test: ids of cases, or one that is skipped by the fixture `cases`."""
    return [case["id"] for case in SCENES if wanted(case)] or ["none"]


def sensor_of(positions, kind="continuous") -> dict:
    bands = [
        {"name": f"p{n}", "names": [], "file": [f"p{n}"], "position": n, "kind": kind, "scale": None, "offset": None}
        for n in positions
    ]
    return {"name": "numbered", "nodata": None, "bands": bands}


def store(cases, case_id: str, role: str, folder: Path, overviews: bool) -> tuple[dict, dict]:
    """Store all bands of one file; its record and {source band: stored file}."""
    case, path = cases.by_id[case_id], cases.src(case_id, role)
    asked = {band["band"] for band in (case.get("bands") or {}).values() if band["file"] == role}
    try:
        with rasterio.open(path) as source:
            numbers = [n for n, c in enumerate(source.colorinterp, 1) if c != ColorInterp.alpha]
    except RasterioError:
        numbers = []
    numbers = sorted(asked.union(numbers)) or [1]
    by_class = "subset_of" in case.get("cog", {}).get("overview", {})
    sensor = sensor_of(numbers, "classes" if by_class else "continuous")
    record = to_cog(
        scene=case_id,
        row={"scene": case_id, "path": path},
        sensor=sensor,
        bands=[f"p{n}" for n in numbers],
        cog={"bands": "needed", "overviews": overviews, "zstd_level": 1},
        record=folder / "record.json",
        max_attempts=1,
    )
    files = {band["source"]["band"]: str(folder / band["path"]) for band in record["bands"].values()}
    return record, files


def check_refused(cases, case_id: str, record: dict, folder: Path, path: str) -> None:
    """A failed record that names the file and says what is wrong, and no file that looks complete."""
    assert record["state"] == "failed" and not record["retryable"]
    message = record["message"].casefold()
    assert any(hint in message for hint in cases.by_id[case_id]["hint_any"]), record["message"]
    assert Path(path).name.casefold() in message
    assert not list(folder.glob("*.tif")) and not list(folder.glob(".*.tmp"))
    assert json.loads((folder / "record.json").read_text(encoding="utf-8")) == record


@pytest.mark.parametrize("overviews", [False, True], ids=["store", "with_overviews"])
@pytest.mark.parametrize("case_id", ids(lambda case: "cog" in case))
def test_store_keeps_what_the_source_says(cases, tmp_path, case_id, overviews):
    for role in cases.by_id[case_id]["files"]:
        folder = tmp_path / role
        folder.mkdir()
        record, files = store(cases, case_id, role, folder, overviews)
        if record["state"] == "failed":
            assert cases.by_id[case_id]["verdict"] == "ok_or_error", record["message"]
            check_refused(cases, case_id, record, folder, cases.src(case_id, role))
            continue
        assert cases.cog(case_id, role, files, overviews=overviews) == []


@pytest.mark.parametrize(
    "case_id", ids(lambda case: case["verdict"] != "ok" and "cog" not in case and len(case["files"]) == 1)
)
def test_what_cannot_be_right_is_refused(cases, tmp_path, case_id):
    case = cases.by_id[case_id]
    record, _ = store(cases, case_id, "scene", tmp_path, overviews=False)
    if record["state"] == "done":
        assert case["verdict"] == "ok_or_error"
        return
    check_refused(cases, case_id, record, tmp_path, cases.src(case_id, "scene"))


@pytest.mark.parametrize("case_id", ids(lambda case: case["verdict"] == "error" and len(case["files"]) > 1))
def test_bands_on_different_grids_are_refused(cases, tmp_path, case_id):
    case = cases.by_id[case_id]
    bands = []
    for number, role in enumerate(case["bands"], 1):
        (tmp_path / f"{role}.tif").symlink_to(cases.src(case_id, role))
        bands.append(sensor_of([number])["bands"][0] | {"name": role, "file": [role], "position": None})
    record = to_cog(
        scene=case_id,
        row={"path": str(tmp_path / "{band}.tif")},
        sensor={"name": "files", "nodata": None, "bands": bands},
        bands=list(case["bands"]),
        cog={"bands": "needed", "overviews": False, "zstd_level": 1},
        record=tmp_path / "out" / "record.json",
        max_attempts=1,
    )
    assert record["state"] == "done", record["message"]
    grid = make_control_grid(tmp_path / "out" / "record.json", {"crs": "source"}, tmp_path / "grid.json")
    assert grid["state"] == "failed" and case_id in grid["message"]
    assert any(hint in grid["message"].casefold() for hint in case["hint_any"])


def test_bands_are_found_by_description_and_not_by_likeness(cases, tmp_path):
    names = {"red": ["B04", "B4"], "nir": ["B08", "B8"], "nir08": ["B8A"]}
    bands = [
        {"name": role, "names": n, "file": n, "position": None, "kind": "continuous", "scale": None, "offset": None}
        for role, n in names.items()
    ]
    record = to_cog(
        scene="S1",
        row={"path": cases.src("C83", "scene")},
        sensor={"name": "s2", "nodata": None, "bands": bands},
        bands=["red", "nir"],
        cog={"zstd_level": 1},
        record=tmp_path / "record.json",
        max_attempts=1,
    )
    wanted = cases.by_id["C83"]["bands"]
    assert {role: band["source"]["band"] for role, band in record["bands"].items()} == {
        role: wanted[role]["band"] for role in ("red", "nir")
    }
