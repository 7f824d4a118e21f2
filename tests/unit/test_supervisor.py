"""The supervisor: a worker that dies, hangs or meets a bug costs what it must and no more."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from made import prepare, red_nir, write_raster

from cogmill import engine
from cogmill.cog.writer import CogWriter
from cogmill.ledger import read_json
from cogmill.supervisor import WorkerBug, compute_batch


@pytest.fixture
def made(tmp_path):
    rows = [
        {"scene": f"S{n}", "sensor": "rednir", "path": write_raster(tmp_path / f"S{n}.tif", red_nir((60, 70), n))}
        for n in (1, 2, 3)
    ]
    return prepare(tmp_path, rows)


def states(lines):
    return {line["scene"]: line["state"] for line in lines}


def die_in(monkeypatch, scene, action, only_first=None):
    """Have the worker run `action` once it has begun `scene`; with `only_first` (a path) only the first time."""
    attempt = engine._attempt

    def attempt_or_die(task, *args):
        if task.scene == scene and not (only_first and only_first.exists()):
            if only_first:
                only_first.touch()
            action()
        return attempt(task, *args)

    monkeypatch.setattr(engine, "_attempt", attempt_or_die)


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_costs_one_attempt(made, monkeypatch, tmp_path):
    die_in(monkeypatch, "S2", kill_self, only_first=tmp_path / "died")
    assert set(states(compute_batch(**made.batch())).values()) == {"done"}
    attempts = read_json(made.path("products", "S2"))["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["crashed", "done"]
    assert "SIGKILL" in attempts[0]["reason"]
    assert attempts[0]["seconds"]["total"] >= 0
    assert len(read_json(made.path("products", "S3"))["attempts"]) == 1


def test_a_scene_that_always_kills_is_recorded_as_crashed(made, monkeypatch):
    die_in(monkeypatch, "S2", kill_self)
    assert states(compute_batch(**made.batch())) == {"S1": "done", "S2": "failed", "S3": "done"}
    record = read_json(made.path("products", "S2"))
    assert record["reason"] == "crashed"
    assert len(record["attempts"]) == 2
    # the next run does not let it kill again
    assert states(compute_batch(**made.batch()))["S2"] == "failed"
    assert len(read_json(made.path("products", "S2"))["attempts"]) == 2


def test_a_finished_product_outlives_the_death_on_the_next(made, monkeypatch, tmp_path):
    finish = CogWriter.finish

    def finish_or_die(self, *args):
        if self.path.name == "sum.tif" and self.path.parent.name == "S1" and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            kill_self()
        return finish(self, *args)

    monkeypatch.setattr(CogWriter, "finish", finish_or_die)
    batch = made.batch()
    batch["params"]["products"]["sum"] = batch["params"]["products"]["ndvi"] | {"formula": "nir + red"}
    line = compute_batch(**batch)[0]
    record = read_json(made.path("products", "S1"))
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["crashed", "done"]
    assert [attempt["products"] for attempt in record["attempts"]] == [["ndvi"], ["sum"]]
    assert not list((made.results / "products" / "S1").glob("*.stale.tif"))
    assert len(line["attempts"]) == 2


@pytest.mark.parametrize("last", ["S1", "S3"])
def test_a_death_between_scenes_costs_none(made, monkeypatch, tmp_path, last):
    send = Connection.send

    def send_and_die(self, message):
        send(self, message)
        if message[:2] == ("end", last) and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            kill_self()

    monkeypatch.setattr(Connection, "send", send_and_die)
    assert set(states(compute_batch(**made.batch())).values()) == {"done"}
    assert (tmp_path / "died").exists()
    for scene in ("S1", "S2", "S3"):
        assert len(read_json(made.path("products", scene))["attempts"]) == 1


def test_exit_without_words_is_a_death_too(made, monkeypatch):
    die_in(monkeypatch, "S1", lambda: os._exit(7))
    compute_batch(**made.batch())
    assert "exit code 7" in read_json(made.path("products", "S1"))["message"]


def test_a_silent_worker_is_ended(made, monkeypatch, tmp_path):
    die_in(monkeypatch, "S1", lambda: time.sleep(600), only_first=tmp_path / "slept")
    clock = time.monotonic()
    assert set(states(compute_batch(**made.batch(stall_s=2))).values()) == {"done"}
    assert time.monotonic() - clock < 60
    assert "silent" in read_json(made.path("products", "S1"))["attempts"][0]["reason"]


def test_a_bug_ends_the_job_and_is_no_scenes_fault(made, monkeypatch):
    def bug():
        raise NameError("name 'pixles' is not defined")

    attempt = engine.SceneMaker.make
    monkeypatch.setattr(engine.SceneMaker, "make", lambda *_: bug())
    for _ in range(4):  # more often than a crash would be tolerated
        with pytest.raises(WorkerBug, match="pixles"):
            compute_batch(**made.batch())
    assert not made.batch()["ledger"].exists()
    monkeypatch.setattr(engine.SceneMaker, "make", attempt)
    assert set(states(compute_batch(**made.batch())).values()) == {"done"}


def test_an_engine_that_cannot_be_imported_is_a_bug(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "cogmill.engine", None)
    with pytest.raises(WorkerBug, match=r"cogmill\.engine"):
        compute_batch(**made.batch())
    assert not made.path("products", "S1").exists()


SCRIPT = """
import sys, time
sys.path[:0] = {path!r}
from pathlib import Path
from cogmill import engine
from cogmill.supervisor import compute_batch
attempt = engine._attempt
def slow(*args):
    Path({flag!r}).touch()
    time.sleep(60)
engine._attempt = slow
compute_batch(**{batch!r})
"""


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_ending_the_supervisor_ends_the_worker(made, tmp_path, how, code):
    batch = made.batch()
    batch["ledger"] = str(batch["ledger"])
    flag = tmp_path / "running"
    script = textwrap.dedent(SCRIPT.format(path=sys.path, flag=str(flag), batch=batch))
    process = subprocess.Popen([sys.executable, "-c", script])
    for _ in range(600):
        if flag.exists():
            break
        time.sleep(0.1)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    worker = int(children.stdout.split()[0])
    process.send_signal(how)
    assert process.wait(20) == code
    time.sleep(0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
        # a zombie that init has not reaped yet still answers: look closer
        if "State:\tZ" in Path(f"/proc/{worker}/status").read_text():
            raise ProcessLookupError
    assert not made.batch()["ledger"].exists()


AUDIT = """
import sys
sys.path[:0] = {path!r}
started = []
def hook(event, args):
    if event in ("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.spawn", "pty.spawn"):
        print("STARTED", event, args, flush=True)
sys.addaudithook(hook)
from cogmill.supervisor import compute_batch
compute_batch(**{batch!r})
assert "rasterio.warp" not in sys.modules
print("END")
"""


def test_compute_starts_no_other_program(made):
    batch = made.batch()
    batch["ledger"] = str(batch["ledger"])
    done = subprocess.run(
        [sys.executable, "-c", AUDIT.format(path=sys.path, batch=batch)], capture_output=True, text=True, check=True
    )
    assert "STARTED" not in done.stdout
    assert done.stdout.strip().endswith("END")
