"""The campaign's report: methods.yaml for a paper, report.html for a person, a quicklook of each product."""

import logging
from pathlib import Path

from cogmill.ledger import write_text
from cogmill.report.facts import Facts, collect
from cogmill.report.html import page
from cogmill.report.methods import document, to_yaml
from cogmill.report.quicklooks import READ_ERRORS, choose_style, make_quicklook
from cogmill.verdict import read_lines

log = logging.getLogger("cogmill")

PICTURED = 200  # scenes that get quicklooks: a page of more pictures helps nobody, and each costs a read


def write_report(
    ledgers,
    cogs,
    home,
    html,
    methods,
    grids=(),
    scenes=None,
    max_failed_fraction: float = 0.0,
    spec: dict | None = None,
    run: dict | None = None,
) -> None:
    """Write methods.yaml, report.html and quicklooks/ beside it; odd records become notes, never an error.

    Parameters
    ----------
    ledgers : list of paths
        Ledgers of all batches.
    cogs, grids : list of paths
        Records of the stored and of the placed scenes, each in the folder of its scene.
    home : path
        Folder of all products.
    html, methods : paths
        Files to write, each whole or not at all.
    scenes : list of str, optional
        Scene ids of the sheet; by default those of the ledgers.
    max_failed_fraction : float
        Failed scenes that the config allows, 0 to 1.
    spec : dict, optional
        "products" and "masks" as the config resolved them.
    run : dict, optional
        Settings that change no pixel.
    """
    ledgers, folder = list(ledgers), Path(html).parent
    lines, problems = read_lines(ledgers)
    facts = collect(lines, ledgers, cogs, grids, scenes, max_failed_fraction, spec, run, problems)
    styles, pictures = _quicklooks(facts, Path(home), folder)
    doc = document(facts)
    write_text(methods, to_yaml(doc))
    write_text(html, page(facts, doc, styles, pictures, Path(home), folder, Path(methods)))


def _quicklooks(facts: Facts, home: Path, folder: Path) -> tuple[dict, dict]:
    """{product: style} and {(scene, product): path of its picture}; what has no picture gets a note."""
    styles, pictures = {}, {}
    shown = [scene for scene in facts.scenes if scene.products][:PICTURED]
    for name in facts.product_names:
        files = {s.scene: (home / s.scene / str(s.products[name].get("file"))) for s in shown if name in s.products}
        styles[name] = choose_style(facts.product_spec(name), list(files.values()))
        for scene in shown:
            if name not in scene.products:
                continue
            digest = scene.products[name].get("pixel_digest")
            picture = folder / "quicklooks" / scene.scene / f"{name}.png"
            try:
                make_quicklook(files[scene.scene], picture, styles[name], str(digest or ""))
            except READ_ERRORS as error:
                log.warning("scene %r: no quicklook of %r: %s", scene.scene, name, error)
                facts.notes.append(f"scene {scene.scene!r}: no quicklook of {name!r}: {error}")
                continue
            pictures[scene.scene, name] = picture
    left_out = sum(bool(scene.products) for scene in facts.scenes) - len(shown)
    if left_out:
        facts.notes.append(f"quicklooks are those of the first {PICTURED} done scenes; {left_out} more have none.")
    return styles, pictures
