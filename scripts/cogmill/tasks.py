"""What the supervisor hands to the worker: one task a scene, in built-in types only."""

from dataclasses import dataclass
from pathlib import Path

from cogmill.errors import DamagedRecordError
from cogmill.ledger import new_record, read_record

# A scene that killed its process this often is not tried again until its key changes.
MAX_DEATHS = 2


@dataclass(frozen=True)
class Task:
    """One scene of a batch.

    `cogs` and `grid` are the paths of its records, `home` the folder of all products, `products` {name: spec} and
    `masks` {band role: {"classes", "bits"}} as the campaign resolved them, `warp` {"order", "allow_aliasing"}, `run`
    what changes no pixel (window, memory, zstd level, attempts). `check`: recompute a tile when the products are made.
    """

    scene: str
    cogs: str
    grid: str
    home: str
    products: dict
    masks: dict
    warp: dict
    run: dict
    check: bool = False

    @property
    def folder(self) -> Path:
        return Path(self.home, self.scene)

    @property
    def record(self) -> Path:
        return self.folder / "record.json"

    @property
    def running(self) -> Path:
        """There while a process works on the scene: who finds it, with nobody at work, knows that one died.

        It is empty and is only removed afterwards, so that a full disk cannot turn a fault into a death.
        """
        return self.folder / ".running"

    def product(self, name: str) -> Path:
        return self.folder / f"{name}.tif"


def load_record(path: Path, scene: str) -> dict:
    """The scene's `products` record, or a new one where there is none or it is damaged."""
    try:
        record = read_record(path, "products")
    except (FileNotFoundError, DamagedRecordError):
        record = new_record("products", scene)
    record.setdefault("products", {})
    record.setdefault("attempts", [])
    # how often the process died on it, and met faults, since its key is what it is
    record.setdefault("journal", {"key": None, "died": 0, "faults": 0})
    return record
