"""Puts the package cogmill on the path, reads the campaign, and holds the functions that rules ask."""

import os
import re
import sys
from pathlib import Path

from snakemake.io import get_flag_value

# A literal list, since a glob finds nothing in a workflow that is read from a repository over the network;
# tests/unit/test_layout.py compares it with the tree.
LIBRARY_FILES = [
    "__init__.py",
    "campaign.py",
    "cli.py",
    "codecs/__init__.py",
    "codecs/cpu.py",
    "cog/__init__.py",
    "cog/files.py",
    "cog/header.py",
    "cog/index.py",
    "cog/layout.py",
    "cog/reader.py",
    "cog/validate.py",
    "cog/writer.py",
    "config.py",
    "controlgrid.py",
    "data/sensors/landsat5_l1.yaml",
    "data/sensors/landsat5_l2.yaml",
    "data/sensors/landsat7_l1.yaml",
    "data/sensors/landsat7_l2.yaml",
    "data/sensors/landsat8_l1.yaml",
    "data/sensors/landsat8_l2.yaml",
    "data/sensors/landsat9_l1.yaml",
    "data/sensors/landsat9_l2.yaml",
    "data/sensors/rgbn.yaml",
    "data/sensors/sentinel2_l2a.yaml",
    "data/sensors/sentinel2_l2a_before_0400.yaml",
    "describe.py",
    "device.py",
    "engine.py",
    "errors.py",
    "folders.py",
    "gdalwarp.py",
    "grids.py",
    "indices.py",
    "ingest.py",
    "kernels/__init__.py",
    "kernels/codegen.py",
    "kernels/coords.py",
    "kernels/cpu.py",
    "kernels/overviews.py",
    "kernels/resample.py",
    "ledger.py",
    "log.py",
    "masks.py",
    "pixels.py",
    "projections.py",
    "radiometry.py",
    "reference.py",
    "report/__init__.py",
    "report/facts.py",
    "report/html.py",
    "report/methods.py",
    "report/placement.py",
    "report/quicklooks.py",
    "resampling.py",
    "scenemaker.py",
    "scenes.py",
    "schema.py",
    "selfcheck.py",
    "sensors.py",
    "sources.py",
    "status.py",
    "store.py",
    "supervisor.py",
    "targets.py",
    "tasks.py",
    "verdict.py",
    "warp.py",
    "warpgrid.py",
    "yamlfiles.py",
]


def library_folder(files):
    """Folder to import cogmill from: the workflow's own scripts/ where they are local.

    The copies that Snakemake makes lie elsewhere in each run of a local workflow, and
    every run would compile its Numba kernels anew.
    """
    origin = Path(get_flag_value(files[0], "sourcecache_entry")).resolve()
    return (origin if origin.is_file() else Path(files[0])).parents[1]


def use_library(folder):
    """Import cogmill from `folder` here and in jobs, whichever version is installed beside Snakemake."""
    sys.path.insert(0, folder)
    before = os.getenv("PYTHONPATH")
    os.environ.update(
        PYTHONPATH=os.pathsep.join([folder, before] if before else [folder])
    )


LIBRARY = [workflow.source_path(f"../../scripts/cogmill/{f}") for f in LIBRARY_FILES]
use_library(str(library_folder(LIBRARY)))

from cogmill.campaign import Campaign
from cogmill.errors import ConfigError
from cogmill.ledger import PHASE_VERSION
from cogmill.status import broken_scenes, file_marks, is_stored

SUBSTITUTED = re.compile(r"[{}<>]")


def config_sources():
    """(path, text) of the config files, the one that wins last, for messages with line and column."""
    if workflow.modifier.skip_configfile:
        return []  # a module whose importer gave the config as a dictionary
    given = list(workflow.overwrite_configfiles or [])
    own = [path for path in workflow.configfiles if path not in given]
    return [(str(path), Path(path).read_text(encoding="utf-8")) for path in own + given]


def has_cogs(scene, key):
    """Whether the COG store has a scene as the config asks for; then its raw files may be gone."""
    # no rule is read yet that could tell the path with the importing workflow's prefix and pathvars
    record = workflow.modifier.path_modifier.modify(
        f"<results>/cogs/{scene}/record.json"
    )
    return is_stored(workflow.pathvars.apply(record), key)


def read_campaign():
    """The validated campaign; every mistake of config and sheet in one message."""
    try:
        # Files are looked at once, by the main process: one that vanishes later fails its scene
        # only. --lint checks no surroundings, neither environment variables nor files.
        looks = workflow.is_main_process and workflow.check_envvars
        return Campaign.from_config(config, config_sources(), looks, has_cogs)
    except ConfigError as error:
        raise WorkflowError(str(error)) from None


if workflow.storage_settings.default_storage_provider:
    raise WorkflowError(
        "cogmill cannot run with a default storage provider: products are not declared "
        "outputs, so nothing would upload them. Leave out --default-storage-provider "
        "and keep results on a shared file system."
    )

CAMPAIGN = read_campaign()
GPUS = 0 if CAMPAIGN.config.compute.device == "cpu" else 1


def source_files(wildcards):
    """Local files of a scene, and its record."""
    if wildcards.scene not in CAMPAIGN.scenes:
        sheet = CAMPAIGN.config.sheet
        raise WorkflowError(f"scene '{wildcards.scene}' is not in the sheet {sheet}")
    (record,) = expand(rules.to_cog.output.record, scene=wildcards.scene)
    stored = os.path.exists(record)
    paths = CAMPAIGN.source_files(wildcards.scene, with_lost=stored, record=record)
    return paths, record


def sources(wildcards):
    """Files of a scene; local(), because the prefix of an importing workflow must not touch them."""
    paths, _ = source_files(wildcards)
    # Snakemake would take parts of such names for wildcards and pathvars; `watched` sees them too
    return [local(path) for path in paths if not SUBSTITUTED.search(path)]


def watched(wildcards):
    """Sizes and times of the files of a scene: Snakemake's own look misses a mended file of an older date."""
    return file_marks(*source_files(wildcards))


def ingest_param(name):
    """Input of to_cog from the sheet line, the sensor and the config."""
    return lambda wildcards: CAMPAIGN.ingest_params(wildcards.scene)[name]


def max_attempts(wildcards, output):
    """Attempts of to_cog. It takes `output`, so Snakemake holds it for derived: no rerun."""
    return CAMPAIGN.config.max_attempts


def spool_mb(wildcards, output):
    """Memory for compressed tiles; derived, as `max_attempts`."""
    return CAMPAIGN.config.memory.spool_mb


def grid_params(wildcards):
    """What decides the grid of a scene."""
    return CAMPAIGN.grid_params(wildcards.scene)


def like_files(wildcards):
    """File of grid.like and what lies beside it, as `sources`."""
    paths = CAMPAIGN.like_files()
    return [local(path) for path in paths if not SUBSTITUTED.search(path)]


def like_marks(wildcards):
    """Sizes and times of the files of grid.like, as `watched`."""
    return file_marks(CAMPAIGN.like_files(), "")


def batch_scenes(wildcards):
    """Scene ids of a batch."""
    return CAMPAIGN.batches[wildcards.batch]


def batch_cogs(wildcards):
    """Records of the stored scenes of a batch."""
    return expand(rules.to_cog.output.record, scene=batch_scenes(wildcards))


def batch_grids(wildcards):
    """Records of the grids of a batch."""
    return expand(rules.warp_grid.output.record, scene=batch_scenes(wildcards))


def batch_params(wildcards):
    """What decides the pixels of a batch."""
    return CAMPAIGN.compute_params(batch_scenes(wildcards))


def product_params(wildcards):
    """What decides the pixels of one product of one scene."""
    return CAMPAIGN.compute_params([wildcards.scene], product=wildcards.product)


def product_home(wildcards, output):
    """Folder of all products; derived, as `max_attempts`."""
    return str(Path(rules.product.output.product).parents[1])


def run_params(wildcards, output):
    """What changes no pixel: window, memory, device; derived, as `max_attempts`."""
    return CAMPAIGN.run_params()


def repair_scenes(wildcards, input):
    """Scenes of a batch to be remade: what its ledger calls done and is not there."""
    return broken_scenes(
        input.ledger, product_home(wildcards, None), batch_scenes(wildcards)
    )


def ledger_path(wildcards, input):
    """Path of the ledger that says which scenes must be done."""
    return str(input.ledger)


def repairs(wildcards):
    """Markers of the batches whose ledger calls a product done that is not there."""
    wanted, home = [], product_home(wildcards, None)
    patterns = [rules.compute.output.ledger, rules.repair.output.marker]
    for batch, scenes in CAMPAIGN.batches.items():
        ledger, marker = expand(patterns, batch=batch)
        if broken_scenes(ledger, home, scenes):
            Path(marker).unlink(missing_ok=True)
            # prefix and pathvars of an importing workflow must not be applied twice
            wanted.append(local(str(marker)))
    return wanted


def compute_threads():
    """All cores of the run, for the CPU kernels."""
    return workflow.resource_settings.cores or 8


def ingest_mb(wildcards, attempt):
    """Memory of to_cog in MB: GDAL's cache and the spool of compressed tiles."""
    return attempt * (1500 + CAMPAIGN.config.memory.spool_mb)


def compute_mb(wildcards, attempt):
    """Memory of compute in MB: kernels, spooled tiles, windows read, computed, encoded."""
    memory = CAMPAIGN.config.memory
    return attempt * (1500 + memory.spool_mb + 4 * memory.window_mb)


def growing(first):
    """A resource that grows with each attempt: minutes of run time, or MB of memory."""
    return lambda wildcards, attempt: first * attempt
