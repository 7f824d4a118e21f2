"""SIGKILL at any moment: after `--unlock` the same command goes on, and the result is that of an undisturbed run."""

import os
import random
import shutil
import signal
import subprocess
import time

import psutil
import pytest
from runs import Folder, environment, new_campaign, write_scene

SCENES = [f"K{number}" for number in range(1, 6)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Folder:
    """A campaign of one batch whose bands are stored and whose grids are placed."""
    folder = tmp_path_factory.mktemp("kills") / "stored"
    rows = [write_scene(folder, scene, number, (700, 900)) for number, scene in enumerate(SCENES)]
    made = new_campaign(folder, rows, scenes_per_job=10)
    done = made.run("--until", "warp_grid")
    assert done.code == 0, done.text
    return made


@pytest.fixture(scope="module")
def undisturbed(stored, tmp_path_factory) -> Folder:
    """The same, run to its end."""
    made = stored.copy(tmp_path_factory.mktemp("kills") / "undisturbed")
    done = made.run()
    assert done.code == 0, done.text
    return made


class Running:
    """A run in the background, in a process group of its own."""

    def __init__(self, campaign: Folder):
        self.campaign = campaign
        self.log = open(campaign.path / "background.log", "a", encoding="utf-8")  # noqa: SIM115
        self.process = subprocess.Popen(
            campaign.command(), env=environment(), stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.orphans: list[psutil.Process] = []

    def jobs(self, script: str) -> list[psutil.Process]:
        """Processes that run a rule's script, parents first."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [process for process in found if any(part.endswith(script) for part in process.cmdline())]

    def wait_for_done(self, number: int) -> set[str]:
        """Wait until that many scenes are done; returns them."""
        while True:
            assert self.process.poll() is None, self.campaign.path.joinpath("background.log").read_text()
            done = {scene for scene in SCENES if self._state(scene) == "done"}
            if len(done) >= number:
                return done
            time.sleep(0.005)

    def _state(self, scene: str) -> str | None:
        if self.campaign.result("products", scene, "record.json").exists():
            return self.campaign.record("products", scene)["state"]
        return None

    def kill(self, group: bool) -> None:
        """SIGKILL for Snakemake, with all its jobs or alone: then they go on."""
        self.orphans = psutil.Process(self.process.pid).children(recursive=True)
        (os.killpg if group else os.kill)(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()

    def wait_for_orphans(self) -> None:
        psutil.wait_procs(self.orphans, timeout=60)


def leftovers(campaign: Folder) -> list:
    """Temporary files of killed processes."""
    return list(campaign.result("products").glob("*/.*.tmp"))


@pytest.mark.parametrize("group", [True, False], ids=["with its jobs", "alone"])
def test_killing_snakemake_in_the_middle_of_a_batch(stored, undisturbed, tmp_path, group):
    campaign = stored.copy(tmp_path / "campaign")
    running = Running(campaign)
    done = running.wait_for_done(2)
    before = campaign.stamps()
    running.kill(group)
    assert len(done) < len(SCENES)
    assert not campaign.result("ledger", "K1.jsonl").exists()
    locked = campaign.run()
    assert locked.code == 1 and "--unlock" in locked.text
    assert campaign.run("--unlock").code == 0
    again = campaign.run()
    assert again.code == 0 and "compute K1" in again.jobs, again.text
    running.wait_for_orphans()
    assert not campaign.changed(before) & {f"{scene}/{name}" for scene in done for name in ("ndvi", "sum")}
    attempts = campaign.attempts()
    assert {scene: attempts[scene] for scene in done} == dict.fromkeys(done, 1)
    # the scene in flight is tried again, or finished by the job that goes on; no other is tried twice
    assert sorted(attempts.values())[-2:] in ([1, 1], [1, 2])
    assert campaign.pixels() == undisturbed.pixels()
    assert campaign.plan() == set()
    assert leftovers(campaign) == []


def test_killing_the_compute_job_in_the_middle_of_a_batch(stored, undisturbed, tmp_path):
    campaign = stored.copy(tmp_path / "campaign")
    running = Running(campaign)
    done = running.wait_for_done(2)
    supervisor, worker = running.jobs("compute.py")
    supervisor.kill()
    assert running.process.wait(60) == 1
    running.log.close()
    psutil.wait_procs([worker], timeout=20)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    again = campaign.run()
    assert again.code == 0 and again.jobs == {"compute K1", "report", "verdict"}, again.text
    attempts = campaign.attempts()
    assert {scene: attempts[scene] for scene in done} == dict.fromkeys(done, 1)
    assert campaign.pixels() == undisturbed.pixels()
    assert campaign.plan() == set()
    assert leftovers(campaign) == []


def test_killing_at_random_loses_nothing(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    for name in ("results", ".snakemake"):
        shutil.rmtree(campaign.path / name)
    chance = random.Random(1)
    runs = []
    for number in range(5):
        running = Running(campaign)
        runs.append(running)
        time.sleep(chance.uniform(0.8, 4))
        running.kill(group=number % 2 == 0)
        assert campaign.run("--unlock").code == 0
    campaign.run()
    for running in runs:
        running.wait_for_orphans()
    # two kills may have hit one scene at work, which is then taken for one that kills its process
    crashed = [scene for scene in campaign.states() if campaign.record("products", scene)["reason"] == "crashed"]
    if crashed:
        assert campaign.cogmill("forget", *crashed).code == 0
    last = campaign.run()
    assert last.code == 0, last.text
    assert campaign.pixels() == finished.pixels()
    assert campaign.states() == finished.states()
    assert campaign.plan() == set()
