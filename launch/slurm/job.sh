# shellcheck shell=bash
# What the batch scripts share: a job step whose ranks find each other, and what a signal and an end mean. Sourced by
# them on the job's first node.

# The site's facts, then flags for srun: $srun_flags, and the program with its container: $program.
prepare_step() {
  # shellcheck source=launch/slurm/site.sh
  source "${LLM_DIST_SITE:-$here/site.sh}"
  site_prepare
  # The ranks' sockets are guarded by it; it stands in no argument and no file.
  LLM_DIST_LAUNCH_SECRET=$(od -An -vN32 -tx1 /dev/urandom | tr -d ' \n')
  export LLM_DIST_LAUNCH_SECRET
  # srun does not take these over by itself.
  [ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
  read -ra program <<<"$(site_container) $site_llm_dist"
  read -ra srun_flags <<<"--export=ALL --mpi=$site_mpi $site_srun_flags"
  interface=()
  [ -z "$site_interface" ] || interface=(--interface "$site_interface")
}

# run_step COMMAND…: the step, and its exit code in $code. This shell gets USR1 before the time limit and passes it on;
# with a cancelled job Slurm sends TERM to every process by itself. Rank 0 drains on either, the other ranks wait for it.
run_step() {
  stopped='' step='' early=''
  # Before the step, since what a signal does by default is to end this shell.
  trap 'stopped=USR1 trapped=1; if [ -n "$step" ]; then pass_usr1; else early=1; fi' USR1
  trap 'stopped=TERM trapped=1' TERM
  srun "${srun_flags[@]}" "${program[@]}" "$@" "${interface[@]}" &
  step=$!
  [ -z "$early" ] || pass_usr1
  # A trap ends the wait with a code that is not the step's. The shell keeps the code of a step that has ended since.
  trapped=1
  while [ -n "$trapped" ]; do
    trapped='' code=0
    wait "$step" || code=$?
  done
}

# The step may have ended by itself just now.
pass_usr1() { kill -USR1 "$step" 2>/dev/null || true; }

# put_back REASON: the job into the queue again; this shell ends with it.
put_back() {
  echo "$1: job $SLURM_JOB_ID goes back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
  # Slurm ends this shell; an end of its own now would count as the job's.
  sleep 300
}

# conclude CODE: what the end of a step means for the job. CODE: of a step after which there is nothing more to do,
# also when the time limit is near; "never" for a server.
conclude() {
  local restarts=${SLURM_RESTART_COUNT:-0}
  if [ "$stopped" = USR1 ] && [ "$code" != "$1" ]; then put_back "time limit"; fi
  # 70: the world failed (a rank died, a node went away); 137: the rank that died, killed.
  if { [ "$code" = 70 ] || [ "$code" = 137 ]; } && [ -z "$stopped" ] && [ "$restarts" -lt "$site_max_restarts" ]; then
    put_back "the world failed ($code), restart $((restarts + 1)) of $site_max_restarts"
  fi
  exit "$code"
}
