"""How far a campaign is, told from its records: scenes, stored bands, products that are not as they were left."""

import os

import pytest

from cogmill.errors import CogmillError
from cogmill.ledger import end_record, new_record, read_json, write_json, write_ledger
from cogmill.status import broken_scenes, forget, is_stored, ledger_path, record_path, scene_state

SCENES = ("A", "B")


def write(results, kind, scene, state="done", reason=None, **more):
    """Write a scene's record as it ended."""
    record = end_record(new_record(kind, scene) | more, state, reason, reason and f"scene {scene}: {reason}")
    write_json(record_path(results, kind, scene), record)


@pytest.fixture
def batch(tmp_path):
    """(ledger, products folder) of two done scenes with a product each, and a failed one without."""
    home, lines = tmp_path / "products", []
    for scene in (*SCENES, "C"):
        path = home / scene / "ndvi.tif"
        path.parent.mkdir(parents=True)
        if scene == "C":
            write(tmp_path, "products", scene, "failed", "unreadable", products={})
            lines.append({"scene": scene, "state": "failed", "products": {}})
            continue
        path.write_text("pixels")
        entry = {"file": path.name, "size": 6, "mtime_ns": path.stat().st_mtime_ns}
        write(tmp_path, "products", scene, products={"ndvi": entry})
        lines.append({"scene": scene, "state": "done", "products": {"ndvi": entry}})
    # the clock of files is coarse: the ledger must not be as old as the products
    write_ledger(tmp_path / "ledger" / "A.jsonl", lines)
    later = max(os.stat(home / scene / "ndvi.tif").st_ctime_ns for scene in SCENES) + 1
    os.utime(tmp_path / "ledger" / "A.jsonl", ns=(later, later))
    return tmp_path / "ledger" / "A.jsonl", home


def age(path, seconds):
    """Give a file an older time of change."""
    then = path.stat().st_mtime_ns - int(seconds * 1e9)
    os.utime(path, ns=(then, then))


def test_what_is_as_it_was_left_is_not_broken(batch):
    assert broken_scenes(*batch, (*SCENES, "C")) == []


@pytest.mark.parametrize("harm", ["gone", "folder", "record", "size", "content", "old content", "touched"])
def test_a_product_that_is_not_as_it_was_left_breaks_its_scene(batch, harm):
    ledger, home = batch
    path = home / "B" / "ndvi.tif"
    if harm == "gone":
        path.unlink()
    elif harm == "folder":
        (home / "B").rename(home / "moved")
    elif harm == "record":
        (home / "B" / "record.json").unlink()
    elif harm == "size":
        path.write_text("pixels and more")
        age(path, 100)
    elif harm == "content":
        path.write_text("others")
    elif harm == "old content":
        path.write_text("others")
        age(path, 100)
    else:
        path.touch()
    assert broken_scenes(ledger, home, SCENES) == ["B"]
    assert broken_scenes(ledger, home, ["A"]) == []  # B is not in the sheet any more


def test_a_product_made_after_its_ledger_is_the_records(batch):
    """As `repair` leaves it, and as a folder that was moved to another disk looks."""
    ledger, home = batch
    path, record = home / "B" / "ndvi.tif", home / "B" / "record.json"
    path.write_text("anew!!")
    doc = read_json(record)
    doc["products"]["ndvi"]["mtime_ns"] = path.stat().st_mtime_ns
    write_json(record, doc)
    assert broken_scenes(ledger, home, SCENES) == []
    record.write_text("{")
    assert broken_scenes(ledger, home, SCENES) == ["B"]


def test_a_ledger_that_is_not_there_promises_nothing(batch):
    ledger, home = batch
    ledger.unlink()
    assert broken_scenes(ledger, home, SCENES) == []


def test_a_damaged_ledger_is_named(batch):
    ledger, home = batch
    ledger.write_text('{"scene": ')
    with pytest.raises(CogmillError, match=r"A\.jsonl is not a ledger .* delete it"):
        broken_scenes(ledger, home, SCENES)


def test_stored_bands_are_those_of_the_key(tmp_path):
    path = record_path(tmp_path, "cogs", "A")
    assert not is_stored(path, None)
    write(tmp_path, "cogs", "A", key="1a")
    assert is_stored(path, "1a") and is_stored(path, None)
    assert not is_stored(path, "2b")
    path.write_text("{")
    assert not is_stored(path, "1a") and not is_stored(path, None)


def test_the_first_record_that_is_not_done_decides(tmp_path):
    assert scene_state(tmp_path, "A").state == "waiting"
    write(tmp_path, "cogs", "A")
    assert (scene_state(tmp_path, "A").state, scene_state(tmp_path, "A").kind) == ("waiting", "grids")
    write(tmp_path, "grids", "A", "failed", "grid_mismatch")
    write(tmp_path, "products", "A")
    state = scene_state(tmp_path, "A")
    assert (state.state, state.kind, state.reason) == ("failed", "grids", "grid_mismatch")
    assert state.message == "scene A: grid_mismatch"
    write(tmp_path, "grids", "A")
    assert scene_state(tmp_path, "A").state == "done"
    write(tmp_path, "products", "A", "failed", "unfinished")
    assert scene_state(tmp_path, "A").state == "unfinished"
    record_path(tmp_path, "products", "A").write_text("{")
    with pytest.raises(CogmillError, match=r"A/record\.json is not a record"):
        scene_state(tmp_path, "A")


def test_forgetting_takes_records_and_ledger_and_leaves_rasters(tmp_path, batch):
    ledger, home = batch
    for kind in ("cogs", "grids"):
        write(tmp_path, kind, "B")
    (tmp_path / "cogs" / "B" / ".started").write_text("{}")
    assert ledger == ledger_path(tmp_path, "A")
    removed = forget(tmp_path, "B", "A", ["products"])
    assert sorted(removed) == [ledger, home / "B" / "record.json"]
    assert (home / "B" / "ndvi.tif").exists() and record_path(tmp_path, "cogs", "B").exists()
    removed = {path.relative_to(tmp_path).as_posix() for path in forget(tmp_path, "B", "A")}
    assert removed == {"cogs/B/record.json", "cogs/B/.started", "grids/B/record.json"}
    assert record_path(tmp_path, "products", "A").exists()
