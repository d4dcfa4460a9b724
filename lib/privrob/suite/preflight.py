"""What is lacking here, in words before any work: packages of the python at hand (``--no-env``), the loopback
interface over which notebooks are run. Standard library only.
"""

import importlib.util
import os
import socket
import sys

NEEDED = {
    "numpy": "", "scipy": "", "pandas": "", "matplotlib": "", "seaborn": "", "torch": "", "yaml": "pyyaml",
    "PIL": "pillow", "papermill": "", "nbclient": "", "nbformat": "", "ipykernel": "", "jsonschema": "", "psutil": "",
    "threadpoolctl": "", "dp_accounting": "dp-accounting", "pooch": "", "tqdm": "",
}  # fmt: skip


def check_loopback(seconds=5.0):
    """Refuse a machine that cannot talk to itself: each notebook would fail after two minutes of silence.

    Raises: ValueError.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=seconds).close()
    except OSError as error:
        raise ValueError(
            "notebooks run over the loopback interface, and 127.0.0.1 cannot be reached here "
            f"({error.strerror or error}); "
            "bring it up (ip link set lo up), or allow it where a container or sandbox forbids it"
        ) from error


def main():
    """Exit status 0 when everything needed is there."""
    if sys.version_info < (3, 11):  # noqa: UP036
        print(f"privrob needs Python 3.11 or newer, this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    missing = [package or name for name, package in NEEDED.items() if importlib.util.find_spec(name) is None]
    if missing:
        lacks = f"{sys.executable} lacks {', '.join(missing)}"
        conda = f"{lacks}; conda env update -f environment.yml, or conda deactivate (we make our own then)"
        plain = f"--no-env: {lacks}; install them, or leave --no-env away"
        print(conda if os.environ.get("CONDA_DEFAULT_ENV") == "privrob" else plain, file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
