"""The `cogmill` command: the functions of the workflow's rules outside Snakemake, and the upkeep of a campaign."""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

from cogmill import __version__
from cogmill.campaign import Campaign
from cogmill.errors import CogmillError, ConfigError
from cogmill.log import start_log
from cogmill.status import KINDS, forget, is_stored, ledger_path, record_path, scene_state
from cogmill.yamlfiles import Problems, YamlFiles, read_text

DEFAULT_CONFIG = "config/config.yaml"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code is 0, 1 for an error, 2 for a mistake in config, sheet or command line."""
    args = make_parser().parse_args(arguments)
    start_log()
    try:
        return args.run(args, Job(args)) or 0
    except CogmillError as error:
        print(f"cogmill {args.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


class Job:
    """What the command line asks for: a campaign, its results folder, and the paths in it."""

    def __init__(self, args):
        doc, sources = read_config(args.config)
        pathvars = doc.get("pathvars")
        found = pathvars.get("results") if isinstance(pathvars, dict) else None
        self.results = Path(args.results or str(found or "results"))
        self.campaign = Campaign.from_config(doc, sources, args.command == "check", self.has_cogs)

    def has_cogs(self, scene: str, key: str | None) -> bool:
        return is_stored(record_path(self.results, "cogs", scene), key)

    @property
    def home(self) -> str:
        return str(self.results / "products")

    @property
    def ledgers(self) -> list[Path]:
        return [ledger_path(self.results, batch) for batch in self.campaign.batches]

    def records(self, kind: str, scenes) -> list[str]:
        return [str(record_path(self.results, kind, scene)) for scene in scenes]

    def scene(self, scene: str) -> str:
        if scene not in self.campaign.scenes:
            raise ConfigError(f"scene {scene!r} is not in the sheet {self.campaign.config.sheet}")
        return scene

    def batch(self, batch: str) -> list[str]:
        if batch not in self.campaign.batches:
            known = ", ".join(list(self.campaign.batches)[:5])
            raise ConfigError(f"there is no batch {batch!r}: a batch is named after its first scene ({known}, ...)")
        return self.campaign.batches[batch]

    def batch_of(self, scene: str) -> str:
        return next(batch for batch, scenes in self.campaign.batches.items() if scene in scenes)


def read_config(given: list[str]) -> tuple[dict, list[tuple[str, str]]]:
    """The config as Snakemake would merge it: config/config.yaml, if it is there, then each file of `--config`.

    Returns
    -------
    (dict, list of (path, text))
        The merged config and its sources, the one that wins last.

    Raises
    ------
    ConfigError
        With every file that cannot be read.
    """
    paths = list(dict.fromkeys(([DEFAULT_CONFIG] if Path(DEFAULT_CONFIG).exists() else []) + (given or [])))
    if not paths:
        raise ConfigError(f"no {DEFAULT_CONFIG} in {Path.cwd()}: go to the campaign's folder or give --config FILE")
    problems = Problems()
    sources = [(path, read_text(path, problems)) for path in paths]
    problems.stop()
    files = YamlFiles(sources, problems)
    problems.stop()
    doc: dict = {}
    for file in files.files:
        _lay_over(doc, file.plain)
    return doc, sources


def _lay_over(doc: dict, above: dict) -> None:
    """Lay `above` over `doc` key by key, mapping by mapping, as Snakemake does with its config files."""
    for key, value in above.items():
        if isinstance(value, dict):
            below = doc.get(key)
            doc[key] = dict(below) if isinstance(below, dict) else {}
            _lay_over(doc[key], value)
        else:
            doc[key] = value


def _count(things, one: str, many: str | None = None) -> str:
    return f"{len(things)} {one if len(things) == 1 else many or one + 's'}"


def to_cog(args, job: Job) -> None:
    """Store the bands of one scene as COGs."""
    from cogmill.ingest import to_cog

    scene = job.scene(args.scene)
    (record,) = job.records("cogs", [scene])
    to_cog(scene=scene, record=record, threads=args.threads, **job.campaign.ingest_params(scene))


def warp_grid(args, job: Job) -> None:
    """Place one scene on its target grid."""
    from cogmill.warpgrid import make_control_grid

    scene = job.scene(args.scene)
    (cogs,), (grid,) = job.records("cogs", [scene]), job.records("grids", [scene])
    make_control_grid(cogs_record=cogs, params=job.campaign.grid_params(scene), out_record=grid)


def compute(args, job: Job) -> None:
    """Make the products of one batch."""
    from cogmill.supervisor import compute_batch

    scenes = job.batch(args.batch)
    compute_batch(
        scenes=scenes,
        cogs=job.records("cogs", scenes),
        grids=job.records("grids", scenes),
        home=job.home,
        params=job.campaign.compute_params(scenes),
        run=job.campaign.run_params(),
        ledger=ledger_path(job.results, args.batch),
        threads=args.threads,
    )


def report(args, job: Job) -> None:
    """Write the report of the campaign."""
    from cogmill.report import write_report

    campaign, folder = job.campaign, job.results / "report"
    write_report(
        ledgers=job.ledgers,
        cogs=job.records("cogs", campaign.scenes),
        grids=job.records("grids", campaign.scenes),
        home=job.home,
        html=folder / "report.html",
        methods=folder / "methods.yaml",
        scenes=list(campaign.scenes),
        max_failed_fraction=campaign.config.max_failed_fraction,
        spec=campaign.compute_params(list(campaign.scenes)),
        run=campaign.run_params(),
    )


def verdict(args, job: Job) -> None:
    """Judge the campaign."""
    from cogmill.verdict import judge

    judge(
        ledgers=job.ledgers,
        scenes=list(job.campaign.scenes),
        max_failed_fraction=job.campaign.config.max_failed_fraction,
        out=job.results / "report" / "verdict.txt",
    )


def check(args, job: Job) -> None:
    """Check config, sheet and the files that the sheet names."""
    campaign = job.campaign
    print(
        f"{_count(campaign.scenes, 'scene')}, {_count(campaign.products, 'product')} ({', '.join(campaign.products)}), "
        f"{_count(campaign.batches, 'batch', 'batches')}: config and sheet are fine"
    )


def status(args, job: Job) -> None:
    """Say how far the campaign is."""
    states = [scene_state(job.results, scene) for scene in job.campaign.scenes]
    for name, count in Counter(state.state for state in states).most_common():
        print(f"{count:7d}  {name}")
    for state in states:
        if state.state == "failed":
            mark = ", can be retried" if state.retryable else ""
            print(f"{state.scene}: {state.reason} ({state.kind}{mark}): {state.message}")


def retry(args, job: Job) -> None:
    """Remove the records of scenes that failed for a reason that another attempt can mend."""
    states = [scene_state(job.results, scene) for scene in job.campaign.scenes]
    again = [state for state in states if state.state == "failed" and state.retryable]
    for state in again:
        forget(job.results, state.scene, job.batch_of(state.scene), KINDS[KINDS.index(state.kind) :])
        print(f"{state.scene}: {state.reason}: will be tried again")
    print(f"{_count(again, 'scene')} will be tried again by the next run of snakemake")


def forget_scenes(args, job: Job) -> None:
    """Remove all records of scenes, so that the next run makes them again."""
    for scene in [job.scene(scene) for scene in args.scenes]:
        removed = forget(job.results, scene, job.batch_of(scene))
        print(f"{scene}: {_count(removed, 'file')} removed; the next run of snakemake makes it again")


COMMANDS = {
    "to-cog": to_cog,
    "warp-grid": warp_grid,
    "compute": compute,
    "report": report,
    "verdict": verdict,
    "check": check,
    "status": status,
    "retry": retry,
    "forget": forget_scenes,
}


def make_parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    parser = argparse.ArgumentParser(prog="cogmill", description=__doc__)
    parser.add_argument("--version", action="version", version=f"cogmill {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, function in COMMANDS.items():
        command = commands.add_parser(name, help=function.__doc__, description=function.__doc__)
        command.set_defaults(run=function)
        command.add_argument(
            "--config",
            action="append",
            metavar="FILE",
            help=f"config file, laid over {DEFAULT_CONFIG} as Snakemake's --configfile is; may be given more than once",
        )
        command.add_argument(
            "--results", metavar="DIR", help="results folder; by default the config's pathvars, else 'results'"
        )
        if name in ("to-cog", "warp-grid"):
            command.add_argument("--scene", required=True, help="id of the scene in the sheet")
        if name == "compute":
            command.add_argument("--batch", required=True, help="the batch, named after its first scene")
        if name in ("to-cog", "compute"):
            cores = len(os.sched_getaffinity(0))
            command.add_argument("--threads", type=int, default=cores, help="CPU threads (default: all, %(default)s)")
        if name == "forget":
            command.add_argument("scenes", nargs="+", metavar="SCENE", help="id of a scene in the sheet")
    return parser


if __name__ == "__main__":
    sys.exit(main())
