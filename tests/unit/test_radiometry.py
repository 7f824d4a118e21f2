"""Which scale and offset apply to a band, and what is never guessed."""

import pytest

from cogmill.errors import SceneError
from cogmill.radiometry import Claims, decide_radiometry

SENTINEL = {"sensor": "sentinel2_l2a", "sensor_scale": 1e-4, "sensor_offset": -0.1}


def decide(kind="continuous", integer=True, **claims):
    return decide_radiometry(Claims("S1", "red", "raw/red.tif", **claims), kind, integer)


def reason_of(**arguments):
    with pytest.raises(SceneError) as caught:
        decide(**arguments)
    assert "S1" in str(caught.value) and "red" in str(caught.value)
    return caught.value.reason, str(caught.value)


def test_sheet_decides_over_tags_and_sensor():
    found = decide(sheet_scale=1e-4, sheet_offset=0.0, tags=(1e-4, -0.1), **SENTINEL)
    assert (found.scale, found.offset, found.decided_by) == (1e-4, 0.0, "sheet")


def test_tags_decide_where_the_sensor_agrees():
    found = decide(tags=(1.00000001e-4, -0.1), **SENTINEL)
    assert (found.scale, found.offset, found.decided_by) == (1.00000001e-4, -0.1, "tags")
    assert "sentinel2_l2a" in found.evidence


def test_tags_decide_where_the_sensor_says_nothing():
    assert decide(tags=(2.75e-5, -0.2)).decided_by == "tags"


def test_sensor_decides_for_integers_without_tags():
    found = decide(**SENTINEL)
    assert (found.scale, found.offset, found.decided_by) == (1e-4, -0.1, "sensor")


def test_raw_numbers_stay_where_nobody_says_otherwise():
    found = decide(sensor="rgbn")
    assert (found.scale, found.offset, found.decided_by) == (1.0, 0.0, "none")
    assert decide(sensor="rgbn", integer=False).decided_by == "none"


@pytest.mark.parametrize("tags", [(1e-4, 0.0), (1.0, -0.1), (2.75e-5, -0.2)])
def test_tags_against_the_sensor_stop_the_scene(tags):
    reason, message = reason_of(tags=tags, **SENTINEL)
    assert reason == "radiometry_conflict"
    assert repr(tags[0]) in message and "0.0001" in message and "'scale'" in message


def test_float_numbers_without_tags_are_not_scaled_by_guess():
    reason, message = reason_of(integer=False, **SENTINEL)
    assert reason == "radiometry_unclear"
    assert "'scale' and 'offset'" in message


def test_float_numbers_with_tags_or_sheet_are_clear():
    assert decide(integer=False, tags=(2.0, 1.0), **SENTINEL).decided_by == "tags"
    assert decide(integer=False, sheet_scale=1.0, sheet_offset=0.0, **SENTINEL).decided_by == "sheet"


@pytest.mark.parametrize("kind", ["classes", "bits", "mask"])
def test_codes_have_no_radiometry(kind):
    found = decide(kind=kind, tags=(1e-4, -0.1), sheet_scale=2.0, **SENTINEL)
    assert (found.scale, found.offset, found.decided_by) == (1.0, 0.0, "none")


def test_half_a_pair_in_the_sheet_is_completed_only_where_nothing_contradicts():
    assert decide(sheet_scale=1e-4).offset == 0.0
    assert decide(sheet_scale=1e-4, tags=(2e-4, 0.0)).scale == 1e-4
    for arguments in (SENTINEL, {"tags": (1e-4, -0.1)}):
        reason, message = reason_of(sheet_scale=1e-4, **arguments)
        assert reason == "radiometry_unclear" and "'offset'" in message
    assert reason_of(sheet_offset=-0.1, **SENTINEL)[0] == "radiometry_unclear"


@pytest.mark.parametrize("tags", [(0.0, 1.0), (float("nan"), 0.0), (1.0, float("inf"))])
def test_tags_that_are_no_numbers_to_calculate_with(tags):
    assert reason_of(tags=tags)[0] == "radiometry_unclear"
