#!/usr/bin/env bash
# Runs the whole pipeline on the embedded toy corpus: prepare, train with DeepSpeed, translate, BLEU in MLflow.
# Called by `make quickstart` after the installation. Writes only to ./quickstart.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
OUT=quickstart
PAIRS=${QUICKSTART_PAIRS:-100000}
SENTENCE="The teacher reads an old book because he wants to help the small girls."
source launch/env.sh
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PATH="$PWD/$BIN:$PATH"
unset MLFLOW_TRACKING_URI

say() { printf '\n== %s\n' "$*"; }

gpus=$("$BIN/python" -c 'import torch; print(torch.cuda.device_count())')
if [ "$gpus" -gt 0 ]; then ranks=$gpus precision=bf16; else ranks=2 precision=fp32; export DS_ACCELERATOR=cpu; fi
port=$("$BIN/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir -p "$OUT"

say "1/4 prepare: $PAIRS sentence pairs of the embedded English-German grammar"
"$BIN/dst-prep" build --source toy --pairs "$PAIRS" --valid-size 500 --out "$OUT/corpus" --overwrite

say "2/4 train: DeepSpeed on $ranks processes ($([ "$gpus" -gt 0 ] && echo GPU || echo CPU)), $precision"
rm -rf "$OUT/run"  # from an earlier quickstart; MLflow keeps its record
"$BIN/deepspeed" -q --num_gpus "$ranks" --master_port "$port" --module dstransformer \
  train toy --corpus "$OUT/corpus" --run "$OUT/run" --ds zero1 "$precision" --set batch.micro_batches="$ranks" \
  --resume never

say "3/4 translate the held-out sentences and score them"
mkdir -p "$OUT/held-out"
"$BIN/dst-prep" text "$OUT/corpus" --split test --src "$OUT/held-out/test.en" --tgt "$OUT/held-out/test.de" --overwrite
"$BIN/dst" evaluate "$OUT/run/bundle" --src "$OUT/held-out/test.en" --ref "$OUT/held-out/test.de" --json > "$OUT/scores.json"

say "4/4 translate one sentence"
echo "$SENTENCE"
echo "$SENTENCE" | "$BIN/dst" translate "$OUT/run/bundle"

bleu=$("$BIN/python" -c 'import json, sys; print(round(json.load(open(sys.argv[1]))["metrics"]["bleu"], 2))' "$OUT/scores.json")
say "done"
echo "BLEU $bleu on the held-out test set (none of its source sentences are in the training set)"
echo "run  $OUT/run (checkpoints, metrics.jsonl, bundle)"
echo "MLflow: $BIN/mlflow ui --backend-store-uri sqlite:///$PWD/$OUT/mlflow.db"
echo "        then open http://127.0.0.1:5000/#/experiments/1?workflowType=machine_learning"
