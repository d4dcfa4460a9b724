"""``privrob epsilon`` and ``privrob calibrate``: the accountant on the command line."""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings

VERBS = ("epsilon", "calibrate")
MOST = 10**18  # steps, records
MOST_NOISE = 1e100  # its square, times what steps and records make of it, is still a number
_EPSILON = """\
The ε of DP-SGD, with the Poisson sampling that it is accounted for.

  privrob epsilon --sample-rate 0.004 --noise-multiplier 1.1 --steps 1000 --delta 1e-5
  privrob epsilon --batch-size 256 --num-records 60000 --noise-multiplier 1.1 --epochs 5 --delta 1e-5"""
_CALIBRATE = """\
The least noise for so many steps, or the most steps for so much noise, that keep DP-SGD within ε.

  privrob calibrate --epsilon 2 --delta 1e-5 --sample-rate 0.004 --steps 10000
  privrob calibrate --epsilon 2 --delta 1e-5 --sample-rate 0.004 --noise-multiplier 1.1"""


def main(argv):
    """Entry point; returns the exit status: 0, or 2 for a call that was refused."""
    verb, *rest = argv
    try:
        return {"epsilon": epsilon, "calibrate": calibrate}[verb](rest)
    except (ValueError, TypeError, NotImplementedError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    except ArithmeticError as error:
        print(f"refused: with these values a number is beyond what a computer holds ({error})", file=sys.stderr)
        return 2


def _parser(verb, text):
    parser = argparse.ArgumentParser(
        prog=f"privrob {verb}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    rate = parser.add_argument_group("how a step draws its records (one of both)")
    rate.add_argument("--sample-rate", type=float, metavar="Q", help="probability of each record at each step")
    rate.add_argument("--batch-size", type=float, metavar="L", help="the expected one, with --num-records: q = L/n")
    parser.add_argument("--num-records", type=int, metavar="N", help="size of the data set; a δ of 1/n or more is told")
    parser.add_argument("--delta", type=float, required=True, help="δ of the guarantee")
    parser.add_argument("--noise-multiplier", type=float, metavar="SIGMA", help="noise std / clipping norm")
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument("--steps", type=int, metavar="T", help="number of steps")
    steps.add_argument("--epochs", type=float, metavar="E", help="in place of --steps: T = E/q, rounded up")
    parser.add_argument("--neighbouring", default="add_remove", help="add_remove (default), add or remove")
    parser.add_argument("--accountant", default="pld", help="pld (default: tight) or rdp")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON, all digits")
    return parser


def _count(name, value, low):
    """A count that may be left out."""
    from privrob import checks

    if value is not None and value > MOST:
        raise ValueError(f"{name} must be at most {MOST:.0e}, got a number of {len(str(value))} digits")
    return None if value is None else checks.integer(name, value, low=low)


def _rate(a):
    _count("--num-records", a.num_records, 1)
    if (a.sample_rate is None) == (a.batch_size is None):
        raise ValueError("give either --sample-rate, or --batch-size with --num-records")
    if a.sample_rate is not None:
        return a.sample_rate
    if a.num_records is None:
        raise ValueError("--batch-size needs --num-records: q = batch size / num_records")
    if not 0 <= a.batch_size <= a.num_records:
        raise ValueError(f"--batch-size must lie in [0, num_records = {a.num_records}], got {a.batch_size:g}")
    return a.batch_size / a.num_records


def _noise(a):
    if a.noise_multiplier is not None and MOST_NOISE < a.noise_multiplier < math.inf:
        raise ValueError(f"--noise-multiplier must be at most {MOST_NOISE:g}, got {a.noise_multiplier:g}")


def _steps(a, rate):
    if a.epochs is None:
        return _count("--steps", a.steps, 0)
    if not (rate > 0 and 0 <= a.epochs < math.inf):
        raise ValueError(f"--epochs must be a number of at least 0, and the sampling rate above 0, got {a.epochs:g}")
    if not (steps := a.epochs / rate) <= MOST:
        raise ValueError(f"--epochs must give at most {MOST:.0e} steps at this sampling rate, got {a.epochs:g}")
    return max(math.ceil(steps - 1e-9), 1 if a.epochs else 0)


def epsilon(argv):
    """ε of given settings."""
    parser = _parser("epsilon", _EPSILON)
    a = parser.parse_args(argv)
    rate = _rate(a)
    _noise(a)
    steps = _steps(a, rate)
    if a.noise_multiplier is None or steps is None:
        raise ValueError("epsilon needs --noise-multiplier, and --steps or --epochs")
    from privrob.accounting.ledger import Ledger
    from privrob.kinds import nats
    from privrob.mechanisms.sampled import gaussian_step

    ledger = Ledger(neighbouring=a.neighbouring, sampling="poisson", num_records=a.num_records)
    ledger.add(gaussian_step(sample_rate=rate, noise_multiplier=a.noise_multiplier), steps)
    with _spoken_warnings():
        spent = ledger.epsilon(a.delta, accountant=a.accountant)
    if a.json:
        print(json.dumps({k: v if v != float("inf") else "inf" for k, v in spent.as_row().items()}))
        return 0
    print(spent)
    if a.accountant == "pld":
        # the upper end is rounded up, as in the line before
        print(f"ε lies in [{spent.lower:.6g}, {nats(spent.upper)}], certified; the upper end is the guarantee")
    print("not counted: what choosing settings by their results costs")
    return 0


def calibrate(argv):
    """σ or T for a target."""
    parser = _parser("calibrate", _CALIBRATE)
    parser.add_argument("--epsilon", type=float, required=True, help="the target ε, which is not exceeded")
    a = parser.parse_args(argv)
    rate = _rate(a)
    _noise(a)
    steps = _steps(a, rate)
    if (a.noise_multiplier is None) == (steps is None):
        raise ValueError("calibrate needs either --steps (or --epochs), or --noise-multiplier")
    from privrob.accounting import calibrate as search
    from privrob.accounting.ledger import weaknesses
    from privrob.kinds import nats

    how = {"delta": a.delta, "sample_rate": rate, "neighbouring": a.neighbouring, "accountant": a.accountant}
    with _spoken_warnings():
        if steps is not None:
            found = search.noise_multiplier_for(a.epsilon, num_steps=steps, **how)
        else:
            found = search.num_steps_for(a.epsilon, noise_multiplier=a.noise_multiplier, **how)
    for text in weaknesses(found.epsilon.upper, a.delta, num_records=a.num_records):
        print(f"note: {text}", file=sys.stderr)
    if a.json:
        row = {k: v for k, v in vars(found).items() if k != "epsilon"}
        print(json.dumps(row | {"epsilon_upper": found.epsilon.upper}))
        return 0
    print(f"noise multiplier {nats(found.noise_multiplier, 7)}, {found.num_steps:,} steps, sample rate {rate:.6g}")
    way = a.accountant if found.conversion is None else f"{a.accountant}, conversion {found.conversion}"
    assumes = f"{a.neighbouring}, {found.sampling}, by {way}"
    print(f"spends ε = {nats(found.epsilon.upper)} of {a.epsilon:g} at δ = {a.delta:g} ({assumes})")
    return 0


def _spoken_warnings():
    """Warnings as a line each, in place of Python's form of them."""

    class Spoken(warnings.catch_warnings):
        def __enter__(self):
            super().__enter__()
            warnings.showwarning = lambda message, *_, **__: print(f"note: {message}", file=sys.stderr)
            warnings.simplefilter("always")

    return Spoken()
