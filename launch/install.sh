#!/usr/bin/env bash
# Creates the virtual environment .venv with the packages pinned in constraints.txt. Called by `make`; pip's output goes to .venv/install.log.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
LOG=.venv/install.log

say() { printf '== %s\n' "$*"; }
fail() { printf '%s\n' "$*" >&2; exit 1; }

command -v g++ >/dev/null || fail "g++ is missing: install a C++ compiler (Debian: apt-get install g++)"
command -v "$PYTHON" >/dev/null || fail "$PYTHON is missing: install Python 3.11 or 3.12, or name one with make PYTHON=..."
"$PYTHON" -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 12) else \
  "Python %d.%d is not supported: make PYTHON=python3.12 (or 3.11)" % v)'

# Shows one line per package that pip finds, rewritten in place on a terminal, and one line per long silent step.
show_progress() {
  awk -v total="$(grep -c '==' constraints.txt)" -v live="$([ -t 1 ] && echo 1 || echo 0)" '
    /^ *(Collecting|Requirement already satisfied:) / && !seen[$0]++ {
      count++
      if (live) printf "\r\033[K   package %d of about %d: %s", count, total, $1 == "Collecting" ? $2 : $4
      else if (count % 25 == 0) printf "   %d of about %d packages found\n", count, total
    }
    /^Building wheels/ { printf "%s   building DeepSpeed\n", live ? "\r\033[K" : "" }
    /^Installing collected packages/ { printf "%s   unpacking %d packages\n", live ? "\r\033[K" : "", gsub(/,/, "") + 1 }
    { fflush() }'
}

install() {
  # Without --no-compile, pip compiles 16,000 files to bytecode, of which only a fifth are ever imported.
  .venv/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off --no-compile "$@" 2>&1 |
    tee -a "$LOG" | show_progress || { tail -n 20 "$LOG" >&2; fail "pip failed: the lines above are the end of $LOG"; }
}

compile() {
  env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c "import $1" >>"$LOG" 2>&1 || fail "cannot import $1: see $LOG"
}

say "install 1/3: create the virtual environment .venv ($("$PYTHON" --version))"
"$PYTHON" -m venv .venv
: >"$LOG"
install --upgrade 'pip>=25.1' >/dev/null
say "install 2/3: install PyTorch, DeepSpeed, MLflow and dependencies (downloads a few hundred MB; details: $LOG)"
install -c constraints.txt torch --group dev -e .
say "install 3/3: compile the modules used in training to bytecode"
compile "deepspeed, deepspeed.launcher.runner, torch.utils.cpp_extension" &
compile "datasets, mlflow.pyfunc, mlflow.store.tracking.sqlalchemy_store, matplotlib.pyplot, pandas, sacrebleu, sacremoses"
wait $!
