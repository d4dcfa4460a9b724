"""One wording for every argument error: what must hold, what was given, and the way out.

Every check returns the value (converted where that loses nothing), so that it can be used in place::

    sample_rate = checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")

Every check takes ``name``, the argument's name in the error; ``value``, what was given; and, most of them, ``hint``,
the way out that the error offers.

Source: ours.
"""

from __future__ import annotations

import difflib
import math
import numbers

import numpy as np


def _fail(name, allowed, value, hint, error=ValueError):
    way_out = f"; {hint}" if hint else ""
    raise error(f"{name} must {allowed}, got {name}={value!r}{way_out}")


def real(name, value, *, low=-math.inf, high=math.inf, open_low=False, open_high=False, hint=""):
    """A real number in an interval, as a float. NaN, booleans, text and arrays are refused.

    Args: low, high — ends of the interval;  open_low, open_high — whether that end is left out.
    Returns: float.
    """
    left, right = "(" if open_low or low == -math.inf else "[", ")" if open_high else "]"
    bounds = f"lie in {left}{low:g}, {high:g}{right}" if (low, high) != (-math.inf, math.inf) else "be a number"
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        _fail(name, f"be a real number and {bounds}" if bounds != "be a number" else bounds, value, hint, TypeError)
    try:
        number = float(value)
    except OverflowError:  # a huge whole number or fraction
        _fail(name, f"{bounds}, and be a number that a double holds", "a number beyond 1.8e308 in size", hint)
    too_low = number <= low if open_low else number < low
    too_high = number >= high if open_high else number > high
    if math.isnan(number) or too_low or too_high:
        _fail(name, bounds, value, hint)
    return number


def positive(name, value, *, finite=False, hint=""):
    """A real number above 0 (and not infinite: ``finite``)."""
    return real(name, value, low=0.0, open_low=True, open_high=finite, hint=hint)


def nonnegative(name, value, *, finite=False, hint=""):
    """A real number that is at least 0 (and not infinite: ``finite``)."""
    return real(name, value, low=0.0, open_high=finite, hint=hint)


def probability(name, value, *, allow_zero=True, allow_one=True, hint=""):
    """A number in [0, 1]; either end can be left out: ``allow_zero``, ``allow_one``."""
    return real(name, value, low=0.0, high=1.0, open_low=not allow_zero, open_high=not allow_one, hint=hint)


def integer(name, value, *, low=None, high=None, hint=""):
    """A whole number in a range, as an int. Floats are refused, even whole ones: a count is written as a count.

    Args: low, high — ends of the range, both allowed; None: no end.
    """
    low_text = "-inf" if low is None else low
    high_text = "inf" if high is None else high
    allowed = "be an integer" if low is None and high is None else f"be an integer in [{low_text}, {high_text}]"
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        _fail(name, allowed, value, hint, TypeError)
    if (low is not None and value < low) or (high is not None and value > high):
        _fail(name, allowed, value, hint)
    return int(value)


def seed(name, value):
    """A root seed: an integer in [0, 2**64). None is refused: a reproduction never draws its seed by chance."""
    return integer(name, value, low=0, high=2**64 - 1, hint="pass a whole number such as 0")


def choice(name, value, allowed, *, hint=""):
    """One of the allowed values; a close match is offered.

    Args: allowed — the values, in the order in which the error lists them.
    """
    allowed = list(allowed)
    if getattr(value, "ndim", 0) or value not in allowed:  # an array is in nothing
        close = difflib.get_close_matches(str(value), [str(a) for a in allowed], n=1)
        _fail(name, f"be one of {allowed}", value, hint or (f"did you mean {close[0]!r}?" if close else ""))
    return value


def boolean(name, value, *, hint=""):
    """True or False, NumPy's too, as a bool. Text and numbers are refused: "False" is no word for False."""
    if not isinstance(value, (bool, np.bool_)):
        _fail(name, "be True or False", value, hint, TypeError)
    return bool(value)


def generator(name, value):
    """A NumPy Generator, or what stands in for one: it spawns and draws. Seeds and None are refused: whoever calls
    keeps the stream, and can draw the run anew.
    """
    if isinstance(value, type) or not all(callable(getattr(value, way, None)) for way in ("spawn", "random")):
        _fail(name, "be a NumPy Generator", value, "pass np.random.default_rng(seed)", TypeError)
    return value


def array(name, value, *, ndim=None, finite=True, hint=""):
    """A float64 array of the given number of dimensions, finite unless said otherwise.

    Args: ndim — how many dimensions it must have (None: any);  finite — refuse NaN and infinity.
    Returns: float64, of the shape of what was given.
    """
    try:
        if np.iscomplexobj(value):
            raise TypeError
        result = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        _fail(name, "be an array of numbers", type(value).__name__, hint, TypeError)
    except OverflowError:  # a huge whole number
        _fail(name, "hold numbers that a double holds", "a number beyond 1.8e308 in size", hint)
    if ndim is not None and result.ndim != ndim:
        _fail(name, f"have {ndim} dimension(s)", f"shape {result.shape}", hint)
    if finite and not np.isfinite(result).all():
        _fail(name, "be finite everywhere", f"{int((~np.isfinite(result)).sum())} non-finite entries", hint)
    return result


def orders(value):
    """Rényi orders, each above 1: float64, shape (k,). The limit at 1, the KL divergence, is asked for by name."""
    result = np.atleast_1d(array("orders", value, finite=True))
    if result.ndim != 1 or result.size == 0:
        _fail("orders", "be a non-empty list of numbers", f"shape {result.shape}", "")
    if not (result > 1).all():
        _fail("orders", "all exceed 1", float(result.min()), "order 1 is the KL divergence: use kl()")
    return result


def options(name, value, allowed):
    """A dict of options by name (None: none), each one of those allowed.

    Args: allowed — the names that may be given; none: nothing may.
    """
    if value is not None and (not isinstance(value, dict) or not all(isinstance(key, str) for key in value)):
        raise TypeError(f"{name} must be a dict of names and values or None, got {type(value).__name__}")
    for key in value or {}:
        if not allowed:
            raise ValueError(f"{name} must be None or empty here, got {key!r}")
        choice(name, key, allowed)
    return value or {}
