"""``privrob …`` and ``python -m privrob …``: the accountant's verbs, and the suite's command line."""

import sys


def main():
    """Hand over to the accountant for its verbs, to the suite for all else; alone it shows help and runs nothing."""
    from privrob import cli

    if sys.argv[1:2] and sys.argv[1] in cli.VERBS:
        return cli.main(sys.argv[1:])
    from privrob.suite.cli import main as run

    return run(sys.argv[1:] or ["--help"])


if __name__ == "__main__":
    sys.exit(main())
