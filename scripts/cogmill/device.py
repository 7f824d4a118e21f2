"""Which device computes: decided once a job, by `compute.device`."""

import platform
from dataclasses import dataclass

from cogmill.errors import ConfigError


@dataclass(frozen=True)
class Device:
    """Where kernels run: `kind` is cpu (gpu is not there yet), `name` the model, `threads` the CPU threads."""

    kind: str
    name: str
    threads: int


def choose_device(setting: str, threads: int) -> Device:
    """Choose the device of a job.

    Parameters
    ----------
    setting : str
        `compute.device`: auto, gpu or cpu. `auto` takes the CPU as long as there are no GPU kernels.
    threads : int
        CPU threads that the job may use.

    Raises
    ------
    ConfigError
        For `gpu`: a run that was asked to use a GPU must not silently run on the CPU.
    """
    if setting == "gpu":
        raise ConfigError(
            "compute.device is 'gpu', but this version of cogmill has no GPU kernels yet: "
            "set compute.device to 'auto' or 'cpu' in the config"
        )
    if setting not in ("auto", "cpu"):
        raise ConfigError(f"compute.device is {setting!r}; wanted auto, gpu or cpu")
    return Device("cpu", cpu_model(), max(1, threads))


def cpu_model() -> str:
    """Model name of this machine's CPU, as the kernel reports it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
