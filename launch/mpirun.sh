#!/usr/bin/env bash
# Starts llm-dist on the hosts of a file, with the environment that MPI, NCCL and UCX need on every host.
# usage: launch/mpirun.sh HOSTFILE COMMAND [arguments of llm-dist]
# HOSTFILE: a line a host, "node1 slots=8". LLM_DIST names the program (llm-dist), MPIRUN_FLAGS adds to mpirun's flags.
set -euo pipefail
if [ $# -lt 2 ] || [ ! -r "$1" ]; then
  sed -n '2,4s/^# \?//p' "$0" >&2
  exit 2
fi
hosts=$1
shift

# mpirun gives remote ranks no variable that is not named.
forwarded=()
while IFS='=' read -r name _; do
  case $name in
    NCCL_* | UCX_* | LLM_DIST_* | CUDA_VISIBLE_DEVICES | LD_LIBRARY_PATH | PATH) forwarded+=(-x "$name") ;;
  esac
done < <(env)
read -ra more <<<"${MPIRUN_FLAGS:-}"
# llm-dist divides a host's CPUs between its ranks by itself.
exec mpirun --hostfile "$hosts" --map-by slot --bind-to none "${forwarded[@]}" "${more[@]}" "${LLM_DIST:-llm-dist}" "$@"
