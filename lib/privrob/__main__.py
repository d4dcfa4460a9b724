"""``privrob …`` and ``python -m privrob …``: the suite's command line."""

import sys


def main():
    """Hand over to the suite."""
    from privrob.suite.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
