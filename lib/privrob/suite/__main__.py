import sys

if __name__ == "__main__":
    try:
        from privrob.suite.cli import main

        status = main()
    except KeyboardInterrupt:  # while modules were still being loaded
        print("stopped", file=sys.stderr)
        status = 130
    sys.exit(status)
