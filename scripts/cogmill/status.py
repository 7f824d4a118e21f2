"""How far a campaign is, told from its records; and taking records away, so that Snakemake makes a scene again."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cogmill.ledger import read_json, read_ledger, read_record

# The records of a scene in the order in which they come, and what lies beside them that belongs to no raster.
KINDS = ("cogs", "grids", "products")
BESIDE = ("record.json", "state.json", ".started")


@dataclass(frozen=True)
class SceneState:
    """Where a scene stands: `state` is done, skipped, failed, unfinished or waiting; `kind` the record that says so."""

    scene: str
    state: str
    kind: str
    reason: str | None = None
    message: str | None = None
    retryable: bool = False


def record_path(results: str | Path, kind: str, scene: str) -> Path:
    """Path of a scene's record."""
    return Path(results, kind, scene, "record.json")


def ledger_path(results: str | Path, batch: str) -> Path:
    """Path of a batch's ledger."""
    return Path(results, "ledger", f"{batch}.jsonl")


def is_stored(record: str | Path, key: str | None) -> bool:
    """Whether a scene's `cogs` record is there and was made as `key` (`ledger.ingest_key`) asks; None asks for any."""
    try:
        return key in (None, read_json(record).get("key"))
    except (FileNotFoundError, ValueError):
        return False


def file_marks(paths: Iterable[str], record: str | Path) -> list[list]:
    """[path, size, mtime_ns] of source files; of those that are lost as the scene's `cogs` record has them.

    A file that changed has another mark, even one that was put there with an older time than the record's.
    """
    marks, known = [], None
    for path in paths:
        try:
            found = os.stat(path)
            marks.append([path, found.st_size, found.st_mtime_ns])
        except OSError:
            known = _known_marks(record) if known is None else known
            marks.append([path, *known.get(path, (None, None))])
    return marks


def _known_marks(record: str | Path) -> dict[str, list]:
    try:
        return {path: mark for path, *mark in read_json(record).get("watched", [])}
    except (OSError, ValueError, TypeError):
        return {}


def scene_state(results: str | Path, scene: str) -> SceneState:
    """State of a scene by its records: the first that is not done decides, else the products' record."""
    for kind in KINDS:
        path = record_path(results, kind, scene)
        try:
            record = read_record(path)
        except FileNotFoundError:
            return SceneState(scene, "waiting", kind)
        if record["state"] != "done":
            break
    state = "unfinished" if record["reason"] == "unfinished" else record["state"]
    return SceneState(scene, state, kind, record["reason"], record["message"], record["retryable"])


def broken_scenes(ledger: str | Path, home: str | Path, scenes: Iterable[str]) -> list[str]:
    """Scenes that a ledger calls done, but whose record or product is gone, or a product is not as it was left.

    Parameters
    ----------
    ledger : path
        A ledger that is not there promises nothing: its batch is still to be computed.
    home : path
        Folder of all products.
    scenes : iterable of str
        Scenes to look at: those that the ledger's batch has now.
    """
    try:
        written = os.stat(ledger).st_mtime_ns
        lines = read_ledger(ledger)
    except FileNotFoundError:
        return []
    wanted = set(scenes)
    done = (line for line in lines if line["state"] == "done" and line["scene"] in wanted)
    return [line["scene"] for line in done if not _is_there(line, home, written)]


def _is_there(line: dict, home: str | Path, written: int) -> bool:
    # strings, not Path: a campaign of 10,000 scenes asks this 30,000 times at each start
    folder = os.path.join(home, line["scene"])
    record = os.path.join(folder, "record.json")
    late = {}
    try:
        os.stat(record)
        for name, entry in line["products"].items():
            found = os.stat(os.path.join(folder, entry["file"]))
            if found.st_size != entry["size"]:
                return False
            # not the time of change of the bytes: a file moved here, or copied with its times, may have an old one
            if found.st_ctime_ns > written:
                late[name] = found.st_mtime_ns
    except FileNotFoundError:
        return False
    return not late or _is_recorded(record, late)


def _is_recorded(record: str, late: dict[str, int]) -> bool:
    """Whether products that came after their ledger are the record's: remade by `repair` or by name, or moved here."""
    try:
        products = read_json(record)["products"]
        return all(products[name]["mtime_ns"] == mtime_ns for name, mtime_ns in late.items())
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def forget(results: str | Path, scene: str, batch: str, kinds: Iterable[str] = KINDS) -> list[Path]:
    """Remove a scene's records and its batch's ledger, so that the next run makes the scene again.

    Rasters stay where they are: they are found to fit no record and are replaced.

    Returns
    -------
    list of Path
        What was removed.
    """
    paths = [record_path(results, kind, scene).with_name(name) for kind in kinds for name in BESIDE]
    removed = [path for path in [*paths, ledger_path(results, batch)] if path.exists()]
    for path in removed:
        path.unlink()
    return removed
