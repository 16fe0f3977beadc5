#!/usr/bin/env bash
# Runs the whole pipeline on the embedded toy corpus: prepare, train with DeepSpeed, BLEU in MLflow, translate.
# Called by `make quickstart` after the installation. Writes only to ./quickstart.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
OUT=quickstart
PAIRS=${QUICKSTART_PAIRS:-50000}
SENTENCE="The teacher reads an old book because he wants to help the small girls."
source launch/env.sh
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PATH="$PWD/$BIN:$PATH"
unset MLFLOW_TRACKING_URI

say() { printf '\n== %s\n' "$*"; }

read -r gpus port < <("$BIN/python" -c '
import socket, torch
free = socket.socket()
free.bind(("127.0.0.1", 0))
print(torch.cuda.device_count(), free.getsockname()[1])')
if [ "$gpus" -gt 0 ]; then ranks=$gpus precision=bf16; else ranks=2 precision=fp32; export DS_ACCELERATOR=cpu; fi
mkdir -p "$OUT"

say "1/3 prepare: $PAIRS sentence pairs of the embedded English-German grammar"
"$BIN/dst-prep" build --source toy --pairs "$PAIRS" --valid-size 500 --out "$OUT/corpus" --overwrite

say "2/3 train: DeepSpeed on $ranks processes ($([ "$gpus" -gt 0 ] && echo GPU || echo CPU)), $precision;" \
  "then translate the test set and score it"
rm -rf "$OUT/run"  # from an earlier quickstart; MLflow keeps its record
"$BIN/deepspeed" -q --num_gpus "$ranks" --master_port "$port" --module dstransformer \
  train toy --corpus "$OUT/corpus" --run "$OUT/run" --ds zero1 "$precision" --set batch.micro_batches="$ranks" \
  --resume never

say "3/3 translate one sentence"
echo "$SENTENCE"
echo "$SENTENCE" | "$BIN/dst" translate "$OUT/run/bundle"

bleu=$(sed -n 's/.*"kind": *"final_test".*"bleu": *\([0-9.]*\).*/\1/p' "$OUT/run/metrics.jsonl")
say "done"
printf 'BLEU %.2f on the held-out test set (none of its source sentences are in the training set)\n' "$bleu"
echo "run  $OUT/run (checkpoints, metrics.jsonl, bundle)"
echo "MLflow: $BIN/mlflow ui --backend-store-uri sqlite:///$PWD/$OUT/mlflow.db"
echo "        then open http://127.0.0.1:5000/#/experiments/1?workflowType=machine_learning"
