"""The parent of `compute`: a process without CUDA and without threads that watches the worker and writes the ledger.

A worker that dies or is silent for `stall_s` costs the scene it was on one attempt and the other scenes nothing:
a new worker goes on with the next scene, and the scene in flight is tried once more at the end.
"""

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from hashlib import sha1
from pathlib import Path

from cogmill.device import choose_device
from cogmill.errors import CogmillError, RetryableError, SceneError
from cogmill.folders import exit_on_sigterm
from cogmill.ledger import end_record, ledger_line, read_json, read_ledger, timestamp, write_json, write_ledger
from cogmill.tasks import MAX_DEATHS, Task, load_record

log = logging.getLogger("cogmill")

PR_SET_PDEATHSIG = 1
CHECKED = 2  # tiles a batch that the self-check recomputes


class WorkerBug(RuntimeError):
    """The worker met an error that is no scene's fault; carries its traceback."""


def compute_batch(scenes, cogs, grids, home, params, run, ledger=None, strict=False, threads=1) -> list[dict]:
    """Make the products of a batch of scenes.

    Parameters
    ----------
    scenes : list of str
        Scene ids, in the batch's order.
    cogs, grids : list of paths
        Their `cogs` and `grids` records.
    home : path
        Folder of all products; `{home}/{scene}/record.json` is written.
    params : dict
        "products", "masks" and "warp": what decides the pixels.
    run : dict
        "device", "window", "window_mb", "spool_mb", "zstd_level", "stall_s", "max_attempts",
        "self_check": what does not.
    ledger : path, optional
        Written last, and only with every scene in it.
    strict : bool or path
        Raise SceneError when a scene did not become `done`: any scene (a product asked for by name), or, with the
        path of an earlier ledger, one that this ledger calls done (a repair).
    threads : int
        CPU threads.

    Returns
    -------
    list of dict
        The ledger's lines.

    Raises
    ------
    RetryableError
        A fault that another attempt can mend; no ledger is written.
    WorkerBug
        An error in cogmill itself.
    """
    device = choose_device(run["device"], threads)
    records = {"cogs": _by_scene(cogs), "grids": _by_scene(grids)}
    checked = checked_scenes(scenes) if run["self_check"] else ()
    tasks = [
        Task(
            scene,
            records["cogs"][scene],
            records["grids"][scene],
            str(home),
            params["products"],
            params["masks"],
            params["warp"],
            run,
            check=scene in checked,
        )
        for scene in scenes
    ]
    outcomes = Supervisor(tasks, device, run["stall_s"]).run()
    again = [scene for scene, outcome in outcomes.items() if outcome == "retry"]
    if again:
        raise RetryableError(
            f"{len(again)} of {len(scenes)} scenes met a fault that a retry can mend: {', '.join(again)}"
        )
    lines = [_line(task) for task in tasks]
    if strict:
        wanted = set(scenes) if strict is True else {x["scene"] for x in read_ledger(strict) if x["state"] == "done"}
        for line in lines:
            if line["scene"] in wanted and line["state"] != "done":
                raise SceneError(line["message"], line["reason"])
    if ledger:
        write_ledger(ledger, lines)
    return lines


def checked_scenes(scenes) -> list[str]:
    """Scenes of a batch of which one tile each is recomputed; the same ones whenever the batch runs."""
    return sorted(scenes, key=lambda scene: sha1(scene.encode()).hexdigest())[:CHECKED]


def _by_scene(paths) -> dict:
    """{scene id: record path}; the folder of a record is named after its scene."""
    return {Path(path).parent.name: str(path) for path in ([paths] if isinstance(paths, str) else paths)}


def _line(task) -> dict:
    sensor = None
    with contextlib.suppress(ValueError):  # a damaged record has failed its scene already
        sensor = read_json(task.cogs).get("sensor")
    return ledger_line(read_json(task.record), sensor, task.products)


class Supervisor:
    """Runs tasks in worker processes, one at a time, until each has an outcome."""

    def __init__(self, tasks, device, stall_s: float):
        self.tasks = {task.scene: task for task in tasks}
        self.device = device
        self.stall_s = stall_s
        self.outcomes: dict[str, str] = {}
        # fork, not spawn: this process has no threads and no CUDA, and a spawned one would run the rule's script again
        self.context = multiprocessing.get_context("fork")

    def run(self) -> dict[str, str]:
        """{scene: done | kept | skipped | failed | retry}."""
        queue = list(self.tasks)
        with exit_on_sigterm():
            while queue:
                victim, how, seconds = self._run_worker(queue)
                queue = [scene for scene in queue if scene not in self.outcomes]
                if victim is None or victim in self.outcomes:  # it died, if at all, between two scenes
                    continue
                # the end of the queue: the other scenes come first, the victim's second try may end as the first did
                queue.remove(victim)
                if self._note_death(self.tasks[victim], how, seconds):
                    queue.append(victim)
                else:
                    self.outcomes[victim] = "failed"
        return self.outcomes

    def _run_worker(self, queue) -> tuple[str | None, str, float]:
        """Let one worker go through `queue`; (scene in flight, how it ended, seconds on it) where it died."""
        here, there = self.context.Pipe(duplex=False)
        worker = self.context.Process(
            target=_work,
            args=([self.tasks[scene] for scene in queue], self.device, there, os.getpid()),
            daemon=True,
        )
        sys.stdout.flush()
        sys.stderr.flush()
        worker.start()
        there.close()
        scene, started = queue[0], time.monotonic()
        try:
            while True:
                if not here.poll(self.stall_s):
                    return scene, f"was silent for {self.stall_s} s", time.monotonic() - started
                try:
                    kind, name, value = here.recv()
                except (EOFError, OSError):
                    worker.join()
                    return scene, _death(worker.exitcode), time.monotonic() - started
                if kind == "start":
                    scene, started = name, time.monotonic()
                elif kind == "end":
                    self.outcomes[name] = value
                    log.info("scene %r: %s, %d of %d", name, value, len(self.outcomes), len(self.tasks))
                elif kind == "bug":
                    raise WorkerBug(f"scene {name!r}: an error in cogmill itself:\n{value}")
                elif kind == "bye":
                    return None, "", 0.0
        finally:
            _stop(worker)
            here.close()

    def _note_death(self, task, how: str, seconds: float) -> bool:
        """Write the dead worker's attempt into the scene's record; whether the scene is to be tried again."""
        message = f"scene {task.scene!r}: the worker {how} on it"
        log.error(message)
        record = load_record(task.record, task.scene)
        journal = record["journal"]
        if not record["attempts"] or record["attempts"][-1]["outcome"] not in ("running", "stopped"):
            # it died before its attempt was written; one that was silent says itself that it was stopped
            record["attempts"].append({"started": timestamp()})
        record["attempts"][-1] |= {
            "ended": timestamp(),
            "outcome": "crashed",
            "reason": how,
            "device": self.device.kind,
            "device_name": self.device.name,
            "seconds": {"total": round(seconds, 3)},
        }
        journal["died"] += 1
        again = journal["died"] < MAX_DEATHS
        end_record(record, "failed", "crashed", f"{message} ({journal['died']} times)")
        write_json(task.record, record)
        task.running.unlink(missing_ok=True)
        return again


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"died with exit code {code}"


def _stop(worker) -> None:
    """End a worker: SIGTERM lets it remove its temporary files, SIGKILL follows."""
    if worker.is_alive():
        worker.terminate()
        worker.join(5)
    if worker.is_alive():
        worker.kill()
    worker.join()


def _work(tasks, device, pipe, parent: int) -> None:
    """Body of the worker process: run the tasks in order, telling the supervisor of each step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
    _die_with(parent)

    def beat():
        pipe.send(("beat", None, None))

    scene = tasks[0].scene
    try:
        from cogmill.engine import run_scene  # here, so that what goes wrong in it is a bug, not a death of the worker

        with exit_on_sigterm():
            for task in tasks:
                scene = task.scene
                pipe.send(("start", scene, None))
                pipe.send(("end", scene, run_scene(task, device, beat)))
        pipe.send(("bye", None, None))
    except BrokenPipeError:
        os._exit(1)  # the supervisor is gone; nobody waits for more scenes
    except CogmillError as error:
        pipe.send(("bug", scene, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    except Exception:  # whatever it is, the supervisor ends the job with this traceback
        pipe.send(("bug", scene, traceback.format_exc()))


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies: no orphan goes on computing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
