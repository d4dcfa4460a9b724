"""What the python at hand lacks for ``--no-env``: a list in words instead of a traceback. Standard library only."""

import importlib.util
import sys

NEEDED = {
    "numpy": "", "scipy": "", "pandas": "", "matplotlib": "", "seaborn": "", "torch": "", "yaml": "pyyaml",
    "PIL": "pillow", "papermill": "", "nbclient": "", "nbformat": "", "ipykernel": "", "jsonschema": "", "psutil": "",
    "threadpoolctl": "", "dp_accounting": "dp-accounting", "pooch": "", "tqdm": "",
}  # fmt: skip


def main():
    """Exit status 0 when everything needed is there."""
    if sys.version_info < (3, 11):  # noqa: UP036
        print(f"privrob needs Python 3.11 or newer, this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    missing = [package or name for name, package in NEEDED.items() if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"--no-env: {sys.executable} lacks {', '.join(missing)}; install them, or leave --no-env away",
            file=sys.stderr,
        )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
