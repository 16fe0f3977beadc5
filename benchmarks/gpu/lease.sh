#!/usr/bin/env bash
# What to run first on a GPU that is there for half an hour: three scripts of under nine minutes, most informative first.
#   benchmarks/gpu/lease.sh 1|2|3        run one; results go to $OUT (./gpu-lease), with a summary at the end
#   benchmarks/gpu/lease.sh --list 1     print its parts: name, seconds at most, command
# Each part has its own time limit, and one that fails does not stop the next. $PYTHON is the interpreter. Script 3 trains
# Multi30k if $MULTI30K is a corpus that dst-prep built from it, and scores it on $MULTI30K_TEST.en and .de if given.
set -uo pipefail
OUT=$(realpath -m "${OUT:-gpu-lease}")
cd "$(dirname "$0")/../.." || exit 2

STOP=TERM  # the signal that ends a part at its limit; after INT pytest reports what has failed

usage() { echo "usage: benchmarks/gpu/lease.sh [--list] 1|2|3" >&2; exit 2; }
list=false
if [ "${1:-}" = --list ]; then list=true; shift; fi
case "${1:-}" in 1|2|3) script=$1 ;; *) usage ;; esac

if [ -z "${PYTHON:-}" ]; then PYTHON=python; [ -x .venv/bin/python ] && PYTHON=.venv/bin/python; fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 MLFLOW_DISABLE_TELEMETRY=true

if ! $list; then
  needed='import deepspeed, pytest, sentencepiece, torch, triton, xdist; assert torch.cuda.is_available(), "no CUDA device"'
  missing=$("$PYTHON" -c "$needed" 2>&1 > /dev/null) || {
    echo "lease.sh needs a CUDA device and the packages of the tests: ${missing##*$'\n'}; nothing was run" >&2
    exit 2
  }
  mkdir -p "$OUT"
  : > "$OUT/parts-$script.tsv"
fi

# part NAME SECONDS COMMAND...: run a command with a time limit, or list it.
part() {
  local name=$1 limit=$2 began=$SECONDS status
  shift 2
  if $list; then printf '%s\t%s\t%s\n' "$name" "$limit" "$*"; return; fi
  timeout --signal="$STOP" --kill-after=10 "$limit" "$@" > "$OUT/$name.txt" 2>&1
  status=$?
  printf '%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - began))" | tee -a "$OUT/parts-$script.tsv"
}

bench() { local name=$1 limit=$2; shift 2; part "$name" "$limit" "$PYTHON" -m benchmarks "$@" --json "$OUT/$name.json"; }

# train NAME SECONDS CORPUS PRESET OPTIONS...
train() {
  local name=$1 limit=$2 corpus=$3 preset=$4 run=$5
  shift 5
  part "$name" "$limit" "$PYTHON" -m dstransformer train "$preset" --corpus "$corpus" --run "$OUT/runs/$run" "$@"
}

# One stage of ZeRO in one precision: 15 updates, and in a new process 15 more.
stop_and_resume() {
  local layout="zero$1-$2"
  set -- --ds "zero$1" "$2" --set tracking.enabled=false validation.every=0 validation.final_sentences=8 checkpoint.every_updates=0
  train "$layout-start" 35 "$OUT/toy" toy "$layout" "$@" training.max_updates=15
  if $list || [ -e "$OUT/runs/$layout/checkpoints/latest" ]; then
    train "$layout-resume" 35 "$OUT/toy" toy "$layout" "$@" training.max_updates=30
  fi
}

first() {
  bench ceilings 40 gpu-ceilings
  STOP=INT part tests 110 "$PYTHON" -m pytest tests/gpu -n 0 -q -m "gpu and not slow" -k "not reduces_the_loss and not train_alike"
  part corpus 30 "$PYTHON" -m data_prep build --source toy --pairs 10000 --valid-size 200 --out "$OUT/toy" --overwrite
  bench kernels 40 gpu-kernels
  bench waits 40 gpu-waits
  for stage in 1 3 2 0; do  # the three precisions of a stage side by side
    for precision in bf16 fp16 fp32; do
      if $list; then stop_and_resume $stage $precision; else stop_and_resume $stage $precision & fi
    done
    wait
  done
}

second() {
  bench shipped 150 gpu --models base --precisions bf16 --backends varlen --compile no --acts train --rounds 3 --minutes 2.4 --profile "$OUT/profiles"
  for tokens in 4096 16384 65536; do
    bench "decode-$tokens" 50 gpu --models base --precisions bf16 --backends varlen --acts decode --rounds 2 --batch-tokens "$tokens" --minutes 0.8
  done
  bench fp16 50 gpu --models base --precisions fp16 --backends varlen --compile no --acts train --rounds 3 --micro-batches 1 --minutes 0.8
  bench padded 50 gpu --models base --precisions bf16 --backends padded --compile no --acts train --rounds 3 --micro-batches 8 --minutes 0.8
  bench big 60 gpu --models big --precisions bf16 --backends varlen --compile no --acts train --rounds 2 --micro-batches 1 --minutes 0.9
  bench compiled 70 gpu --models base --precisions bf16 --backends varlen --compile yes --acts train --rounds 3 --micro-batches 1 --minutes 1.1
}

third() {
  bench kernels-profile 60 gpu-kernels --profile
  bench attention 60 gpu-attention
  bench graph-8 45 gpu-graph --micro-batches 8
  bench graph-1 45 gpu-graph --micro-batches 1
  if [ -n "${MULTI30K:-}" ]; then
    # 124: it ran until its limit, and stopped with a checkpoint
    train multi30k 240 "$MULTI30K" multi30k multi30k --ds zero1 bf16 --set tracking.enabled=false
    if [ -n "${MULTI30K_TEST:-}" ]; then
      part average 30 "$PYTHON" -m dstransformer average "$OUT/runs/multi30k" --out "$OUT/multi30k"
      part bleu 60 "$PYTHON" -m dstransformer evaluate "$OUT/multi30k" --src "$MULTI30K_TEST.en" --ref "$MULTI30K_TEST.de" --json
    fi
  fi
}

case $script in 1) first ;; 2) second ;; 3) third ;; esac
$list && exit 0

"$PYTHON" - "$OUT" "$script" <<'SUMMARY'
import json, pathlib, sys

out, script = pathlib.Path(sys.argv[1]), sys.argv[2]
lines = (out / f"parts-{script}.tsv").read_text().splitlines()
parts = [dict(zip(("part", "status", "seconds"), line.split("\t"))) for line in lines]
for part in parts:
    part["last line"] = next(reversed((out / f"{part['part']}.txt").read_text(errors="replace").split("\n")[:-1]), "")
table = [f"{'part':22} {'status':>6} {'s':>5}  last line"]
table += [f"{p['part']:22} {p['status']:>6} {p['seconds']:>5}  {p['last line'][:120]}" for p in parts]
(out / f"summary-{script}.txt").write_text("\n".join(table) + "\n")
(out / f"summary-{script}.json").write_text(json.dumps(parts, indent=1))
print("\n".join(table))
sys.exit(any(part["status"] != "0" for part in parts if part["part"] != "multi30k"))
SUMMARY
