"""``privrob …`` and ``python -m privrob …``: the accountant's verbs, and the suite's command line."""

import sys


def main():
    """Hand over to the accountant for its verbs, to the suite for all else."""
    from privrob import cli

    if sys.argv[1:2] and sys.argv[1] in cli.VERBS:
        return cli.main(sys.argv[1:])
    from privrob.suite.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
