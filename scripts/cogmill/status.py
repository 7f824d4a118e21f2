"""How far a campaign is, told from its records; and taking records away, so that Snakemake makes a scene again."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cogmill.errors import CogmillError
from cogmill.ledger import read_json, read_ledger

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


def scene_state(results: str | Path, scene: str) -> SceneState:
    """State of a scene by its records: the first that is not done decides, else the products' record."""
    for kind in KINDS:
        path = record_path(results, kind, scene)
        try:
            record = read_json(path)
        except FileNotFoundError:
            return SceneState(scene, "waiting", kind)
        except ValueError as error:
            raise CogmillError(f"{path} is not a record of cogmill ({error}): delete it and run again") from error
        if record["state"] != "done":
            break
    state = "unfinished" if record["reason"] == "unfinished" else record["state"]
    return SceneState(scene, state, kind, record["reason"], record["message"], record["retryable"])


def broken_scenes(ledger: str | Path, home: str | Path) -> list[str]:
    """Scenes that a ledger calls done, but of which a product or the record is gone or a product has another size.

    Parameters
    ----------
    ledger : path
        A ledger that is not there promises nothing: its batch is still to be computed.
    home : path
        Folder of all products.
    """
    try:
        lines = read_ledger(ledger)
    except FileNotFoundError:
        return []
    except json.JSONDecodeError as error:
        raise CogmillError(f"{ledger} is not a ledger of cogmill ({error}): delete it and run again") from error
    return [line["scene"] for line in lines if line["state"] == "done" and not _is_there(line, home)]


def _is_there(line: dict, home: str | Path) -> bool:
    # strings, not Path: a campaign of 10,000 scenes asks this 30,000 times at each start
    folder = os.path.join(home, line["scene"])
    sizes = {"record.json": None} | {entry["file"]: entry["size"] for entry in line["products"].values()}
    for name, size in sizes.items():
        try:
            found = os.stat(os.path.join(folder, name)).st_size
        except FileNotFoundError:
            return False
        if size not in (None, found):
            return False
    return True


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
