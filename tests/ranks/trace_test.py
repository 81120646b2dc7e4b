"""The trace of a pipeline: every rank's steps are there, and the stages work at the same time."""
import json
import pathlib
import tempfile
import unittest

import harness


def overlap(a, b):
    """Microseconds in which an interval of `a` and one of `b` run; each list is in order and free of overlaps."""
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


class Trace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        harness.needs_mpirun()

    def share_of_both_at_work(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.json"
            done = harness.run(["bench", "throughput", harness.smollm(), "--pp", 2, "--num-prompts", 8, "--input-len", 64,
                                "--output-len", 32, "--max-model-len", 512, "--kv-cache-memory-bytes", 256 << 20,
                                "--trace-file", path], np=2, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
        stages = []
        for rank in (0, 1):
            mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["pid"] == rank)
            for (_, end), (begin, _) in zip(mine, mine[1:]):
                self.assertLessEqual(end, begin, "a rank works on two steps at once")
            stages.append(mine)
        steps = [{e["args"]["step"] for e in events if e["pid"] == rank} for rank in (0, 1)]
        self.assertEqual(steps[0], steps[1])
        self.assertGreater(len(steps[0]), 32)
        busy = [sum(end - begin for begin, end in stage) for stage in stages]
        together = overlap(*stages)
        print(f"  {len(steps[0])} steps; busy {busy[0] / 1e3:.0f} and {busy[1] / 1e3:.0f} ms, both at once "
              f"{together / 1e3:.0f} ms ({100 * together / min(busy):.0f} %)")
        return together / min(busy)

    def test_stages_overlap(self):
        # One after the other they would share nothing; a busy machine may take a stage's core away.
        share = 0.0
        for _ in range(5):
            share = max(share, self.share_of_both_at_work())
            if share > 0.4:
                break
        self.assertGreater(share, 0.4)


if __name__ == "__main__":
    harness.main()
