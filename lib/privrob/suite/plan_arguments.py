"""What ``./run_all.sh plan`` takes, and the recipes that it prints. Standard library only."""

from __future__ import annotations

from pathlib import Path

from privrob.suite.files import place, read_text

HELP = """\
What a preset costs on so many workers: counts its cells without computing them, takes their times from cells that were
measured (results/, and --measured), and simulates workers. Lists what it cannot know. Fetches the data sets that
notebooks read to count, keeps counts in studies/.plan, and writes else only what you name.

  ./run_all.sh plan --preset paper --workers 1,8,64 --csv plan.csv --page plan.md
  ./run_all.sh plan 'ptr/*' --speed-up 20     workers that train 20 times as fast as the measured core: your factor
  ./run_all.sh plan --measure 5               times a few steps of what was never measured, 5 minutes a kind at most
  ./run_all.sh plan --recipe slurm            a batch file for a cluster (or: kubernetes)"""
RECIPES = {"slurm": "slurm.sh", "kubernetes": "kubernetes.yaml"}
ARGUMENTS = {
    "--preset": {"default": "paper", "help": "smoke, laptop or paper (default)"},
    "-p": {
        "nargs": 2,
        "action": "append",
        "default": [],
        "metavar": ("NAME", "VALUE"),
        "dest": "overrides",
        "help": "change a parameter; repeatable",
    },
    "--workers": {"default": "1,8,64", "metavar": "N,M", "help": "numbers of workers, a GPU or core each (1,8,64)"},
    "--speed-up": {"type": float, "default": 1.0, "metavar": "X", "help": "a worker's speed over a measured core (1)"},
    "--start-up": {"type": float, "default": 15.0, "metavar": "SECONDS", "help": "of each worker (15)"},
    "--missing": {"action": "store_true", "help": "leave out cells whose rows are stored and up to date"},
    "--measured": {
        "type": place,
        "action": "append",
        "default": [],
        "metavar": "DIR",
        "help": "another results folder with times",
    },
    "--measure": {
        "type": float,
        "metavar": "MINUTES",
        "help": "time a few steps of trainings without a measured relative, here, at most so long for each kind",
    },
    "--csv": {"type": place, "metavar": "FILE", "help": "write the tables: FILE, and its name with .workers.csv"},
    "--page": {"type": place, "metavar": "FILE", "help": "write what is said as a page of Markdown"},
    "--time-limit": {"type": float, "default": 30.0, "metavar": "MINUTES", "help": "for counting one notebook (30)"},
    "--jobs": {"type": int, "default": 1, "metavar": "N", "help": "notebooks counted at once (1)"},
    "--fresh": {"action": "store_true", "help": "count again what was counted before"},
    "--recipe": {"choices": RECIPES, "help": "print how to start a cluster, and stop"},
    "--no-env": {"action": "store_true", "help": "use the python at hand, make no environment"},
}


def recipe(name):
    """The text of a recipe for a cluster."""
    return read_text(Path(__file__).parent / "recipes" / RECIPES[name])
