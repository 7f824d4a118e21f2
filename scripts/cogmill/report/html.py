"""report.html: the campaign on one page that needs no network. Every text of a record is escaped."""

import os
from html import escape
from pathlib import Path
from urllib.parse import quote

from cogmill.report.facts import Facts, SceneFacts, number
from cogmill.verdict import percent

NAMED = 20  # skipped scenes that are named for each reason; the table lists all
ROWS = 2000  # done scenes that the table lists; all others are always listed
ADVICE = {
    "aliasing": "Resample by average, min, max, median or mode, ask for a finer `grid.resolution`, or set "
    "`warp.allow_aliasing`.",
    "band_missing": "Bring the band, or leave the product or the mask that needs it out of the config.",
    "check_failed": "A file did not read back as it was written: look at the disk, then `cogmill retry`.",
    "cog_missing": "A stored band was removed. Run `cogmill forget` with the scene's id, then the same command again.",
    "crashed": "The process died on this scene. Look into the batch's log; with more memory or another version of the "
    "input, run `cogmill forget` with the scene's id, then the same command again.",
    "damaged_index": "The file's header is damaged. Fetch it again; the next run sees the new file.",
    "damaged_tile": "The file is damaged or was cut off on its way. Fetch it again; the next run sees the new file.",
    "datum_shift": "Install the grid files that the message names (`projsync`), or set `warp.allow_ballpark` where "
    "metres do not matter.",
    "extent": "Correct `grid.extent` and `grid.resolution` in the config: both are in units of `grid.crs`.",
    "forbidden": "The server refuses access: give the job credentials, then `cogmill retry`.",
    "georeferencing": "Give the file a CRS and a transform; control points and RPCs need `warp.engine: gdal`.",
    "grid_mismatch": "Give all bands that products use on one grid, ask for a common one (`grid.resolution`), or list "
    "the scene twice in the sheet.",
    "header": "GeoTIFF cannot hold this metadata or CRS: give the input a CRS that GeoTIFF knows.",
    "header_lost": "GeoTIFF does not keep this metadata or CRS: give the input a CRS that GeoTIFF knows.",
    "io_error": "Reading or writing failed: look at the disk or the network, then `cogmill retry`.",
    "like": "Name a raster with CRS and transform in `grid.like`.",
    "mask_rule": "Correct the classes or bits of that band under `masks` in the config.",
    "network": "The network failed: run `cogmill retry`, then the same command again.",
    "no_operation": "PROJ knows no way from the scene's CRS to the target's: set another `grid.crs`.",
    "not_found": "Correct the path in the sheet, or bring the file; the next run sees it.",
    "out_of_memory": "Give the job more memory, or set memory.window_mb lower, then `cogmill retry`.",
    "radiometry_conflict": "Say in the sheet's columns `scale` and `offset` which one holds.",
    "radiometry_unclear": "Give the scene's `scale` and `offset` in the sheet.",
    "self_check": "Two computations of the same pixels differ. Please report it, with the scene's record.json; "
    "the product is kept as `.suspect.tif`.",
    "unwritable": "Something stands where a file must be written, or may not be written: see the path in the message.",
    "unreadable": "GDAL cannot read the file. Fetch it again or correct the sheet; the next run sees the new file.",
}
DEFAULT_ADVICE = "Read the message, mend the file, the sheet or the config, and run the same command again."
MARKS = {"done": "✓", "skipped": "–", "failed": "✕", "missing": "?"}

CSS = """
:root { color-scheme: light dark; --page: #f6f7f5; --card: #ffffff; --ink: #1c2321; --soft: #5c6763; --line: #dfe4e1;
  --accent: #0b6e5f; --good: #1a7f4e; --good-bg: #e3f4ea; --bad: #b3261e; --bad-bg: #fbe9e7; --warn: #8a5a00;
  --warn-bg: #fdf1d8; --code: #eef1ef; --check: #e9ecea; }
@media (prefers-color-scheme: dark) { :root { --page: #121615; --card: #1a201e; --ink: #e6ebe8; --soft: #9aa7a2;
  --line: #2c3532; --accent: #5ec4b0; --good: #6fd39b; --good-bg: #16301f; --bad: #ff8a80; --bad-bg: #3a1a18;
  --warn: #f0c060; --warn-bg: #352a12; --code: #242c29; --check: #222927; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 2px; letter-spacing: -.01em; } h2 { font-size: 19px; margin: 44px 0 12px; }
h3 { font-size: 16px; margin: 0 0 2px; } p { margin: 4px 0; } a { color: var(--accent); }
.soft { color: var(--soft); } .small { font-size: 13px; }
code { background: var(--code); border-radius: 4px; padding: 1px 5px; font: 13px/1.5 ui-monospace, "SF Mono", Menlo,
  Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px; }
.verdict { display: flex; gap: 14px; align-items: center; margin: 20px 0; border-width: 0 0 0 6px; font-size: 17px; }
.verdict b { font-size: 20px; } .verdict .mark { font-size: 26px; line-height: 1; }
.good { background: var(--good-bg); border-color: var(--good); } .good .mark, .state.done { color: var(--good); }
.bad { background: var(--bad-bg); border-color: var(--bad); }
.bad .mark, .state.failed, .state.missing { color: var(--bad); } .state.skipped { color: var(--warn); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.figures .card { padding: 12px 16px; } .figures b { display: block; font-size: 22px; font-weight: 600; }
.failure { border-left: 4px solid var(--bad); margin-bottom: 12px; overflow-wrap: anywhere; }
.skip { border-left: 4px solid var(--warn); margin-bottom: 12px; overflow-wrap: anywhere; }
.failure p { white-space: pre-wrap; } .failure .do { color: var(--soft); }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); gap: 14px; margin-top: 14px; }
figure { margin: 0; } figure img { width: 100%; display: block; border-radius: 8px; border: 1px solid var(--line);
  background: repeating-conic-gradient(var(--check) 0 25%, var(--card) 0 50%) 0 0 / 16px 16px; }
figcaption { font-size: 13px; color: var(--soft); padding-top: 5px; overflow-wrap: anywhere; }
.product { margin-bottom: 20px; }
.head { display: flex; flex-wrap: wrap; gap: 8px 28px; justify-content: space-between; }
.legend { width: 230px; font-size: 12px; color: var(--soft); } .legend i { display: block; height: 12px;
  border-radius: 4px; margin-bottom: 2px; } .legend span { display: flex; justify-content: space-between; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 12.5px; } th, td { padding: 7px 12px 7px 0;
  border-bottom: 1px solid var(--line); vertical-align: top; } tr:last-child td { border-bottom: 0; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.text { overflow-wrap: anywhere; }
td.id, td.links { white-space: nowrap; } .state { font-weight: 600; white-space: nowrap; }
dl { display: grid; grid-template-columns: minmax(120px, max-content) 1fr; gap: 6px 20px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; } ul { padding-left: 18px; margin: 0; }
.cite { margin: 12px 0 14px; overflow-wrap: anywhere; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 14px; }
"""


def text(value) -> str:
    """Any value of a record as escaped text."""
    return escape(str(value), quote=True)


def quantity(value, unit: str = "", digits: int = 4) -> str:
    """A number to `digits` significant digits with its unit; a dash for none."""
    found = number(value)
    if found is None:
        return "–"
    shown = f"{found:,.0f}" if abs(found) >= 10 ** (digits - 1) else f"{found:.{digits}g}"
    return f"{shown} {unit}".strip()


def link(path: Path, folder: Path) -> str:
    """Relative URL of a file, as seen from the report's folder."""
    return text(quote(os.path.relpath(path, folder)))


def page(facts: Facts, doc: dict, styles: dict, pictures: dict, home: Path, folder: Path, methods: Path) -> str:
    """The whole page.

    Parameters
    ----------
    facts : Facts
    doc : dict
        The document of methods.yaml; the page shows its numbers, so that the two cannot differ.
    styles : dict
        {product: Style}.
    pictures : dict
        {(scene, product): path of the picture}.
    home, folder, methods : Path
        Folder of the products, of the report, and the file methods.yaml.
    """
    sections = [
        verdict(facts),
        figures(doc),
        failures(facts),
        skipped(facts),
        products(facts, doc, styles, pictures, home, folder),
        scene_table(facts, home, folder),
        methods_summary(facts, doc, link(methods, folder)),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>cogmill: {text(facts.campaign.counts())}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


def verdict(facts: Facts) -> str:
    """The heading: whether the campaign is good, and why not."""
    why_not, counts = facts.complaint, facts.campaign.counts()
    allowed = f"at most {percent(facts.max_failed_fraction)} may fail (max_failed_fraction)"
    fine = "The campaign is fine" + (", though not every scene" if facts.campaign.failed else "")
    kind, mark, word = ("bad", "✕", "The campaign failed") if why_not else ("good", "✓", fine)
    detail = f"{why_not}." if why_not else f"{counts}; {allowed}."
    return (
        '<h1>Campaign report</h1><p class="soft">Analysis-ready Cloud Optimized GeoTIFFs by cogmill</p>'
        f'<div class="card verdict {kind}"><span class="mark" aria-hidden="true">{mark}</span>'
        f"<div><b>{word}</b><br>{text(detail)}</div></div>"
    )


def figures(doc: dict) -> str:
    """The campaign's main numbers."""
    out = doc["outputs"]
    shown = (
        (f"{out['scenes']['done']} / {out['scenes']['total']}", "scenes done"),
        (quantity(out["tiles"]), "tiles written"),
        (quantity(out["wall_seconds"], "s", 3), "computing"),
        (quantity(out["tiles_per_second"], "", 3), "tiles per second"),
        (quantity(out["mb_per_second"]["pixels"], "MB/s", 3), "of pixels"),
        (quantity(out["peak_memory_mb"], "MB", 3), "peak memory"),
    )
    cards = (
        f'<div class="card"><b>{text(value)}</b><span class="soft small">{name}</span></div>' for value, name in shown
    )
    return f'<div class="figures">{"".join(cards)}</div>'


def failures(facts: Facts) -> str:
    """Every scene that failed or is in no ledger: reason, message, what to do."""
    bad = [scene for scene in facts.scenes if scene.state in ("failed", "missing")]
    if not bad:
        return ""
    cards = []
    for scene in bad:
        if scene.state == "missing":
            reason, message = "in no ledger", "Its batch has not been computed, or its ledger cannot be read."
            advice = "Run the same command again."
        else:
            reason, message = scene.reason or "no reason given", scene.message or "no message"
            advice = ADVICE.get(str(scene.reason), DEFAULT_ADVICE)
        cards.append(
            f'<div class="card failure"><h3>{text(scene.scene)} <code>{text(reason)}</code></h3>'
            f'<p>{text(message)}</p><p class="do">What to do: {_code(advice)}</p></div>'
        )
    return f"<h2>Failed scenes</h2>{''.join(cards)}"


def skipped(facts: Facts) -> str:
    """Scenes that have nothing to make, by reason: how many, which, and what the first of them says."""
    reasons: dict[str, list[SceneFacts]] = {}
    for scene in facts.scenes:
        if scene.state == "skipped":
            reasons.setdefault(str(scene.reason or "no reason given"), []).append(scene)
    cards = []
    for reason, scenes in reasons.items():
        names = ", ".join(scene.scene for scene in scenes[:NAMED])
        more = f" and {len(scenes) - NAMED:,} more" if len(scenes) > NAMED else ""
        cards.append(
            f'<div class="card skip"><h3>{len(scenes):,} × <code>{text(reason)}</code></h3>'
            f'<p>{text(scenes[0].message or "no message")}</p><p class="soft small">{text(names + more)}</p></div>'
        )
    return f"<h2>Skipped scenes</h2>{''.join(cards)}" if cards else ""


def _code(advice: str) -> str:
    """Escaped text in which `words` are set as code."""
    parts = text(advice).split("`")
    return "".join(f"<code>{part}</code>" if k % 2 else part for k, part in enumerate(parts))


def products(facts: Facts, doc: dict, styles: dict, pictures: dict, home: Path, folder: Path) -> str:
    """Each product: formula, statistics, legend, quicklooks."""
    cards = []
    for name, product in doc["products"].items():
        gallery = [
            _figure(scene, name, pictures[scene.scene, name], home, folder)
            for scene in facts.scenes
            if (scene.scene, name) in pictures
        ]
        storage = [str(product["dtype"] or "")]
        if product["scale"] not in (None, 1, 1.0) or product["offset"] not in (None, 0, 0.0):
            storage.append(f"scale {product['scale']}, offset {product['offset']}")
        if product["nodata"] is not None:
            storage.append(f"nodata {product['nodata']}")
        cards.append(
            f'<div class="card product"><div class="head"><div><h3>{text(name)}</h3>'
            f"<p>{text(product['description'] or '')}</p>"
            f'<p class="small"><code>{text(product["formula"] or "formula not given")}</code> '
            f'<span class="soft">{text(", ".join(filter(None, storage)))}</span></p></div>{_legend(styles[name])}</div>'
            f"{_statistics(product['result'])}"
            + (f'<div class="gallery">{"".join(gallery)}</div>' if gallery else "")
            + "</div>"
        )
    return f"<h2>Products</h2>{''.join(cards)}" if cards else ""


def _figure(scene: SceneFacts, name: str, picture: Path, home: Path, folder: Path) -> str:
    source = link(picture, folder)
    product = link(home / scene.scene / str(scene.products[name].get("file")), folder)
    return (
        f'<figure><a href="{source}"><img src="{source}" loading="lazy" alt="{text(f"{name} of {scene.scene}")}"></a>'
        f'<figcaption>{text(scene.scene)} · <a href="{product}">COG</a></figcaption></figure>'
    )


def _legend(style) -> str:
    if style.classes:
        return ""
    middle = (style.low + style.high) / 2
    return (
        f'<div class="legend"><i style="background: {style.css()}"></i>'
        f"<span><b>{style.low:.4g}</b><b>{middle:.4g}</b><b>{style.high:.4g}</b></span>"
        "<span>checked pattern: no valid pixel</span></div>"
    )


def _statistics(result: dict) -> str:
    pixels = result["valid_pixels"] + result["invalid_pixels"]
    columns = (
        ("files", quantity(result["files"])),
        ("size", quantity(result["mb"], "MB")),
        ("valid pixels", f"{percent(result['valid_pixels'] / pixels)}" if pixels else "–"),
        ("minimum", quantity(result["min"])),
        ("mean", quantity(result["mean"])),
        ("maximum", quantity(result["max"])),
        ("clamped", quantity(result["clamped_pixels"])),
        ("not finite", quantity(result["infinite_pixels"])),
    )
    head = "".join(f'<th class="number">{name}</th>' for name, _ in columns)
    row = "".join(f'<td class="number">{text(value)}</td>' for _, value in columns)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody><tr>{row}</tr></tbody></table></div>'


def scene_table(facts: Facts, home: Path, folder: Path) -> str:
    """Every scene: state, sensor, products, valid pixels, seconds, reason and message. The troubled ones come first."""
    troubled = [scene for scene in facts.scenes if scene.state != "done"]
    done = [scene for scene in facts.scenes if scene.state == "done"]
    rows = "".join(_row(scene, home, folder) for scene in [*troubled, *done[:ROWS]])
    more = len(done) - ROWS
    note = f'<p class="soft">{more:,} more done scenes are in the ledgers.</p>' if more > 0 else ""
    return (
        '<h2>Scenes</h2><div class="card scroll"><table><thead><tr><th>state</th><th>scene</th><th>sensor</th>'
        '<th>products</th><th class="number">valid</th><th class="number">seconds</th><th>reason</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def _row(scene: SceneFacts, home: Path, folder: Path) -> str:
    links = " ".join(
        f'<a href="{link(home / scene.scene / str(entry.get("file")), folder)}">{text(name)}</a>'
        for name, entry in scene.products.items()
    )
    counts = [entry.get("stats") if isinstance(entry.get("stats"), dict) else {} for entry in scene.products.values()]
    valid = sum(number(stats.get("valid")) or 0 for stats in counts)
    pixels = valid + sum(number(stats.get("invalid")) or 0 for stats in counts)
    why = " ".join(
        part
        for part in (
            f"<code>{text(scene.reason)}</code>" if scene.reason else "",
            text(scene.message) if scene.message else "",
        )
        if part
    )
    return (
        f'<tr><td class="state {scene.state}">{MARKS[scene.state]} {scene.state}</td>'
        f'<td class="id">{text(scene.scene)}</td><td>{text(scene.sensor)}</td><td class="links">{links}</td>'
        f'<td class="number">{percent(valid / pixels) if pixels else "–"}</td>'
        f'<td class="number">{quantity(scene.seconds, "", 3)}</td>'
        f'<td class="text">{why}</td></tr>'
    )


def methods_summary(facts: Facts, doc: dict, href: str) -> str:
    """Machines, software, inputs, run and notes in short; the whole is in methods.yaml."""
    machines = [
        f"{machine['cpu'] or 'CPU not recorded'}"
        + (f", {machine['cores']} cores" if machine["cores"] else "")
        + (f", {quantity(machine['memory_mb'], 'MB')}" if machine["memory_mb"] else "")
        + (f", {machine['gpu']}" if machine["gpu"] else "")
        for machine in doc["hardware"]
    ]
    run, found = doc["run"], doc["inputs"]
    masks = [
        f"{role}: " + "; ".join(f"{kind} {', '.join(map(str, values))}" for kind, values in rule.items() if values)
        for role, rule in doc["masks"].items()
        if isinstance(rule, dict) and all(isinstance(values, list | tuple) for values in rule.values())
    ]
    left = {
        "Machine": machines or ["not recorded"],
        "Software": [", ".join(f"{name} {_joined(value)}" for name, value in doc["software"].items() if value)],
        "Device": [_listed(run["devices"])],
        "Reader, codec": [f"{_listed(run['readers'])}; {_listed(run['codecs'])}"],
        "Windows": [_listed(run["windows"])],
        "Batches": [quantity(run["batches"])],
        "Resampling": _resampling(doc["resampling"]),
        "Self-check": _self_check(doc["self_check"]),
    }
    right = {
        "Files": [f"{quantity(found['files'])} ({quantity(found['mb'], 'MB')}): {_listed(found['drivers'])}"],
        "Sensors": [_listed(found["sensors"])],
        "Grid": [line for entry in doc["grid"] for line in _grid(entry)],
        "Radiometry": _radiometry(doc["radiometry"]),
        "Masks": masks,
    }
    notes = "".join(f"<li>{text(note)}</li>" for note in doc["notes"])
    return (
        '<h2>Methods</h2><p class="soft">In short; the whole, to cite and to parse: '
        f'<a href="{href}">methods.yaml</a>.</p><div class="card cite"><p>{text(doc["text"])}</p></div>'
        f'<div class="columns"><div class="card">{_definitions(left)}</div>'
        f'<div class="card">{_definitions(right)}</div></div><h2>Notes</h2><div class="card"><ul>{notes}</ul></div>'
    )


def _grid(entry: dict) -> list[str]:
    """One entry of the grid section: what, and for resampled scenes how their pixels were placed."""
    size = f"{' × '.join(f'{side:g}' for side in entry['pixel_size'] or ()) or '–'} {entry['unit'] or ''}".strip()
    lines = [f"{entry['crs']}, pixel {size} ({entry['operation']}, {entry['scenes']} scenes)"]
    if entry["operation"] == "identity":
        return lines
    extent = entry["extent"]
    box = extent if isinstance(extent, str) else ", ".join(f"{side:.10g}" for side in extent)
    ratio = " to ".join(f"{value:g}" for value in dict.fromkeys(entry["source_pixels_a_target_pixel"] or ()))
    lines.append(
        f"from {_joined(entry['source_crs'])}; extent {box}{', aligned' if entry['aligned'] else ''}; "
        f"{ratio or '–'} source pixels a target pixel"
    )
    nodes, way = entry.get("control_grid"), entry["projection"]
    if nodes:
        lines.append(
            f"control grid: step {_listed(nodes['steps'])}, error up to {quantity(nodes['largest_error_px'])} px of "
            f"{quantity(nodes['allowed_error_px'])} px allowed, {nodes['exact_cells']:,} cells exact"
        )
    if isinstance(way, dict):
        accuracy = number(way["accuracy_m"])
        lines.append(
            f"PROJ {way['proj']}: {way['name']}, accuracy {'unknown' if accuracy is None else f'{accuracy:g} m'}"
            + (", ballpark" if way["ballpark"] is True else "")
            + (f", missing grids {way['missing_grids']}" if way["missing_grids"] else "")
        )
    return lines


def _resampling(found: dict) -> list[str]:
    if not found["scenes"]:
        return ["none: every scene stayed on its own grid"]
    lines = [f"{found['order'] or 'order not recorded'}, {found['scenes']} scenes"]
    for name, method in found["methods"].items():
        bands = method.items() if isinstance(method, dict) else [("", method or "not recorded")]
        lines.append(f"{name}: " + ", ".join(f"{band} {one}".strip() for band, one in bands))
    if found["aliased_scenes"]:
        lines.append(f"aliasing allowed, and there in {found['aliased_scenes']} scenes")
    return lines


def _self_check(found: dict) -> list[str]:
    if not found["tiles"]:
        return ["none recorded"]
    lines = [f"{found['passed']:,} of {found['tiles']:,} tiles passed, {found['pixels']:,} pixels"]
    if found["failed"]:
        lines.append(f"failed: {', '.join(found['failed'])}")
    for name, part in found["products"].items():
        lines.append(
            f"{name}: {part['compared']:,} compared, differences up to {quantity(part['largest_difference'])}, median "
            f"{quantity(part['median_of_median_differences'])}; validity differs in {part['differing_validity']:,}; "
            f"{part['excused']:,} excused (at a pixel's edge or a pole of the formula)"
        )
    return lines


def _radiometry(found: dict) -> list[str]:
    """One line for each sensor and rule, naming the bands that it holds for."""
    bands: dict[tuple, list[str]] = {}
    for sensor, roles in found.items():
        for role, rules in roles.items():
            for rule in rules:
                decision = f"× {rule['scale']} {_signed(rule['offset'])}, decided by {rule['decided_by']}"
                bands.setdefault((sensor, decision), []).append(role)
    return [f"{sensor} {', '.join(roles)}: {decision}" for (sensor, decision), roles in bands.items()]


def _definitions(found: dict) -> str:
    pairs = (
        f"<dt>{name}</dt><dd>{'<br>'.join(text(value) for value in values)}</dd>"
        for name, values in found.items()
        if any(values)
    )
    return f"<dl>{''.join(pairs)}</dl>"


def _listed(counts: dict) -> str:
    """`tiles (4), rasterio (1)`; a dash for nothing."""
    return ", ".join(f"{name} ({count})" for name, count in counts.items()) or "–"


def _joined(value) -> str:
    return " and ".join(value) if isinstance(value, list) else str(value)


def _signed(value) -> str:
    found = number(value)
    return f"offset {value}" if found is None else f"{'−' if found < 0 else '+'} {abs(found):g}"
