"""Whole runs of the workflow, started as a user does, each in a folder of its own; and what they planned and did."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml
from made import NDVI, ORIGIN, SENSOR, red_nir, write_raster
from rasterio.transform import Affine

ROOT = Path(__file__).resolve().parents[2]
SNAKEFILE = ROOT / "workflow" / "Snakefile"
NOTHING = "Nothing to be done"

MASKED = """\
title: Red, NIR and classes at half the resolution, a file each
bands:
  red: {names: [B04]}
  nir: {names: [B08]}
  scl: {names: [SCL], kind: classes}
"""

# what each rule says of its job, and the sheet's ids in it
MESSAGES = {
    "to_cog": r"Storing the bands of scene (\S+) as ",
    "warp_grid": r"Placing scene (\S+) on ",
    "compute": r"Computing the products of batch (\S+)\.",
    "repair": r"Remaking the missing products of batch (\S+)\.",
    "product": r"Computing product (\S+) of scene (\S+)\.",
    "report": r"Writing the methods report",
    "verdict": r"Judging the campaign",
}


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    text: str

    @property
    def jobs(self) -> set[str]:
        """Jobs that were planned or run, as `rule wildcards`."""
        found = set()
        for rule, pattern in MESSAGES.items():
            for match in re.finditer(rf"^Job \d+: {pattern}", self.text, flags=re.M):
                found.add(" ".join([rule, *match.groups()]))
        return found


@dataclass
class Folder:
    """A campaign's working directory; paths in its config and sheet are relative to it."""

    path: Path
    root: Path = ROOT
    config: dict = field(default_factory=dict)
    rows: list[dict] = field(default_factory=list)

    def save(self, **keys) -> None:
        """Write config and sheet anew, with these keys changed."""
        self.config |= keys
        (self.path / "config.yaml").write_text(yaml.safe_dump(self.config, sort_keys=False), encoding="utf-8")
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        lines = [columns, *([str(row.get(name, "")) for name in columns] for row in self.rows)]
        (self.path / "scenes.csv").write_text("".join(",".join(line) + "\n" for line in lines), encoding="utf-8")

    def copy(self, to: Path) -> "Folder":
        """The same campaign elsewhere, times of change and Snakemake's bookkeeping included."""
        shutil.copytree(self.path, to, symlinks=True)
        return Folder(to, self.root, json.loads(json.dumps(self.config)), [dict(row) for row in self.rows])

    def command(self, *arguments) -> list[str]:
        """The command line of a run with the profile `local`, without its retries."""
        options = ["--profile", self.root / "profiles" / "local", "--cores", "2", "--retries", "0"]
        return snakemake(
            "-s", self.root / "workflow" / "Snakefile", "--directory", self.path,
            "--configfile", self.path / "config.yaml", *options, *arguments,
        )  # fmt: skip

    def run(self, *arguments, **options) -> Done:
        """Run the campaign."""
        return call(self.command(*arguments), **options)

    def plan(self, *arguments) -> set[str]:
        """Jobs that `snakemake -n` shows, `all` left out."""
        done = self.run("-n", *arguments)
        assert done.code == 0, done.text
        if NOTHING in done.text:
            return set()
        total = int(re.search(r"^total\s+(\d+)", done.text, flags=re.M)[1])
        of_all = len(re.findall(r"^(?:local)?rule \w*all:", done.text, flags=re.M))
        assert total == len(done.jobs) + of_all, done.text
        return done.jobs

    def cogmill(self, *arguments) -> Done:
        """Run the command `cogmill` in this folder."""
        return call([sys.executable, "-m", "cogmill.cli", *arguments, "--config", "config.yaml"], cwd=self.path)

    def result(self, *parts: str) -> Path:
        return self.path.joinpath("results", *parts)

    def product(self, scene: str, name: str = "ndvi") -> Path:
        return self.result("products", scene, f"{name}.tif")

    def record(self, kind: str, scene: str) -> dict:
        return json.loads(self.result(kind, scene, "record.json").read_text(encoding="utf-8"))

    def states(self, kind: str = "products") -> dict[str, str]:
        return {path.name: self.record(kind, path.name)["state"] for path in self.result(kind).iterdir()}

    def attempts(self) -> dict[str, int]:
        """{scene: how often its products were tried}."""
        scenes = [path.parent.name for path in self.result("products").glob("*/record.json")]
        return {scene: len(self.record("products", scene)["attempts"]) for scene in scenes}

    def pixels(self) -> dict[str, bytes]:
        """{scene/product: bytes of its file}."""
        return {f"{path.parent.name}/{path.stem}": path.read_bytes() for path in self._products()}

    def stamps(self) -> dict[str, tuple[int, int]]:
        """{scene/product: inode and time of change of its file}."""
        return {
            f"{path.parent.name}/{path.stem}": (path.stat().st_ino, path.stat().st_mtime_ns)
            for path in self._products()
        }

    def changed(self, before: dict[str, tuple[int, int]]) -> set[str]:
        """Products that came, went or were written since `before` (see `stamps`)."""
        now = self.stamps()
        return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}

    def _products(self) -> list[Path]:
        return [path for path in self.result("products").glob("*/*.tif") if not path.name.endswith(".stale.tif")]


def snakemake(*arguments) -> list[str]:
    """A Snakemake command line."""
    return [sys.executable, "-m", "snakemake", *map(str, arguments)]


def environment(**variables) -> dict[str, str]:
    """What a run sees; a profile that the caller has set must not be applied."""
    return {name: value for name, value in os.environ.items() if name != "SNAKEMAKE_PROFILE"} | variables


def call(command: list, cwd="/", env: dict | None = None, **options) -> Done:
    """Run a command to its end."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env or environment(), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=300, check=False, **options,
    )  # fmt: skip
    return Done(done.returncode, done.stdout)


def write_scene(folder: Path, scene: str, number: int, shape=(60, 70)) -> dict:
    """Write a scene of red and NIR in one file; returns its line of the sheet."""
    write_raster(folder / "raw" / f"{scene}.tif", red_nir(shape, seed=number), nodata=0)
    return {"scene": scene, "sensor": "rednir", "path": f"raw/{scene}.tif"}


def write_masked_scene(folder: Path, scene: str, number: int) -> dict:
    """Write a scene of red, NIR and classes in a file each; returns its line of the sheet."""
    red, nir = red_nir((120, 140), seed=number)
    classes = np.random.default_rng(number).integers(0, 12, (60, 70), dtype=np.uint8)
    coarse = Affine(2 * ORIGIN.a, 0, ORIGIN.c, 0, 2 * ORIGIN.e, ORIGIN.f)
    for token, band, transform in (("B04", red, ORIGIN), ("B08", nir, ORIGIN), ("SCL", classes, coarse)):
        write_raster(folder / "raw" / f"{scene}_{token}.tif", [band], transform=transform)
    return {"scene": scene, "sensor": "masked", "path": f"raw/{scene}_{{band}}.tif"}


def new_campaign(folder: Path, rows: list[dict], **keys) -> Folder:
    """Write config, sheet and sensors for scenes that are in `folder`."""
    (folder / "sensors").mkdir(parents=True)
    (folder / "sensors" / "rednir.yaml").write_text(SENSOR, encoding="utf-8")
    (folder / "sensors" / "masked.yaml").write_text(MASKED, encoding="utf-8")
    config = {
        "sheet": "scenes.csv",
        "sensors": "sensors",
        "products": {"ndvi": NDVI, "sum": "nir + red"},
        "compute": {"device": "cpu"},
    }
    made = Folder(folder, config=config | keys, rows=rows)
    made.save()
    return made


def cut_short(path: Path) -> None:
    """Damage a file: its second half is lost."""
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
