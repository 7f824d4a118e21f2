"""The campaign's verdict: what passes, what fails, and what the message says."""

import json

import pytest

from cogmill.errors import CogmillError
from cogmill.verdict import complaint, judge, read_lines, tally


def write_ledger(path, states: dict) -> str:
    """A ledger with one line a scene; a failed one has a reason and a message."""
    lines = [
        {"scene": scene, "state": state}
        | ({"reason": "unreadable", "message": f"{scene}.tif is cut off"} if state == "failed" else {})
        for scene, state in states.items()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def test_good_campaign_writes_its_verdict(tmp_path):
    ledger = write_ledger(tmp_path / "A.jsonl", {"A": "done", "B": "done"})
    text = judge([ledger], ["A", "B"], 0.0, tmp_path / "verdict.txt")
    assert (tmp_path / "verdict.txt").read_text() == text
    assert "2 scenes: 2 done, 0 skipped, 0 failed" in text


def test_failed_fraction_counts_scenes_of_all_ledgers_and_allows_its_limit(tmp_path):
    ledgers = [
        write_ledger(tmp_path / "A.jsonl", {"A": "done", "B": "failed"}),
        write_ledger(tmp_path / "C.jsonl", {"C": "done", "D": "done"}),
    ]
    text = judge(ledgers, list("ABCD"), 0.25, tmp_path / "verdict.txt")
    assert "B: unreadable: B.tif is cut off" in text
    with pytest.raises(CogmillError, match=r"1 of 4 scenes failed, 25 %; max_failed_fraction allows 24 %"):
        judge(ledgers, list("ABCD"), 0.24, tmp_path / "verdict.txt")


def test_failure_lists_scenes_with_reasons_and_removes_an_old_verdict(tmp_path):
    out = tmp_path / "verdict.txt"
    out.write_text("fine\n")
    ledger = write_ledger(tmp_path / "A.jsonl", {"A": "done", "B": "failed", "C": "failed"})
    with pytest.raises(CogmillError) as error:
        judge([ledger], list("ABC"), 0.0, out)
    assert "B: unreadable: B.tif is cut off" in str(error.value)
    assert "C: unreadable: C.tif is cut off" in str(error.value)
    assert list(tmp_path.iterdir()) == [tmp_path / "A.jsonl"]


@pytest.mark.parametrize("states", [{"A": "failed"}, {"A": "skipped"}])
def test_campaign_that_wrote_nothing_fails_whatever_the_fraction(tmp_path, states):
    ledger = write_ledger(tmp_path / "A.jsonl", states)
    with pytest.raises(CogmillError, match="nothing was written"):
        judge([ledger], ["A"], 1.0, tmp_path / "verdict.txt")


def test_scene_in_no_ledger_fails_the_campaign(tmp_path):
    ledger = write_ledger(tmp_path / "A.jsonl", {"A": "done"})
    with pytest.raises(CogmillError, match="1 of 2 scenes are in no ledger: B"):
        judge([ledger], ["A", "B"], 1.0, tmp_path / "verdict.txt")


def test_scene_that_left_the_sheet_is_not_counted(tmp_path):
    ledger = write_ledger(tmp_path / "A.jsonl", {"A": "done", "OLD": "failed"})
    assert "1 scene: 1 done, 0 skipped, 0 failed" in judge([ledger], ["A"], 0.0, tmp_path / "verdict.txt")


def test_skipped_scenes_are_not_failures(tmp_path):
    ledger = write_ledger(tmp_path / "A.jsonl", {"A": "done", "B": "skipped"})
    assert "1 skipped" in judge([ledger], ["A", "B"], 0.0, tmp_path / "verdict.txt")


def test_unknown_state_counts_as_failed():
    assert len(tally({"A": {"scene": "A", "state": "odd"}}, ["A"]).failed) == 1


def test_damaged_ledger_line_is_named_with_its_number(tmp_path):
    ledger = tmp_path / "A.jsonl"
    ledger.write_text('{"scene": "A", "state": "done"}\n{"scene": "B", "sta\n[1]\n', encoding="utf-8")
    lines, problems = read_lines([ledger, tmp_path / "gone.jsonl"])
    assert list(lines) == ["A"]
    assert "A.jsonl line 2" in problems[0] and "A.jsonl line 3" in problems[1] and "gone.jsonl" in problems[2]
    with pytest.raises(CogmillError, match=r"A\.jsonl line 2"):
        judge([ledger], ["A", "B"], 1.0, tmp_path / "verdict.txt")


def test_message_with_line_separators_of_unicode_stays_one_line(tmp_path):
    ledger = tmp_path / "A.jsonl"
    line = {"scene": "A", "state": "failed", "reason": "unreadable", "message": "one\u2028two\x85three"}
    ledger.write_text(json.dumps(line, ensure_ascii=False) + "\n", encoding="utf-8")
    lines, problems = read_lines([ledger])
    assert lines["A"] == line and not problems


def test_long_list_of_failures_is_cut(tmp_path):
    scenes = [f"S{k:04}" for k in range(200)]
    ledger = write_ledger(tmp_path / "A.jsonl", dict.fromkeys(scenes, "failed"))
    with pytest.raises(CogmillError) as error:
        judge([ledger], scenes, 0.5, tmp_path / "verdict.txt")
    assert "and 150 more" in str(error.value)
    assert len(str(error.value).splitlines()) < 60


def self_check(passed, **wrong) -> dict:
    """A self-check with the numbers of wrong pixels of each product."""
    return {"tile": [0, 0], "passed": passed, "products": {name: {"wrong": count} for name, count in wrong.items()}}


@pytest.mark.parametrize("state", ["done", "failed"])
def test_failed_self_check_fails_the_campaign_whatever_the_fraction(tmp_path, state):
    lines = {scene: {"scene": scene, "state": "done", "self_check": self_check(True, ndvi=0)} for scene in "ABC"}
    lines["B"] |= {"state": state, "self_check": self_check(False, ndvi=0, ndwi=17)}
    ledger = tmp_path / "A.jsonl"
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines.values()), encoding="utf-8")
    with pytest.raises(CogmillError, match=r"computations of the same pixels differ \(self_check\): B: ndwi\. Do not"):
        judge([ledger], list("ABC"), 1.0, tmp_path / "verdict.txt")
    assert not (tmp_path / "verdict.txt").exists()
    assert "B" not in judge([ledger], list("AC"), 1.0, tmp_path / "verdict.txt")


def test_scenes_that_were_not_checked_pass():
    lines = {"A": {"scene": "A", "state": "done", "self_check": None}, "B": {"scene": "B", "state": "done"}}
    assert complaint(tally(lines, "AB"), 0.0) is None


@pytest.mark.parametrize("check", [{}, [], {"passed": "yes"}, {"passed": None, "products": 7}])
def test_damaged_self_check_is_not_taken_for_a_good_one(check):
    found = complaint(tally({"A": {"scene": "A", "state": "done", "self_check": check}}, "A"), 1.0)
    assert "A: no product named" in found
