import sys

from privrob.suite.cli import main

if __name__ == "__main__":
    sys.exit(main())
