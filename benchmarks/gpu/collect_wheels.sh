#!/usr/bin/env bash
# Collects into .whl, by the pins of constraints.txt, what lease.sh needs on a GPU machine without a network that has PyTorch,
# Triton, NumPy, pyarrow, pandas, SentencePiece, sacrebleu, matplotlib and pytest already, for x86-64.
#   benchmarks/gpu/collect_wheels.sh [PYTHON-VERSION] [PACKAGE ...]   # default: 3.12; further packages that it lacks
# Fails if the wheels and the tree are larger than $CARRIED (60) MiB.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${1:-3.12}
shift || true
PYTHON=${PYTHON:-.venv/bin/python}
packages=(hjson pydantic pydantic-core annotated-types typing-inspection datasets dill multiprocess mlflow-skinny mlflow-tracing
  sqlalchemy greenlet alembic Mako cachetools databricks-sdk gitpython gitdb smmap importlib-metadata opentelemetry-api
  opentelemetry-sdk opentelemetry-proto opentelemetry-semantic-conventions sqlparse python-dotenv google-auth pyasn1
  pyasn1-modules sacremoses langcodes language-data marisa-trie einops xxhash joblib msgpack psutil py-cpuinfo nvidia-ml-py click
  fonttools zstandard defusedxml nltk pytest-timeout execnet cloudpickle protobuf fastapi starlette liger-kernel)
platforms=()
for tag in _2_28 _2_27 _2_24 _2_17 2014 1; do platforms+=(--platform "manylinux${tag}_x86_64"); done
rm -rf .whl
mkdir .whl
for package in "${packages[@]}" "$@"; do
  "$PYTHON" -m pip download -q --no-deps --only-binary=:all: --python-version "$version" --implementation cp \
    "${platforms[@]}" -c constraints.txt -d .whl "$package" || echo "$package: not in the index, left out" >&2
done
"$PYTHON" -m pip wheel -q --no-deps --no-build-isolation -c constraints.txt -w .whl deepspeed
size=$({ git ls-files -z --cached --others --exclude-standard; printf '.whl\0'; } |
  du -cm --apparent-size --files0-from=- | awk 'END {print $1}')
echo "$(du -sm .whl | cut -f 1) MiB of wheels, $size MiB with the tree"
[ "$size" -le "${CARRIED:-60}" ] || { echo "that is more than ${CARRIED:-60} MiB: leave packages out" >&2; exit 1; }
