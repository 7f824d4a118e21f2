"""methods.yaml: what was done to the pixels and what it took, each number recomputable from the campaign's records."""

import platform
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import rasterio
import yaml
from rasterio.crs import CRS
from rasterio.errors import CRSError

from cogmill import __version__
from cogmill.ledger import decode_number, read_json
from cogmill.verdict import Tally, complaint, tally

MB = 1e6  # bytes; decimal, as disks and networks count
REPORT_PACKAGES = {"numba": "numba", "numpy": "numpy", "zstandard": "zstandard", "snakemake": "snakemake"}
HEADER = """\
# Methods of this campaign, written by cogmill; every number comes from the records beside the products.
# MB are 10^6 bytes, seconds are those of the attempts that made the pixels, killed ones included.
"""


MOST_DOUBTS = 50


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
        return [entry for entry in _list(self.line, "attempts") if isinstance(entry, dict)]

    @property
    def seconds(self) -> float | None:
        """What those attempts took; None where none did."""
        return _total(at(attempt, "seconds", "total") for attempt in self.attempts) if self.attempts else None

    @property
    def sources(self) -> list[dict]:
        """Source files, as to_cog found them."""
        return [entry for entry in _list(self.cogs, "sources") if isinstance(entry, dict)]

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


def document(facts: Facts) -> dict:
    """The whole of methods.yaml, in built-in types."""
    return {
        "campaign": {"verdict": facts.complaint or "fine", "max_failed_fraction": facts.max_failed_fraction},
        "hardware": hardware(facts),
        "software": software(facts),
        "inputs": inputs(facts),
        "grid": grid(facts),
        "radiometry": radiometry(facts),
        "masks": at(facts.spec, "masks", default={}),
        "products": {name: _product_text(facts, name) for name in facts.product_names},
        "run": run(facts),
        "outputs": outputs(facts),
        "notes": notes(facts),
    }


def to_yaml(doc: dict) -> str:
    """The document as YAML text."""
    return HEADER + yaml.safe_dump(_plain(doc), sort_keys=False, allow_unicode=True, width=110)


def _plain(value):
    """Built-in types only: a record may hold anything, and YAML's safe form knows no others."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return _scalar(value)


def _scalar(value):
    """A value to count by; an odd record may hold lists or mappings where a word is wanted."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _counts(values: Iterable) -> dict[str, int]:
    """How often each value occurs, the most frequent first."""
    return dict(Counter(str(value) for value in values if value is not None).most_common())


def _one_or_all(values: Iterable):
    """The value itself where all agree, else the sorted list of them; None where there is none."""
    known = sorted({str(value) for value in values if value is not None})
    return known[0] if len(known) == 1 else known or None


def _rounded(value: float | None, digits: int = 6):
    """A number to `digits` significant digits: enough to recompute it, few enough to read."""
    return None if value is None else float(f"{value:.{digits}g}")


def _total(values: Iterable) -> float:
    return sum(found for found in map(number, values) if found is not None)


def hardware(facts: Facts) -> list[dict]:
    """The machines that made the pixels, as the attempts recorded them, and how many scenes each made."""
    machines = Counter()
    for attempt in facts.makers:
        machine = at(attempt, "machine", default={})
        name, kind = at(attempt, "device_name"), at(attempt, "device")
        found = (
            at(machine, "cpu") or (name if kind == "cpu" else None),
            at(machine, "cores"),
            at(machine, "memory_mb"),
            at(machine, "gpu") or (name if kind == "gpu" else None),
        )
        machines[tuple(map(_scalar, found))] += 1
    return [
        {"cpu": cpu, "cores": cores, "memory_mb": memory, "gpu": gpu, "scenes": count}
        for (cpu, cores, memory, gpu), count in machines.most_common()
    ]


def software(facts: Facts) -> dict:
    """Versions: those that the attempts recorded; what they do not say is that of the report's environment."""
    here = {"cogmill": __version__, "python": platform.python_version()}
    here |= {"gdal": rasterio.__gdal_version__, "proj": rasterio.__proj_version__, "rasterio": rasterio.__version__}
    for name, package in REPORT_PACKAGES.items():
        try:
            here[name] = version(package)
        except PackageNotFoundError:
            here[name] = None
    recorded = [entries(attempt).get("versions", {}) for attempt in facts.makers]
    names = list(dict.fromkeys([*here, *(name for versions in recorded for name in versions)]))
    return {name: _one_or_all(v.get(name) for v in recorded) or here.get(name) for name in names}


def inputs(facts: Facts) -> dict:
    """Source files and stored bands."""
    sources = [source for scene in facts.scenes for source in scene.sources]
    bands = [band for scene in facts.scenes for band in entries(scene.cogs, "bands").values()]
    return {
        "scenes": len(facts.scenes),
        "sensors": _counts(scene.sensor for scene in facts.scenes),
        "files": len(sources),
        "mb": _rounded(_total(source.get("size") for source in sources) / MB),
        "drivers": _counts(source.get("driver") for source in sources),
        "dtypes": _counts(source.get("dtype") for source in sources),
        "compression": _counts(source.get("compression") or "none" for source in sources),
        "bands": _counts(role for scene in facts.scenes for role in entries(scene.cogs, "bands")),
        "bands_stored": sum(bool(band.get("written")) for band in bands),
        "bands_indexed_in_place": sum(not band.get("written") for band in bands),
    }


def grid(facts: Facts) -> list[dict]:
    """Target grids: reference system, pixel size, how scenes came onto it, and how many scenes."""
    found = Counter()
    for scene in facts.scenes:
        if scene.state != "done":
            continue
        spec = at(scene.grid, "grid", default=None)
        if spec is None:  # where no grid record was given, the grid is that of the bands that products use
            spec = next((b for b in entries(scene.cogs, "bands").values() if b.get("kind") == "continuous"), {})
        operation = at(scene.grid, "operation", default="identity")
        found[(crs_name(at(spec, "crs")), pixel_size(at(spec, "transform")), str(operation))] += 1
    return [
        {"crs": crs, "pixel_size": list(size) if size else None, "operation": operation, "scenes": count}
        for (crs, size, operation), count in found.most_common()
    ]


def crs_name(wkt) -> str:
    """EPSG code of a WKT where it has one, else the WKT itself."""
    if not wkt:
        return "none"
    try:
        crs = CRS.from_wkt(str(wkt))
    except CRSError:
        return str(wkt)
    code = crs.to_epsg()
    return f"EPSG:{code}" if code else crs.to_wkt()


def pixel_size(transform) -> tuple[float, float] | None:
    """Width and height of a pixel in units of the reference system, from a transform of 6 numbers."""
    values = [number(value) for value in transform] if isinstance(transform, list | tuple) else []
    if len(values) != 6 or None in values:
        return None
    a, b, _, d, e, _ = values
    return float(np.hypot(a, d)), float(np.hypot(b, e))


def radiometry(facts: Facts) -> dict:
    """{sensor: {band: [{scale, offset, decided_by, scenes}]}}: which rule turned numbers into physical values."""
    found: dict = defaultdict(lambda: defaultdict(Counter))
    for scene in facts.scenes:
        for role, band in entries(scene.cogs, "bands").items():
            rule = at(band, "radiometry", default={})
            if band.get("kind", "continuous") == "continuous":
                decision = tuple(_scalar(at(rule, key)) for key in ("scale", "offset", "decided_by"))
                found[scene.sensor][role][decision] += 1
    return {
        sensor: {
            role: [
                {"scale": scale, "offset": offset, "decided_by": rule, "scenes": count}
                for (scale, offset, rule), count in rules.most_common()
            ]
            for role, rules in sorted(roles.items())
        }
        for sensor, roles in sorted(found.items())
    }


def _product_text(facts: Facts, name: str) -> dict:
    """Formula and storage of a product, and what came out over all scenes."""
    fields = ("formula", "dtype", "scale", "offset", "nodata", "unit", "description", "kind")
    spec = facts.product_spec(name)
    return {key: spec.get(key) for key in fields} | {"result": product_result(facts, name)}


def product_result(facts: Facts, name: str) -> dict:
    """Files, bytes and pooled statistics of one product over all scenes; the mean is that of all valid pixels."""
    made = [scene.products[name] for scene in facts.scenes if name in scene.products]
    stats = [entry.get("stats") if isinstance(entry.get("stats"), dict) else {} for entry in made]
    count = {key: int(_total(s.get(key) for s in stats)) for key in ("valid", "invalid", "clamped", "infinite")}
    lows = [low for low in (number(s.get("min")) for s in stats) if low is not None]
    highs = [high for high in (number(s.get("max")) for s in stats) if high is not None]
    weighted = [(number(s.get("mean")), number(s.get("valid"))) for s in stats]
    weighted = [(mean, valid) for mean, valid in weighted if mean is not None and valid]
    weight = sum(valid for _, valid in weighted)
    return {
        "files": len(made),
        "mb": _rounded(_total(entry.get("size") for entry in made) / MB),
        "valid_pixels": count["valid"],
        "invalid_pixels": count["invalid"],
        "clamped_pixels": count["clamped"],
        "infinite_pixels": count["infinite"],
        "min": _rounded(min(lows, default=None)),
        "mean": _rounded(sum(mean * valid for mean, valid in weighted) / weight if weight else None),
        "max": _rounded(max(highs, default=None)),
    }


def run(facts: Facts) -> dict:
    """How the pixels were made: devices, readers, codecs, windows, threads, batches."""

    def window(attempt):
        # the last one is the one that worked: those before it ran out of memory
        found = at(attempt, "window")
        last = found[-1] if isinstance(found, list) and found else found
        return " x ".join(map(str, last)) + " tiles" if isinstance(last, list) and last else None

    return {
        "batches": facts.batches,
        "devices": _counts(attempt.get("device") for attempt in facts.makers),
        "readers": _counts(attempt.get("reader") for attempt in facts.makers),
        "codecs": _counts(attempt.get("codec") for attempt in facts.makers),
        "windows": _counts(map(window, facts.makers)),
        "threads": _counts(attempt.get("threads") for attempt in facts.makers),
        "settings": facts.run,
    }


def outputs(facts: Facts) -> dict:
    """What came out and how fast: rates are totals of the attempts that made the pixels over their seconds."""
    campaign, attempts = facts.campaign, facts.attempts
    stages = list(dict.fromkeys(stage for attempt in attempts for stage in entries(attempt).get("seconds", {})))
    seconds = {stage: _total(at(attempt, "seconds", stage) for attempt in attempts) for stage in stages}
    wall = seconds.pop("total", 0.0)
    amount = {
        key: _total(at(attempt, "bytes", key) for attempt in attempts) / MB
        for key in ("pixels_in", "pixels_out", "read", "written")
    }
    tiles = int(_total(attempt.get("tiles") for attempt in attempts))
    ingest = [scene.cogs for scene in facts.scenes if scene.cogs]
    peaks = [peak for peak in (number(attempt.get("peak_memory_mb")) for attempt in attempts) if peak is not None]

    def rate(total):
        return _rounded(total / wall) if wall > 0 else None

    return {
        "scenes": {
            "total": campaign.scenes,
            "done": len(campaign.done),
            "skipped": len(campaign.skipped),
            "failed": len(campaign.failed),
            "in_no_ledger": len(campaign.missing),
        },
        "not_done": [
            {"scene": scene.scene, "state": scene.state, "reason": scene.reason, "message": scene.message}
            for scene in facts.scenes
            if scene.state != "done"
        ],
        "wall_seconds": _rounded(wall),
        "wall_seconds_by_stage": {stage: _rounded(total) for stage, total in seconds.items()},
        "to_cog_seconds": _rounded(_total(at(record, "seconds", "total") for record in ingest)),
        "tiles": tiles,
        "tiles_per_second": rate(tiles),
        "mb": {key: _rounded(total) for key, total in amount.items()},
        "mb_per_second": {
            "pixels": rate(amount["pixels_in"] + amount["pixels_out"]),
            "files": rate(amount["read"] + amount["written"]),
        },
        "peak_memory_mb": max(peaks, default=None),
    }


def _list(doc, key: str) -> list:
    found = at(doc, key)
    return found if isinstance(found, list) else []


def notes(facts: Facts) -> list[str]:
    """What a reader of the numbers must know, and what is odd about the records."""
    found = [
        "wall_seconds are those of the attempts that made the pixels, killed ones included, summed over scenes; "
        "batches run side by side, so the campaign itself may have taken less. Stages overlap, so they need not sum up "
        "to the whole.",
        "mb_per_second.pixels counts decoded input and computed product pixels, mb_per_second.files the bytes of "
        "their compressed files.",
    ]
    lacking = [scene.scene for scene in facts.scenes if scene.state == "done" and not scene.attempts]
    if lacking:
        found.append(f"{len(lacking)} done scenes have no attempt in their ledger line; the rates leave them out.")
    doubts = [str(note) for scene in facts.scenes for note in _list(scene.cogs, "notes")]
    if len(doubts) > MOST_DOUBTS:
        doubts[MOST_DOUBTS:] = [f"... and {len(doubts) - MOST_DOUBTS} more notes of this kind in the cogs records"]
    return found + doubts + facts.notes
