#!/usr/bin/env bash
# The one command: makes the environment when there is none, then hands everything to python -m privrob.suite.
#   ./run_all.sh            run all notebooks (preset laptop)        ./run_all.sh --help   everything else
#   ./run_all.sh --no-env   use the python at hand (containers, cluster modules, machines without a network)
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
case "$root" in *:*)
  echo "privrob cannot run below a folder whose name has a colon, at which Python parts its search path ($root)" >&2
  echo "rename that folder, or put the checkout elsewhere" >&2
  exit 2 ;;
esac
export PYTHONUTF8=1 PYTHONPATH="$root/lib${PYTHONPATH:+:$PYTHONPATH}" PRIVROB_ROOT="$root"
# pip on some machines writes to the home; a missing one must not stop us
export HOME="${HOME:-/nonexistent}"

# the first interpreter of these names that is new enough
find_python() {
  local name said words=""
  for name in ${PRIVROB_PYTHON:-} "$@"; do
    command -v "$name" >/dev/null 2>&1 || continue
    if said=$("$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>&1); then
      command -v "$name"; return
    fi
    # one that is too old says nothing
    if [ -n "$said" ] && [ -z "$words" ]; then words="$(command -v "$name") does not start, and says:"$'\n'"$said"; fi
  done
  if [ -n "$words" ]; then echo "privrob needs Python 3.11 or newer; $words
mend that, or name another one in PRIVROB_PYTHON" >&2; return 2; fi
  echo "privrob needs Python 3.11 or newer and found none; install one (or conda), or name it in PRIVROB_PYTHON" >&2
  return 2
}

# help needs no environment
for word in "$@"; do
  case "$word" in
    -h | --help)
      python=$(find_python "$root/.venv/bin/python" "$root/.conda-env/bin/python" python3.11 python3 python python3.12 python3.13)
      exec "$python" -m privrob.suite "$@" ;;
    -p) break ;;
  esac
done

at_hand=no
[ "${CONDA_DEFAULT_ENV:-}" = privrob ] && at_hand=yes
for word in "$@"; do [ "$word" = --no-env ] && at_hand=yes; done
if [ "$at_hand" = yes ]; then
  python=$(find_python python python3)
  "$python" "$root/lib/privrob/suite/preflight.py" || exit 2
else
  python=$(find_python python3.11 python3 python python3.12 python3.13)
  python=$("$python" "$root/lib/privrob/suite/bootstrap.py")
fi
exec "$python" -m privrob.suite "$@"
