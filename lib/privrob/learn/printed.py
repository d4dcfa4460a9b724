"""When a run that is smaller than a document's counts as pointing the way of a printed number.

Source: ours; no document says what a reduced run would have to show.
"""

from __future__ import annotations

import math

from privrob import checks


def near(got, printed, *, most=10.0, share=0.5):
    """Is ``got`` on the printed side of 0, and within ``most`` of the printed value and within ``share`` of its size?

    The second bound is what judges a small number: ten points around a printed drop of 6.9 would hold no drop at all.

    Args: got — of the run;  printed — the document's, in the same unit;  most — the largest distance;
        share — in (0, 1), of ``|printed|``.
    """
    got, printed = checks.real("got", got), checks.real("printed", printed)
    checks.positive("most", most, finite=True)
    checks.real("share", share, low=0, high=1, open_low=True, open_high=True)
    return bool(abs(got - printed) <= min(most, share * abs(printed)))


def standard_error(per_cent, num_images):
    """Binomial standard error, in points, of shares of the same so many images: of one share, or of a difference.

    Args: per_cent — the shares, each in [0, 100], that are added or subtracted; as if independent;
        num_images — images behind each.
    """
    num_images = checks.integer("num_images", num_images, low=1)
    shares = [checks.real("per_cent", value, low=0, high=100) / 100 for value in per_cent]
    return 100 * math.sqrt(sum(p * (1 - p) for p in shares) / num_images)


def spread(values, num_images, *, difference):
    """The larger of two standard errors, in points: over the runs, and binomial over the images.

    Args: values — (runs,) per cent, means over attacks are allowed; one run has no spread of its own;
        num_images — images behind each;  difference — are these differences of two shares? Then as of two halves.
    """
    values = checks.array("values", values, ndim=1)
    shares = [50.0, 50.0] if difference else [float(values.mean())]
    binomial = standard_error(shares, num_images)
    over_runs = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return max(binomial, over_runs)


def above_guessing(per_cent, num_images, *, num_classes, errors=3.0):
    """Is an accuracy more than so many standard errors (those of guessing) above that of guessing?

    Args: per_cent — in [0, 100];  num_images — images behind it;  num_classes — equally frequent;
        errors — how many standard errors.
    """
    guessing = 100 / checks.integer("num_classes", num_classes, low=2)
    checks.nonnegative("errors", errors, finite=True)
    value = checks.real("per_cent", per_cent, low=0, high=100)
    return bool(value > guessing + errors * standard_error([guessing], num_images))
