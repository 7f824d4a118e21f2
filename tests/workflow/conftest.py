"""The campaign that the tests of whole runs begin with; each takes a copy."""

import pytest
from runs import Folder, cut_short, new_campaign, write_masked_scene, write_scene


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Folder:
    """A campaign that ran: two batches, T1 T2 T3 and T4 T5; T3 is damaged, T4 has a mask."""
    folder = tmp_path_factory.mktemp("campaign") / "finished"
    rows = [
        write_scene(folder, "T1", 1, (700, 900)),
        write_scene(folder, "T2", 2),
        write_scene(folder, "T3", 3),
        write_masked_scene(folder, "T4", 4),
        write_scene(folder, "T5", 5),
    ]
    cut_short(folder / "raw" / "T3.tif")
    made = new_campaign(folder, rows, masks={"scl": {"classes": [8]}}, scenes_per_job=3, max_failed_fraction=0.5)
    done = made.run()
    assert done.code == 0, done.text
    return made


@pytest.fixture
def campaign(finished, tmp_path) -> Folder:
    """A copy of the finished campaign, as if it had run here."""
    return finished.copy(tmp_path / "campaign")
