"""The trace of a pipeline: every rank's steps are there, and the stages work at the same time."""
import json
import pathlib
import re
import signal
import tempfile
import time
import unittest

import harness


def hold_up(world, rank):
    """Stops the rank again and again, a moment each time, until the world ends."""
    process = harness.Exit(world.wait_ranks()[rank])
    while world.process.poll() is None:
        for what in (signal.SIGSTOP, signal.SIGCONT):
            try:
                signal.pidfd_send_signal(process.fd, what)
            except ProcessLookupError:
                return
            time.sleep(0.2)


class Trace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        harness.needs_mpirun()

    def traced(self):
        """[{step: (begin, end)}] of the two ranks, and what was said of how busy they were, in percent; rank 1 is held up."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.json"
            arguments = ["bench", "throughput", harness.smollm(), "--pp", 2, "--num-prompts", 8, "--input-len", 64,
                         "--output-len", 32, "--max-model-len", 512, "--kv-cache-memory-bytes", 256 << 20, "--trace-file", path]
            with harness.World(2, arguments) as world:
                hold_up(world, 1)
                self.assertEqual(world.wait_end(300), 0, world.log())
                log = world.log()
            said = re.search(r"busy with steps.*: rank 0 ([\d.]+) %, rank 1 ([\d.]+) %\n", log)
            self.assertIsNotNone(said, log)
            events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
        return ([{e["args"]["step"]: (e["ts"], e["ts"] + e["dur"]) for e in events if e["pid"] == rank} for rank in (0, 1)],
                [float(share) for share in said.groups()])

    def test_stages_overlap(self):
        stages, busy = self.traced()
        for steps in stages:
            spans = sorted(steps.values())
            for (_, end), (begin, _) in zip(spans, spans[1:]):
                self.assertLessEqual(end, begin, "a rank works on two steps at once")
        self.assertEqual(set(stages[0]), set(stages[1]))
        self.assertGreater(len(stages[0]), 32)
        # One after the other, the first stage would never begin a step before the last one has ended the step before it.
        # On a busy machine they may take turns, but not while the last one is stopped.
        ahead = sum(begin < stages[1][step - 1][1] for step, (begin, _) in stages[0].items() if step - 1 in stages[1])
        print(f"  {len(stages[0])} steps; the first stage went ahead of {ahead}")
        self.assertGreaterEqual(ahead, 3)
        for steps, said in zip(stages, busy):
            first, last = min(begin for begin, _ in steps.values()), max(end for _, end in steps.values())
            begin, end = first + (last - first) / 10, last - (last - first) / 10
            inside = sum(max(0, min(end, e) - max(begin, b)) for b, e in steps.values())
            self.assertAlmostEqual(said, 100 * inside / (end - begin), delta=0.1)


if __name__ == "__main__":
    harness.main()
