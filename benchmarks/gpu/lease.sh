#!/usr/bin/env bash
# What to run on a GPU that is there for fifteen minutes, its start included.
#   benchmarks/gpu/lease.sh 1          does it work: tests, training in every precision, resuming, BLEU, one speed; at most 345 s
#   benchmarks/gpu/lease.sh 2          how fast is it, and why: profiles, attention, decoding, losses; at most 320 s
#   benchmarks/gpu/lease.sh --list 1   print its parts: name, seconds at most, command
# Each part has a limit, none starts after the deadline, and one that fails stops no other. After each, $OUT (./gpu-lease) has a
# new summary-N.txt and, in results-N.tar.gz, all that was printed. Corpora and runs go to $LEASE_WORK. Wheels in .whl
# (benchmarks/gpu/collect_wheels.sh) are installed to $LEASE_SITE first. $PYTHON is the interpreter. LEASE_SMOKE=1 rehearses the
# same commands on a CPU, with tiny sizes and ten times the time; LEASE_SECONDS is another deadline.
set -uo pipefail
OUT=$(realpath -m "${OUT:-gpu-lease}")
cd "$(dirname "$0")/../.." || exit 2

usage() { echo "usage: benchmarks/gpu/lease.sh [--list] 1|2" >&2; exit 2; }
list=false
if [ "${1:-}" = --list ]; then list=true; shift; fi
script=${1:-}
case "$script" in 1) deadline=345 ;; 2) deadline=320 ;; *) usage ;; esac
smoke=${LEASE_SMOKE:-}
[ -n "$smoke" ] && deadline=$((10 * deadline))
SECONDS=0
END=${LEASE_SECONDS:-$deadline}
UNTIL=$END  # when the parts that run now have ended

WORK=$(realpath -m "${LEASE_WORK:-/tmp/gpu-lease}")
SITE=${LEASE_SITE:-$WORK/site}
LOGS=$WORK/logs-$script
if [ -z "${PYTHON:-}" ]; then PYTHON=python3; [ -x .venv/bin/python ] && PYTHON=.venv/bin/python; fi
export PYTHON PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 MLFLOW_DISABLE_TELEMETRY=true
export DST_CPU_KERNELS=${DST_CPU_KERNELS:-0}  # no minute of g++ for the few tensors on the CPU
if [ -n "$smoke" ]; then export DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1; fi  # threads only compete for tiny sizes

# Rewrites the summary and the archive, both whole at any moment.
publish() {
  (
    flock 9
    {
      echo "script $script, $SECONDS of $END s"
      printf '%-22s %7s %5s  %s\n' part status s 'last line'
      while IFS=$'\t' read -r name status seconds; do
        last=$(grep -v '^[[:space:]]*$' "$LOGS/$name.txt" 2>/dev/null | tail -n 1 | cut -c 1-150)
        printf '%-22s %7s %5s  %s\n' "$name" "$status" "$seconds" "$last"
      done < "$LOGS/parts.tsv"
    } > "$WORK/summary.partial" && mv "$WORK/summary.partial" "$OUT/summary-$script.txt"
    tar -C "$WORK" -czf "$WORK/results.partial" --exclude='*.json.gz' "logs-$script" 2>/dev/null
    mv "$WORK/results.partial" "$OUT/results-$script.tar.gz"
  ) 9> "$WORK/publish.lock"
}

# part NAME SECONDS COMMAND...: run a command with a limit, or list it. Returns its status. After SIGINT pytest reports what has
# failed, and the benchmark of whole updates ends the process of its case.
part() {
  local name=$1 limit=$2 began=$SECONDS left=$((UNTIL - SECONDS)) status=skipped
  shift 2
  if $list; then printf '%s\t%s\t%s\n' "$name" "$limit" "$(printf '%q ' "$@")"; return 0; fi
  [ -n "$smoke" ] && limit=$((10 * limit))
  if [ "$left" -ge 8 ]; then
    [ "$limit" -gt $((left - 6)) ] && limit=$((left - 6))
    timeout --signal=INT --kill-after=4 "$limit" "$@" > "$LOGS/$name.txt" 2>&1 < /dev/null
    status=$?
  fi
  printf '%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - began))" | tee -a "$LOGS/parts.tsv"
  publish
  [ "$status" = 0 ]
}

# A part, or several one after the other, while others run.
beside() { if $list; then "$@"; else "$@" & fi; }

tiny=()
[ -n "$smoke" ] && tiny=(--smoke)
bench() { local name=$1 limit=$2; shift 2; part "$name" "$limit" "$PYTHON" -m benchmarks "$@" --json "$LOGS/$name.json"; }

# measure NAME SECONDS OPTIONS...: cases of the benchmark of whole updates, which ends before the limit.
measure() {
  local name=$1 limit=$2 backend=varlen
  shift 2
  [ -n "$smoke" ] && backend=padded
  bench "$name" "$limit" gpu "${tiny[@]}" --backends "$backend" --minutes "$(awk "BEGIN {print ($limit ${smoke:+* 10} - 5) / 60}")" "$@"
}
updates() {  # NAME SECONDS MODEL MICRO-BATCHES OPTIONS...
  local name=$1 limit=$2 model=$3 micro_batches=$4
  shift 4
  measure "$name" "$limit" --models "$model" --acts train --micro-batches "$micro_batches" "$@"
}

# train NAME SECONDS RUN STAGE PRECISION UPDATES OPTIONS...: a small model without dropout, for its losses.
SMALL=(model.d_model=64 model.d_ff=128 model.num_heads=2 model.d_k=32 model.d_v=32 model.dropout=0.0
  batch.src_tokens=2000 batch.tgt_tokens=2000 batch.micro_batches=2 schedule.warmup_steps=200 training.log_every=1
  validation.every=0 validation.final_sentences=8 checkpoint.every_updates=0 checkpoint.average_last=1
  decoding.beam_size=1 decoding.max_extra_tokens=2 tracking.enabled=false)
train() {
  local name=$1 limit=$2 run=$3 stage=$4 precision=$5 updates=$6 status
  shift 6
  part "$name" "$limit" "$PYTHON" -m dstransformer train toy --corpus "$WORK/toy" --run "$WORK/runs/$run" \
    --ds "zero$stage" "$precision" --set "${SMALL[@]}" training.max_updates="$updates" "$@"
  status=$?
  $list || cp "$WORK/runs/$run/metrics.jsonl" "$LOGS/trace-$run.jsonl" 2>/dev/null
  return "$status"
}
resumed() {  # fifteen updates, and in a new process fifteen more
  train "zero1-$1" 90 "zero1-$1" 1 "$1" 15
  train "zero1-$1-resume" 90 "zero1-$1" 1 "$1" 30
}
on_cpu() { DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES='' OMP_NUM_THREADS=4 train cpu-fp32 120 cpu-fp32 1 fp32 30; }
toy() {
  part toy-bf16 200 "$PYTHON" -m dstransformer train toy --corpus "$WORK/toy" --run "$WORK/runs/toy-bf16" --ds zero1 bf16 \
    --set tracking.enabled=false ${smoke:+training.max_updates=4 validation.final_sentences=4}
  $list || cp "$WORK/runs/toy-bf16/metrics.jsonl" "$LOGS/toy-bf16.jsonl" 2>/dev/null
}
on_gpu() {
  part tests 180 "$PYTHON" -m pytest tests/gpu -n "${WORKERS:-8}" --dist=worksteal -q -p no:cacheprovider \
    -m "gpu and not slow" -k "not reduces_the_loss and not train_alike"
}
versions() {
  nvidia-smi; nproc; free -g | head -2; df -h /tmp | tail -1; g++ --version | head -1
  for module in torch triton numpy pydantic pyarrow sentencepiece mlflow deepspeed; do
    "$PYTHON" -c "import time; t = time.time(); import $module as m; print('$module', m.__version__, f'{time.time() - t:.1f} s')" 2>&1 | tail -1
  done
  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "$PYTHON" -c 'if True:
    import torch
    print(torch.cuda.get_device_name(), torch.version.cuda, torch.backends.cudnn.version(), torch.cuda.nccl.version())
    torch.zeros(1, device="cuda")
    print("allocator", torch.cuda.memory._snapshot().get("allocator_settings"))'
  true
}
export -f versions

first() {
  # Side by side: what needs no quiet machine. PyTorch compiles about 50 functions for the tests.
  UNTIL=$((END - 110))
  beside part versions 100 bash -c versions
  beside on_gpu
  OMP_NUM_THREADS=4 part corpus 90 "$PYTHON" -m data_prep build --source toy --valid-size 500 \
    --out "$WORK/toy" --overwrite
  export OMP_NUM_THREADS=2
  beside toy
  beside on_cpu
  beside part threads 60 bash -c 'sleep 25; ps -eLo pcpu,pid,comm --sort=-pcpu | head -40'  # is one of NCCL's busy?
  local runs=()
  for precision in fp32 bf16 fp16; do beside resumed "$precision"; runs+=("${!:-}"); done
  $list || wait "${runs[@]}"
  beside train whole-bf16 90 whole-bf16 1 bf16 30
  beside train zero0-bf16 90 zero0-bf16 0 bf16 30
  beside train zero2-fp16 90 zero2-fp16 2 fp16 30
  beside train zero3-bf16 90 zero3-bf16 3 bf16 30
  beside train padded-bf16 90 padded-bf16 1 bf16 30 training.attention_backend=padded
  $list || wait
  unset OMP_NUM_THREADS
  UNTIL=$END
  part traces 20 "$PYTHON" -m benchmarks gpu-traces "$LOGS" "${tiny[@]}"
  # Alone on the device.
  updates base 60 base 1 --precisions bf16 --rounds 3
  bench kernels 40 gpu-kernels "${tiny[@]}"
}

second() {
  updates base-1 60 base 1 --precisions bf16 --rounds 5 --profile "$LOGS/profile"
  $list || find "$LOGS/profile" -name '*train-base*.json.gz' -size -15M -exec cp {} "$OUT/trace-base.json.gz" \;
  updates big-1 60 big 1 --precisions bf16 --rounds 3 --profile "$LOGS/profile"
  bench attention 40 gpu-attention "${tiny[@]}"
  measure decode 40 --models base --acts decode --precisions bf16 --rounds 2 --profile "$LOGS/profile"
  bench loss 40 gpu-loss "${tiny[@]}"
  updates bare-1 40 base 1 --precisions bf16 --rounds 3 --loops bare
  updates base-8 45 base 8 --precisions bf16 --rounds 2
  updates zero0-1 40 base 1 --precisions bf16 --rounds 3 --stage 0
  updates fp16-1 40 base 1 --precisions fp16 --rounds 2
}

if ! $list; then
  mkdir -p "$OUT" "$LOGS" "$WORK/runs"
  : > "$LOGS/parts.tsv"
  if compgen -G ".whl/*.whl" > /dev/null; then
    [ -e "$SITE/.complete" ] || { part wheels 60 "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir \
      --upgrade --target "$SITE" .whl/*.whl && touch "$SITE/.complete"; }
    export PYTHONPATH="$PWD:$SITE:$PYTHONPATH"
  fi
fi
if [ "$script" = 1 ]; then first; else second; fi
$list && exit 0
publish
cat "$OUT/summary-$script.txt"
for name in traces base base-1 big-1 attention loss; do
  [ -e "$LOGS/$name.txt" ] && echo "--- $name" && tail -n 45 "$LOGS/$name.txt" | cut -c 1-170
done | head -c 9000
! cut -f 2 "$LOGS/parts.tsv" | grep -qvx 0
