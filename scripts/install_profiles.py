"""Link the profiles into the user's Snakemake folder, so that `snakemake --profile slurm-gpu` finds them anywhere."""

import os
import sys
from pathlib import Path

PROFILES = Path(__file__).resolve().parents[1] / "profiles"


def user_folder() -> Path:
    """Folder in which Snakemake looks for a profile by its bare name."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home, "snakemake")


def install(source: Path, target: Path) -> list[str]:
    """Link each profile of `source` into `target`; returns what is in the way, and links nothing if anything is."""
    links = {target / profile.name: profile for profile in sorted(source.iterdir()) if profile.is_dir()}
    foreign = [
        f"{link} is there already and is not the link to {profile}: move it away, or use --profile {profile}"
        for link, profile in links.items()
        if os.path.lexists(link) and link.resolve() != profile
    ]
    if not foreign:
        target.mkdir(parents=True, exist_ok=True)
        for link, profile in links.items():
            if not link.is_symlink():
                link.symlink_to(profile, target_is_directory=True)
            sys.stdout.write(f"{link} -> {profile}\n")
    return foreign


if __name__ == "__main__":
    sys.exit("\n".join(install(PROFILES, user_folder())) or None)
