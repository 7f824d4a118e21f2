"""methods.yaml: what was done to the pixels and what it took, each number recomputable from the campaign's records."""

import platform
from collections import Counter, defaultdict
from importlib.metadata import PackageNotFoundError, version

import rasterio
import yaml

from cogmill import __version__
from cogmill.report.facts import Facts, at, counts, entries, listed, number, one_or_all, rounded, scalar, sum_of
from cogmill.report.placement import grid, resampling, self_check, sentences

MB = 1e6  # bytes; decimal, as disks and networks count
REPORT_PACKAGES = {"numba": "numba", "numpy": "numpy", "zstandard": "zstandard", "snakemake": "snakemake"}
HEADER = """\
# Methods of this campaign, written by cogmill; every number comes from the records beside the products.
# MB are 10^6 bytes, seconds are those of the attempts that made the pixels, killed ones included.
"""
MOST_DOUBTS = 50


def document(facts: Facts) -> dict:
    """The whole of methods.yaml, in built-in types."""
    doc = {
        "campaign": {"verdict": facts.complaint or "fine", "max_failed_fraction": facts.max_failed_fraction},
        "text": "",
        "hardware": hardware(facts),
        "software": software(facts),
        "inputs": inputs(facts),
        "radiometry": radiometry(facts),
        "masks": at(facts.spec, "masks", default={}),
        "grid": grid(facts),
        "resampling": resampling(facts),
        "products": {name: _product_text(facts, name) for name in facts.product_names},
        "self_check": self_check(facts),
        "run": run(facts),
        "outputs": outputs(facts),
        "notes": notes(facts),
    }
    return doc | {"text": " ".join(sentences(doc))}


def to_yaml(doc: dict) -> str:
    """The document as YAML text."""
    return HEADER + yaml.safe_dump(_plain(doc), sort_keys=False, allow_unicode=True, width=110)


def _plain(value):
    """Built-in types only: a record may hold anything, and YAML's safe form knows no others."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return scalar(value)


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
        machines[tuple(map(scalar, found))] += 1
    return [
        {"cpu": cpu, "cores": cores, "memory_mb": memory, "gpu": gpu, "scenes": count}
        for (cpu, cores, memory, gpu), count in machines.most_common()
    ]


def software(facts: Facts) -> dict:
    """Versions: those that the records hold; what they do not say is that of the report's environment."""
    here = {"cogmill": __version__, "python": platform.python_version()}
    here |= {"gdal": rasterio.__gdal_version__, "proj": rasterio.__proj_version__, "rasterio": rasterio.__version__}
    for name, package in REPORT_PACKAGES.items():
        try:
            here[name] = version(package)
        except PackageNotFoundError:
            here[name] = None
    recorded = [entries(attempt).get("versions", {}) for attempt in facts.makers]
    names = list(dict.fromkeys([*here, *(name for versions in recorded for name in versions)]))
    found = {name: one_or_all(v.get(name) for v in recorded) or here.get(name) for name in names}
    # pyproj, which places pixels, brings a PROJ of its own; rasterio's is GDAL's
    placing = one_or_all(at(scene.grid, "warp", "projection", "proj") for scene in facts.scenes)
    return found | {"proj": placing or found["proj"], "proj_of_gdal": rasterio.__proj_version__}


def inputs(facts: Facts) -> dict:
    """Source files and stored bands."""
    sources = [source for scene in facts.scenes for source in scene.sources]
    bands = [band for scene in facts.scenes for band in entries(scene.cogs, "bands").values()]
    return {
        "scenes": len(facts.scenes),
        "sensors": counts(scene.sensor for scene in facts.scenes),
        "files": len(sources),
        "mb": rounded(sum_of(source.get("size") for source in sources) / MB),
        "drivers": counts(source.get("driver") for source in sources),
        "dtypes": counts(source.get("dtype") for source in sources),
        "compression": counts(source.get("compression") or "none" for source in sources),
        "bands": counts(role for scene in facts.scenes for role in entries(scene.cogs, "bands")),
        "bands_stored": sum(bool(band.get("written")) for band in bands),
        "bands_indexed_in_place": sum(not band.get("written") for band in bands),
    }


def radiometry(facts: Facts) -> dict:
    """{sensor: {band: [{scale, offset, decided_by, scenes}]}}: which rule turned numbers into physical values."""
    found: dict = defaultdict(lambda: defaultdict(Counter))
    for scene in facts.scenes:
        for role, band in entries(scene.cogs, "bands").items():
            rule = at(band, "radiometry", default={})
            if band.get("kind", "continuous") == "continuous":
                decision = tuple(scalar(at(rule, key)) for key in ("scale", "offset", "decided_by"))
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
    count = {key: int(sum_of(s.get(key) for s in stats)) for key in ("valid", "invalid", "clamped", "infinite")}
    lows = [low for low in (number(s.get("min")) for s in stats) if low is not None]
    highs = [high for high in (number(s.get("max")) for s in stats) if high is not None]
    weighted = [(number(s.get("mean")), number(s.get("valid"))) for s in stats]
    weighted = [(mean, valid) for mean, valid in weighted if mean is not None and valid]
    weight = sum(valid for _, valid in weighted)
    return {
        "files": len(made),
        "mb": rounded(sum_of(entry.get("size") for entry in made) / MB),
        "valid_pixels": count["valid"],
        "invalid_pixels": count["invalid"],
        "clamped_pixels": count["clamped"],
        "infinite_pixels": count["infinite"],
        "min": rounded(min(lows, default=None)),
        "mean": rounded(sum(mean * valid for mean, valid in weighted) / weight if weight else None),
        "max": rounded(max(highs, default=None)),
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
        "devices": counts(attempt.get("device") for attempt in facts.makers),
        "readers": counts(attempt.get("reader") for attempt in facts.makers),
        "codecs": counts(attempt.get("codec") for attempt in facts.makers),
        "windows": counts(map(window, facts.makers)),
        "threads": counts(attempt.get("threads") for attempt in facts.makers),
        "settings": facts.run,
    }


def outputs(facts: Facts) -> dict:
    """What came out and how fast: rates are totals of the attempts that made the pixels over their seconds."""
    campaign, attempts = facts.campaign, facts.attempts
    stages = list(dict.fromkeys(stage for attempt in attempts for stage in entries(attempt).get("seconds", {})))
    seconds = {stage: sum_of(at(attempt, "seconds", stage) for attempt in attempts) for stage in stages}
    wall = seconds.pop("total", 0.0)
    amount = {
        key: sum_of(at(attempt, "bytes", key) for attempt in attempts) / MB
        for key in ("pixels_in", "pixels_out", "read", "written")
    }
    tiles = int(sum_of(attempt.get("tiles") for attempt in attempts))
    ingest = [scene.cogs for scene in facts.scenes if scene.cogs]
    peaks = [peak for peak in (number(attempt.get("peak_memory_mb")) for attempt in attempts) if peak is not None]

    def rate(total):
        return rounded(total / wall) if wall > 0 else None

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
        "wall_seconds": rounded(wall),
        "wall_seconds_by_stage": {stage: rounded(total) for stage, total in seconds.items()},
        "to_cog_seconds": rounded(sum_of(at(record, "seconds", "total") for record in ingest)),
        "tiles": tiles,
        "tiles_per_second": rate(tiles),
        "mb": {key: rounded(total) for key, total in amount.items()},
        "mb_per_second": {
            "pixels": rate(amount["pixels_in"] + amount["pixels_out"]),
            "files": rate(amount["read"] + amount["written"]),
        },
        "peak_memory_mb": max(peaks, default=None),
    }


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
    doubts = [str(note) for scene in facts.scenes for note in listed(scene.cogs, "notes")]
    if len(doubts) > MOST_DOUBTS:
        doubts[MOST_DOUBTS:] = [f"... and {len(doubts) - MOST_DOUBTS} more notes of this kind in the cogs records"]
    return found + doubts + facts.notes
