"""What a campaign's records say, read without trust: whatever is missing or odd becomes None, {} or a note."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cogmill.ledger import decode_number, read_json
from cogmill.verdict import Tally, complaint, tally


def at(doc, *keys, default=None):
    """`doc[key][key]...`, or `default` where a record lacks a key or holds something other than a mapping there."""
    for key in keys:
        if not isinstance(doc, dict) or key not in doc:
            return default
        doc = doc[key]
    return default if doc is None else doc


def number(value) -> float | None:
    """A finite number of a record as float; None for anything else (missing, text, NaN, infinity)."""
    try:
        value = float(decode_number(value))
    except (TypeError, ValueError):
        return None
    return value if np.isfinite(value) else None


def entries(doc, *keys) -> dict[str, dict]:
    """The mappings that lie in `doc[key]...` by name; what is no mapping is left out."""
    found = at(doc, *keys, default={})
    return (
        {str(name): entry for name, entry in found.items() if isinstance(entry, dict)}
        if isinstance(found, dict)
        else {}
    )


@dataclass(frozen=True)
class SceneFacts:
    """What the ledger and the records say of one scene; `line`, `cogs` and `grid` are {} where there is none."""

    scene: str
    line: dict
    cogs: dict
    grid: dict

    @property
    def state(self) -> str:
        """done, skipped, failed, or missing for a scene that no ledger holds."""
        if not self.line:
            return "missing"
        state = self.line.get("state")
        return state if state in ("done", "skipped") else "failed"

    @property
    def reason(self) -> str | None:
        return at(self.line, "reason")

    @property
    def message(self) -> str | None:
        return at(self.line, "message")

    @property
    def sensor(self) -> str:
        return str(at(self.line, "sensor") or at(self.cogs, "sensor") or "unknown")

    @property
    def attempts(self) -> list[dict]:
        """The attempts that made the pixels, killed ones included."""
        return [entry for entry in listed(self.line, "attempts") if isinstance(entry, dict)]

    @property
    def seconds(self) -> float | None:
        """What those attempts took; None where none did."""
        return sum_of(at(attempt, "seconds", "total") for attempt in self.attempts) if self.attempts else None

    @property
    def sources(self) -> list[dict]:
        """Source files, as to_cog found them."""
        return [entry for entry in listed(self.cogs, "sources") if isinstance(entry, dict)]

    @property
    def products(self) -> dict[str, dict]:
        return entries(self.line, "products") if self.state == "done" else {}


@dataclass(frozen=True)
class Facts:
    """A campaign as its records tell it.

    `spec` holds "products" and "masks" as the config resolved them, `run` the settings that change no pixel; {} where
    the caller does not know them.
    """

    scenes: list[SceneFacts]
    campaign: Tally
    batches: int
    max_failed_fraction: float
    spec: dict = field(default_factory=dict)
    run: dict = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def complaint(self) -> str | None:
        return complaint(self.campaign, self.max_failed_fraction)

    @property
    def attempts(self) -> list[dict]:
        return [attempt for scene in self.scenes for attempt in scene.attempts]

    @property
    def makers(self) -> list[dict]:
        """Those of the attempts that were not killed: only they say what they ran on."""
        return [attempt for attempt in self.attempts if attempt.get("outcome", "done") in ("done", "failed")]

    def product_spec(self, name: str) -> dict:
        return entries(self.spec, "products").get(name, {})

    @property
    def product_names(self) -> list[str]:
        """Products of the config, then those that only the ledgers know."""
        made = (name for scene in self.scenes for name in scene.products)
        return list(dict.fromkeys([*entries(self.spec, "products"), *made]))


def collect(lines: dict, ledgers, cogs, grids, scenes, max_failed_fraction, spec, run, problems) -> Facts:
    """Read the records of a campaign; one that cannot be read becomes a note.

    Parameters
    ----------
    lines : dict
        {scene: ledger line}, as `verdict.read_lines` gives them.
    cogs, grids : list of paths
        Records of the stored and of the placed scenes.
    scenes : list of str or None
        Scene ids of the sheet; None for those of the ledgers.
    problems : list of str
        What is known to be wrong already; comes first in the notes.
    """
    notes = list(problems)
    stored, placed = _records(cogs, notes), _records(grids, notes)
    ids = list(lines) if scenes is None else list(scenes)
    facts = [SceneFacts(scene, lines.get(scene, {}), stored.get(scene, {}), placed.get(scene, {})) for scene in ids]
    return Facts(facts, tally(lines, ids), len(ledgers), max_failed_fraction, spec or {}, run or {}, notes)


def _records(paths, notes: list[str]) -> dict[str, dict]:
    """{scene: record}; a record lies in the folder of its scene."""
    found = {}
    for path in map(Path, paths):
        try:
            record = read_json(path)
        except (OSError, ValueError) as error:
            notes.append(f"record {path} cannot be read: {error}")
            continue
        if not isinstance(record, dict):
            notes.append(f"record {path} is no record of cogmill")
            continue
        for band in entries(record, "bands").values():
            band.pop("tile_checksums", None)  # 8 bytes a tile, and nothing here asks for them
        found[path.parent.name] = record
    return found


def scalar(value):
    """A value to count by; an odd record may hold lists or mappings where a word is wanted."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def counts(values: Iterable) -> dict[str, int]:
    """How often each value occurs, the most frequent first."""
    return dict(Counter(str(value) for value in values if value is not None).most_common())


def one_or_all(values: Iterable):
    """The value itself where all agree, else the sorted list of them; None where there is none."""
    known = sorted({str(value) for value in values if value is not None})
    return known[0] if len(known) == 1 else known or None


def rounded(value: float | None, digits: int = 6):
    """A number to `digits` significant digits: enough to recompute it, few enough to read."""
    return None if value is None else float(f"{value:.{digits}g}")


def sum_of(values: Iterable) -> float:
    return sum(found for found in map(number, values) if found is not None)


def listed(doc, key: str) -> list:
    found = at(doc, key)
    return found if isinstance(found, list) else []
