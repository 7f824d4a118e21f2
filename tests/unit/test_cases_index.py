"""The shared cases that concern indices: sheet, sensor, store, grid and products, all cases of a kind in one batch."""

import json
import os
import re
from pathlib import Path

import pytest
import rasterio
from campaigns import check_product, run_campaign
from conftest import SHARED

pytestmark = [
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),
]

FORMULAS = {
    "NDVI": "(nir - red) / (nir + red)",
    "GNDVI": "(nir - green) / (nir + green)",
    "NDWI": "(green - nir) / (green + nir)",
    "MNDWI": "(green - swir1) / (green + swir1)",
    "NDMI": "(nir - swir1) / (nir + swir1)",
    "NBR": "(nir - swir2) / (nir + swir2)",
    "NDBI": "(swir1 - nir) / (swir1 + nir)",
    "SAVI": "1.5 * (nir - red) / (nir + red + 0.5)",
    "MSAVI": "(2 * nir + 1 - ((2 * nir + 1)**2 - 8 * (nir - red))**0.5) / 2",
    "EVI": "2.5 * (nir - red) / (nir + 6 * red - 7.5 * blue + 1)",
    "EVI2": "2.5 * (nir - red) / (nir + 2.4 * red + 1)",
    "VALUE": "value",
}
# what a case without bands of its own is asked for: its first band as it is
FIRST_BAND = {"value": {"file": "scene", "band": 1}}

FILE = SHARED / "cases" / "cases.json"
DOCS = json.loads(FILE.read_text(encoding="utf-8"))["cases"] if FILE.is_file() else []


def verdict(case: dict) -> str:
    return case.get("index_verdict", case["verdict"])


JUDGED = [c for c in DOCS if "sheet" not in c["files"] and (c.get("index") or verdict(c) == "error")]


def by_caller(entry: dict) -> dict:
    """Columns of the sheet that an expectation asks the caller to fill in."""
    given = re.search(r"caller gives scale=(\S+) offset=(\S+)", entry.get("calibrated") or "")
    return {"scale": given[1], "offset": given[2]} if given else {}


def scene_of(case: dict, entry: dict) -> str:
    return case["id"] + ("-by-caller" if by_caller(entry) else "")


def entries() -> list:
    """(case id, scene, index name, position among the case's entries of that name)."""
    found = []
    for case in JUDGED:
        seen: dict[str, int] = {}
        for entry in case.get("index", []):
            which = seen.get(entry["name"], 0)
            seen[entry["name"]] = which + 1
            label = f"{scene_of(case, entry)}-{entry['name']}"
            found.append(pytest.param(case["id"], scene_of(case, entry), entry["name"], which, id=label))
    return found or [pytest.param(None, None, None, None, id="none")]


def sensor_and_path(cases, case: dict) -> tuple[dict, str]:
    """Bands of a sensor for the case, by description where the case gives one, and the sheet's path."""
    bands = case.get("bands") or FIRST_BAND
    paths = {role: cases.src(case["id"], role) for role in case["files"]}
    if len(paths) == 1:
        named = any("description" in band for band in bands.values())
        how = {
            role: {"names": [band["description"]]} if named else {"position": band["band"]}
            for role, band in bands.items()
        }
        return how, next(iter(paths.values()))
    folders = {os.path.dirname(path) for path in paths.values()}
    assert len(folders) == 1
    names = {role: {"names": [os.path.basename(paths[band["file"]])]} for role, band in bands.items()}
    return names, f"{folders.pop()}/{{band}}"


@pytest.fixture(scope="module")
def runs(cases, tmp_path_factory):
    """{scene: run}: one campaign for all cases with the same indices."""
    groups: dict[tuple, list[dict]] = {}
    for case in JUDGED:
        default = ["NDVI"] if case.get("bands") else ["VALUE"]
        names = dict.fromkeys(entry["name"] for entry in case["index"]) if case.get("index") else default
        groups.setdefault(tuple(names), []).append(case)
    found = {}
    for number, (names, members) in enumerate(groups.items()):
        rows, sensors = {}, {}
        for case in members:
            sensors[case["id"]], path = sensor_and_path(cases, case)
            for entry in case.get("index") or [{}]:
                scene = scene_of(case, entry)
                rows[scene] = {"scene": scene, "sensor": case["id"], "path": path, "scale": "", "offset": ""}
                rows[scene] |= by_caller(entry)
        folder = tmp_path_factory.mktemp(f"cases{number}")
        run = run_campaign(folder, list(rows.values()), {name: FORMULAS[name] for name in names}, sensors)
        found |= dict.fromkeys(rows, run)
    return found


def check_refused(cases, run, case: dict, scene: str) -> None:
    """A failed record that says what is wrong with which file or band, and no product."""
    line = run.lines[scene]
    assert line["state"] == "failed" and not line["retryable"] and not line["products"]
    message = line["message"].casefold()
    assert scene.casefold() in message
    assert any(hint.casefold() in message for hint in case["hint_any"]), line["message"]
    files = [Path(cases.src(case["id"], role)).name.casefold() for role in case["files"]]
    bands = [f"'{role}'" for role in case.get("bands", {})]
    assert any(name in message for name in files) or all(band in message for band in bands), line["message"]
    assert run.files("products", scene) == []


@pytest.mark.parametrize(("case_id", "scene", "name", "which"), entries())
def test_indices_are_what_the_case_says(cases, runs, case_id, scene, name, which):
    case, run = cases.by_id[case_id], runs[scene]
    line = run.lines[scene]
    if verdict(case) == "error" or (verdict(case) == "ok_or_error" and line["state"] == "failed"):
        return check_refused(cases, run, case, scene)
    assert line["state"] == "done", line["message"]
    path = run.product(scene, name)
    assert cases.index(case_id, name, path, which) == []
    pixels = check_product(path)
    stats = line["products"][name]["stats"]
    assert (stats["valid"], stats["invalid"]) == ((pixels == pixels).sum(), (pixels != pixels).sum())


@pytest.mark.parametrize("case_id", [c["id"] for c in JUDGED if verdict(c) == "error"] or ["none"])
def test_what_cannot_be_right_is_refused(cases, runs, case_id):
    check_refused(cases, runs[case_id], cases.by_id[case_id], case_id)


@pytest.mark.parametrize(("case_id", "scene", "name", "which"), entries())
def test_products_lie_where_their_inputs_do_and_say_what_they_are(cases, runs, case_id, scene, name, which):
    run, case = runs[scene], cases.by_id[case_id]
    if run.lines[scene]["state"] == "failed":
        assert verdict(case) != "ok"
        return
    band = next(iter(case["bands"].values()))
    with rasterio.open(cases.src(case_id, band["file"])) as source, rasterio.open(run.product(scene, name)) as file:
        assert file.shape == source.shape and file.crs == source.crs
        assert file.transform.almost_equals(source.transform)
        assert [vars(point) for point in file.gcps[0]] == [vars(point) for point in source.gcps[0]]
        assert (file.descriptions, file.units) == ((name,), ("1",))
