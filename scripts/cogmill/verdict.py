"""The campaign's verdict: whether what the ledgers say is good enough, as `max_failed_fraction` sets it."""

import json
from dataclasses import dataclass
from pathlib import Path

from cogmill.errors import CogmillError
from cogmill.ledger import write_text

LISTED = 50  # scenes that a message names; the report has them all


class CampaignFailed(CogmillError):
    """More scenes failed than the config allows, nothing was written, a self-check failed, or a scene is missing."""

    reason = "campaign_failed"


@dataclass(frozen=True)
class Tally:
    """Ledger lines of a campaign by state, in the sheet's order; `missing` are scenes that no ledger holds."""

    done: tuple[dict, ...]
    skipped: tuple[dict, ...]
    failed: tuple[dict, ...]
    missing: tuple[str, ...]

    @property
    def scenes(self) -> int:
        return len(self.done) + len(self.skipped) + len(self.failed) + len(self.missing)

    @property
    def failed_fraction(self) -> float:
        return len(self.failed) / self.scenes if self.scenes else 0.0

    @property
    def unreliable(self) -> tuple[str, ...]:
        """`scene: products` of each failed self-check; of a damaged one the scene alone."""
        return tuple(
            f"{line['scene']}: {', '.join(_wrong_products(check)) or 'no product named'}"
            for line in (*self.done, *self.skipped, *self.failed)
            if (check := line.get("self_check")) is not None and not _passed(check)
        )

    def counts(self) -> str:
        """Whole counts for a sentence: `5 scenes: 4 done, 0 skipped, 1 failed`."""
        noun = "scene" if self.scenes == 1 else "scenes"
        text = f"{self.scenes} {noun}: {len(self.done)} done, {len(self.skipped)} skipped, {len(self.failed)} failed"
        return text + (f", {len(self.missing)} in no ledger" if self.missing else "")


def _passed(check) -> bool:
    return isinstance(check, dict) and check.get("passed") is True


def _wrong_products(check) -> list[str]:
    products = check.get("products") if isinstance(check, dict) else None
    if not isinstance(products, dict):
        return []
    return [name for name, found in products.items() if not isinstance(found, dict) or found.get("wrong") != 0]


def read_lines(ledgers) -> tuple[dict[str, dict], list[str]]:
    """Lines of all ledgers.

    Parameters
    ----------
    ledgers : list of paths

    Returns
    -------
    lines : dict
        {scene: line}.
    problems : list of str
        One sentence for each ledger, or line of one, that cannot be read.
    """
    lines, problems = {}, []
    for path in ledgers:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"ledger {path} cannot be read: {error}")
            continue
        for number, row in enumerate(text.split("\n"), start=1):
            if not row.strip():
                continue
            try:
                line = json.loads(row)
                lines[str(line["scene"])] = line
            except (ValueError, TypeError, KeyError):
                problems.append(f"ledger {path} line {number} is no record of a scene: delete the ledger and run again")
    return lines, problems


def tally(lines: dict[str, dict], scenes) -> Tally:
    """Sort the scenes of the sheet by state; a state that is no known word counts as failed."""
    known = [lines[scene] for scene in scenes if scene in lines]
    done = tuple(line for line in known if line.get("state") == "done")
    skipped = tuple(line for line in known if line.get("state") == "skipped")
    failed = tuple(line for line in known if line.get("state") not in ("done", "skipped"))
    return Tally(done, skipped, failed, tuple(scene for scene in scenes if scene not in lines))


def complaint(campaign: Tally, max_failed_fraction: float) -> str | None:
    """Why the campaign failed, as one sentence; None when it did not."""
    if campaign.missing:
        named = _listed(campaign.missing, ", ")
        return f"{len(campaign.missing)} of {campaign.scenes} scenes are in no ledger: {named}"
    if campaign.unreliable:
        # whatever share of scenes may fail: where one product is wrong, others may be
        named = _listed(campaign.unreliable, "; ")
        return (
            f"two computations of the same pixels differ (self_check): {named}. Do not use any product of this "
            "campaign before it is known why"
        )
    if not campaign.done:
        return f"nothing was written ({campaign.counts()})"
    if campaign.failed_fraction > max_failed_fraction:
        return (
            f"{len(campaign.failed)} of {campaign.scenes} scenes failed, {percent(campaign.failed_fraction)}; "
            f"max_failed_fraction allows {percent(max_failed_fraction)}"
        )
    return None


def _listed(names: tuple[str, ...], between: str) -> str:
    more = len(names) - LISTED
    return between.join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


def percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"


def failures(campaign: Tally) -> str:
    """One line for each failed scene: id, reason, message."""
    lines = [
        f"  {line['scene']}: {line.get('reason') or 'no reason given'}: {line.get('message') or 'no message'}"
        for line in campaign.failed[:LISTED]
    ]
    if len(campaign.failed) > LISTED:
        lines.append(f"  ... and {len(campaign.failed) - LISTED} more, all in the report")
    return "\n".join(lines)


def judge(ledgers, scenes, max_failed_fraction: float, out) -> str:
    """Judge a campaign and write the verdict.

    Parameters
    ----------
    ledgers : list of paths
        Ledgers of all batches.
    scenes : list of str
        Scene ids of the sheet.
    max_failed_fraction : float
        Failed scenes allowed, 0 to 1, of all scenes of the sheet.
    out : path
        Text file to write; it exists afterwards only when the campaign is good.

    Returns
    -------
    str
        The text written.

    Raises
    ------
    CampaignFailed
        Nothing was written, more than `max_failed_fraction` failed, any self-check failed, or a scene is in no ledger.
        The message lists the failed scenes with their reasons.
    """
    Path(out).unlink(missing_ok=True)
    lines, problems = read_lines(ledgers)
    campaign = tally(lines, scenes)
    listing = "\n".join([*problems, failures(campaign)]).strip("\n")
    why_not = complaint(campaign, max_failed_fraction)
    if why_not:
        raise CampaignFailed(f"the campaign failed: {why_not}" + (f"\n{listing}" if listing else ""))
    text = f"{campaign.counts()} (at most {percent(max_failed_fraction)} may fail)\n" + (listing and f"{listing}\n")
    write_text(out, text)
    return text
