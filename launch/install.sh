#!/usr/bin/env bash
# Creates the virtual environment .venv with the packages pinned in constraints.txt. Called by `make`; the output of pip
# and uv goes to .venv/install.log. INSTALLER=pip: without uv. VENV: another environment. With arguments, options of uv
# such as `--resolution lowest-direct`, in place of the pinned versions those that uv then chooses.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
LOG=$VENV/install.log

say() { printf '== %s\n' "$*"; }
fail() { printf '%s\n' "$*" >&2; exit 1; }

command -v g++ >/dev/null || fail "g++ is missing: install a C++ compiler (Debian: apt-get install g++)"
command -v "$PYTHON" >/dev/null || fail "$PYTHON is missing: install Python 3.11 to 3.14, or name one with make PYTHON=..."
"$PYTHON" -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 14) else \
  "Python %d.%d is not supported: make PYTHON=python3.12 (3.11 to 3.14)" % v)'

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
  "$VENV"/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off --no-compile "$@" 2>&1 |
    tee -a "$LOG" | show_progress || { tail -n 20 "$LOG" >&2; fail "pip failed: the lines above are the end of $LOG"; }
}

# Prints the value of an option of pip in its environment variables and files, which uv does not read.
pip_option() {
  local level
  for level in :env: install global; do
    sed -nE "s/^$level\.$1='(.*)'$/\1/p" <<<"$PIP_SETTINGS"
  done | head -n 1 | sed 's/\\n/ /g; s/^ *//'
}

# Gives uv what an option of pip says, unless there is nothing to say or the variable is set already.
tell_uv() {
  local value
  value=$(pip_option "$2")
  [ -z "$value" ] || [ -n "${!1:-}" ] || export "$1=$value"
}

# Installs with uv, which takes half of pip's time, from where pip would. Returns 1 if uv cannot be had or fails.
install_with_uv() {
  local PIP_SETTINGS
  "$VENV"/bin/python -m pip install --disable-pip-version-check --no-input --quiet --no-compile -c constraints.txt uv \
    >>"$LOG" 2>&1 || return 1
  PIP_SETTINGS=$("$VENV"/bin/python -m pip config list)
  tell_uv UV_DEFAULT_INDEX index-url
  tell_uv UV_INDEX extra-index-url
  tell_uv UV_FIND_LINKS find-links
  tell_uv SSL_CERT_FILE cert
  UV_INDEX_STRATEGY=unsafe-best-match NO_COLOR=1 "$VENV"/bin/uv pip install --python "$VENV"/bin/python "$@" 2>&1 |
    tee -a "$LOG" | awk '/^ *(Resolved|Downloading|Building|Prepared|Installed) / { sub(/^ */, "   "); print; fflush() }'
}

compile() {
  env -u PYTHONDONTWRITEBYTECODE "$VENV"/bin/python -c "import $1" >>"$LOG" 2>&1 || fail "cannot import $1: see $LOG"
}

say "install 1/3: create the virtual environment $VENV ($("$PYTHON" --version))"
"$PYTHON" -m venv "$VENV"
: >"$LOG"
install --upgrade 'pip>=25.1' >/dev/null
say "install 2/3: install PyTorch, DeepSpeed, MLflow and dependencies (downloads a few hundred MB; details: $LOG)"
if [ $# -gt 0 ]; then
  install_with_uv "$@" --group dev -e '.[all]' || { tail -n 20 "$LOG" >&2; fail "uv failed: the lines above are the end of $LOG"; }
else
  # PyTorch by pip, so that uv finds it and takes no other build.
  install -c constraints.txt torch
  rest=(-c constraints.txt torch --group dev -e '.[all]')
  [ "${INSTALLER:-uv}" != pip ] && install_with_uv "${rest[@]}" || install "${rest[@]}"
fi
say "install 3/3: compile the modules used in training to bytecode"
compile "deepspeed, deepspeed.launcher.runner, torch.utils.cpp_extension" &
compile "datasets, mlflow.pyfunc, mlflow.store.tracking.sqlalchemy_store, matplotlib.pyplot, pandas, sacrebleu, sacremoses"
wait $!
