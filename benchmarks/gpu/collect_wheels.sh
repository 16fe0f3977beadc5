#!/usr/bin/env bash
# Collects into .whl, by the pins of constraints.txt, what training needs on a GPU machine without a network that has PyTorch,
# Triton, NumPy, pyarrow, pandas, SentencePiece and pytest already. lease.sh installs it there.
#   benchmarks/gpu/collect_wheels.sh [PYTHON-VERSION] [PACKAGE ...]   # default: 3.12; further packages, such as liger_kernel
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${1:-3.12}
shift || true
PYTHON=${PYTHON:-.venv/bin/python}
mkdir -p .whl
packages=(hjson pydantic pydantic-core annotated-types typing-inspection datasets dill multiprocess mlflow-skinny mlflow-tracing
  sqlalchemy greenlet alembic Mako cachetools databricks-sdk gitpython gitdb smmap importlib-metadata opentelemetry-api
  opentelemetry-sdk opentelemetry-proto opentelemetry-semantic-conventions sqlparse python-dotenv google-auth pyasn1
  pyasn1-modules sacremoses langcodes language-data marisa-trie einops xxhash joblib msgpack psutil py-cpuinfo nvidia-ml-py click
  fonttools zstandard defusedxml nltk pytest-timeout execnet cloudpickle protobuf fastapi
  starlette)
platforms=()
for tag in 2_28 2_27 2_24 2_17 2014 1; do platforms+=(--platform "manylinux${tag/#2_/_2_}_x86_64"); done
download() {
  "$PYTHON" -m pip download -q --no-deps --only-binary=:all: --python-version "$version" --implementation cp \
    "${platforms[@]}" -c constraints.txt -d .whl "$1"
}
for package in "${packages[@]}" "$@"; do download "$package" || echo "$package: not in the index, left out" >&2; done
"$PYTHON" -m pip wheel -q --no-deps --no-build-isolation -c constraints.txt -w .whl deepspeed
du -sh .whl
size=$(du -sm .whl | cut -f 1)
[ "$size" -lt 50 ] || { echo ".whl is $size MB, and with the tree more than a machine may take: leave packages out" >&2; exit 1; }
