#!/usr/bin/env python3
"""launch/slurm/job.sh alone: a signal while a step starts, and a step that ends while one is handled. It needs no Slurm."""
import concurrent.futures
import contextlib
import os
import pathlib
import signal
import subprocess
import unittest

JOB = pathlib.Path(__file__).resolve().parents[2] / "launch/slurm/job.sh"
# A step that ends with 7 on USR1, which the job's shell gets as soon as the step runs. That shell takes its time over
# traps, and its `kill` returns once the step has ended, so that the trap always outlives it.
SCRIPT = f"""
set -euo pipefail
source {JOB}
program=() srun_flags=() interface=()
srun() {{
  builtin trap 'exit 7' USR1
  builtin kill -USR1 $$
  while :; do sleep 0.02; done
}}
trap() {{
  sleep 0.05
  builtin trap "$@"
}}
kill() {{
  builtin kill "$@" || return 1
  while [ "$1" != -0 ] && builtin kill -0 "$step" 2>/dev/null; do sleep 0.02; done
}}
run_step serve
echo "code $code stopped $stopped"
builtin kill -USR1 $$
echo "still there"
"""
JOBS = 32


def run_job():
    """The lines that the job's shell prints, and its exit code."""
    with subprocess.Popen(["bash", "-c", SCRIPT], stdout=subprocess.PIPE, text=True, start_new_session=True) as job:
        try:
            return job.communicate(timeout=30)[0].splitlines(), job.returncode
        finally:
            # The step, too: should its shell have ended without it, it would run for ever.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)


class Job(unittest.TestCase):
    def test_the_code_is_the_steps_whenever_the_signal_comes(self):
        # Side by side, some shells have not gone on behind the step's start when the signal comes.
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            for lines, _ in [job.result() for job in [pool.submit(run_job) for _ in range(JOBS)]]:
                self.assertEqual(lines[0], "code 7 stopped USR1")

    def test_a_signal_after_the_steps_end_does_not_end_the_job(self):
        lines, code = run_job()
        self.assertEqual((lines[1:], code), (["still there"], 0))


if __name__ == "__main__":
    unittest.main()
