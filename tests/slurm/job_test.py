#!/usr/bin/env python3
"""launch/slurm/job.sh alone: the code of a step that ends while a signal is handled. It needs no Slurm."""
import pathlib
import signal
import subprocess
import unittest

JOB = pathlib.Path(__file__).resolve().parents[2] / "launch/slurm/job.sh"
# A step that ends with 7 on USR1. The `kill` that passes the signal on returns once the step has ended, so that the trap
# always outlives it.
SCRIPT = f"""
set -euo pipefail
source {JOB}
program=() srun_flags=() interface=()
srun() {{
  trap 'exit 7' USR1
  echo up
  while :; do sleep 0.02; done
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


class Job(unittest.TestCase):
    def run_until_usr1(self):
        """The lines that the job's shell prints, and its exit code."""
        with subprocess.Popen(["bash", "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as job:
            try:
                self.assertEqual(job.stdout.readline(), "up\n")
                job.send_signal(signal.SIGUSR1)
                return job.communicate(timeout=30)[0].splitlines(), job.returncode
            finally:
                job.kill()

    def test_the_code_is_the_steps_also_where_it_ends_within_the_trap(self):
        lines, _ = self.run_until_usr1()
        self.assertEqual(lines[0], "code 7 stopped USR1")

    def test_a_signal_after_the_steps_end_does_not_end_the_job(self):
        lines, code = self.run_until_usr1()
        self.assertEqual((lines[1:], code), (["still there"], 0))


if __name__ == "__main__":
    unittest.main()
