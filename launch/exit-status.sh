#!/usr/bin/env bash
# Starts a launcher, and ends with the exit status of the training: torchrun and deepspeed turn every status into 1 or 0.
#
#     dst-exit-status torchrun --nproc-per-node 8 --module -- dstransformer train base --corpus … --run …
#
# 143 means: stopped before its end, run me again. The run writes its status into RUN/end.json as it ends. Stop signals
# are passed on to the launcher. pip installs this script as `dst-exit-status`.
set -u

case ${1:-} in
  '' | -h | --help)
    echo "usage: ${0##*/} LAUNCHER … dst train … --run RUN"
    echo "Runs a launcher such as torchrun or deepspeed and returns the exit status of the training."
    exit "$(($# == 0 ? 2 : 0))"
    ;;
esac

run=
for ((at = 1; at <= $#; at++)); do
  case ${!at} in
    --run) next=$((at + 1)) run=${!next-} ;;
    --run=*) run=${!at#--run=} ;;
    --dry-run | -h | --help) exec "$@" ;;
  esac
done
if [ -z "$run" ]; then
  echo "$0: the command has no --run RUN: name the launcher, and after it dst train with all its options" >&2
  exit 2
fi
recorded() { cat "$run/end.json" 2>/dev/null; }
is_new() { end=$(recorded) && [ -n "$end" ] && [ "$end" != "$before" ]; } # a run removes the old one as it starts

before=$(recorded)
"$@" &
launcher=$!
for signal in TERM USR1 HUP; do
  trap "kill -s $signal $launcher 2>/dev/null" "$signal"
done
trap : INT # the terminal sends it to the launcher too
while kill -s 0 "$launcher" 2>/dev/null; do wait "$launcher"; done
wait "$launcher"
status=$?

# A run records every end. On another node the file may take a moment to appear; a run whose launcher was killed saves first.
# deepspeed ends with 0 when a signal has killed its process on a node.
tries=$((status == 0 ? ${DST_EXIT_WAIT:-60} : 10)) # seconds
while ! is_new && [ $((tries--)) -gt 0 ]; do sleep 1; done
if is_new; then
  said=$(sed -n 's/^ *"status": \([0-9]*\),*$/\1/p' <<<"$end")
  if [ "$status" -eq 0 ] || [ "${said:-0}" -ne 0 ]; then status=${said:-1}; fi
elif [ "$status" -eq 0 ]; then
  echo "$0: $1 ended with status 0, but the training has not recorded its end in $run/end.json: was it killed?" >&2
  status=1
fi
exit "$status"
