"""One rank of a world is killed or stopped: the others are out in time, and one line says what happened.

The default run takes a case of each kind; LLM_DIST_FULL=1 takes every rank × signal × phase × launcher mode.
"""
import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ranks"))
import harness  # noqa: E402
from harness import Exit, Server, our_lines  # noqa: E402

LIMIT_S = {signal.SIGKILL: 3.0, signal.SIGSTOP: 10.0}
# Where the launcher must not help: it neither ends the survivors nor the stopped rank.
RECOVERY = ["--enable-recovery"]
FLAGS = ["--kv-cache-memory-bytes", 400 << 20, "--max-model-len", 4096, "--max-num-batched-tokens", 512]
LINE = re.compile(r"^llm-dist: rank (\d+) failed: host (\S+), pid (\d+), device (\S+), phase (\w+): (.+)$")
PHASES = ("idle", "prefill", "decode", "loading")

# Two gigabytes of made-up weights: enough to be caught while loading.
SLOW_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float32", "bos_token_id": 1,
    "eos_token_id": 2}


def long_prompt(words):
    return " ".join(f"word{i % 97}" for i in range(words))


def completion(prompt, tokens):
    return {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        harness.needs_mpirun()
        cls.slow_model = tempfile.mkdtemp(prefix="llm-dist-slow-model-")
        (pathlib.Path(cls.slow_model) / "config.json").write_text(json.dumps(SLOW_CONFIG))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.slow_model)

    def start(self, phase, np, layout, recovery):
        harness.needs_serve()
        flags = [*FLAGS, *layout]
        model = harness.smollm()
        if phase == "loading":
            model = self.slow_model
            flags += ["--load-format", "dummy", "--tokenizer", harness.smollm()]
        return Server(np, model, flags, mpi_options=RECOVERY if recovery else [], record_exits=recovery)

    def reach(self, server, phase):
        """Returns the open stream, if the phase has one."""
        if phase == "loading":
            server.wait_listening()
            server.wait_log("ranks as TP")
            self.assertEqual(server.get("/livez")[0], 200)
            self.assertEqual(server.get("/readyz")[0], 503)
            return None
        server.wait_ready()
        if phase == "idle":
            time.sleep(0.5)
            return None
        if phase == "decode":
            stream = server.stream("/v1/completions", completion("Once upon a time", 3000))
            self.assertTrue(stream.started.wait(60), server.log())
            return stream
        # Several chunks of prompt, none of which gives a token yet.
        stream = server.stream("/v1/completions", completion(long_prompt(1200), 500))
        harness.wait_until(lambda: server.metric("steps_total") >= 1 or server.metric("num_requests_running") >= 1,
                           60, "the prompt runs")
        self.assertFalse(stream.started.is_set(), "the prompt was through too soon")
        return stream

    def check(self, rank, how, phase, recovery, np=3, layout=("--tp", 3)):
        with self.start(phase, np, layout, recovery) as server:
            stream = self.reach(server, phase)
            ranks = server.wait_ranks()
            took = self.strike(server, ranks, rank, how, recovery)
            log = server.log()
            self.check_line(log, rank, ranks[rank], phase)
            if stream is not None:
                stream.wait(30)
                self.assertFalse(stream.done)
                if rank != 0:
                    self.assertIsNotNone(stream.error(), f"{stream.failure} {stream.events[-1:]}\n{log}")
                    self.assertIn(f"rank {rank} failed", stream.error()["message"])
            self.assertEqual(server.leftovers(), [])
            print(f"  rank {rank} of {np} {how.name} in {phase}, "
                  f"{'recovery' if recovery else 'default'}: survivors out after {took:.2f} s", flush=True)

    def strike(self, world, ranks, rank, how, recovery):
        """Kills or stops a rank; every rank is out in time and not with 0. Returns how long the others took."""
        survivors = {r: Exit(pid) for r, pid in ranks.items() if r != rank}
        victim = Exit(ranks[rank])
        begin = time.monotonic()
        os.kill(ranks[rank], how)
        deadline = begin + LIMIT_S[how]
        late = [r for r, exit_ in survivors.items() if not exit_.within(deadline - time.monotonic())]
        took = time.monotonic() - begin
        self.assertEqual(late, [], f"ranks {late} are still there after {took:.1f} s:\n{world.log()}")
        if how == signal.SIGSTOP and recovery:
            # Nobody else ends it; when it goes on, it finds that the world is over.
            os.kill(ranks[rank], signal.SIGCONT)
        self.assertTrue(victim.within(10), f"rank {rank} is still there:\n{world.log()}")
        code = world.wait_end(10)
        if recovery:
            for r in survivors:
                self.assertNotEqual(world.exit_code(r), 0, world.log())
        else:
            self.assertNotEqual(code, 0, world.log())
        return took

    def check_line(self, log, rank, pid, phase):
        lines = our_lines(log)
        self.assertEqual(len(lines), 1, log)
        match = LINE.match(lines[0])
        self.assertIsNotNone(match, lines[0])
        self.assertEqual(int(match[1]), rank, lines[0])
        self.assertEqual(match[2], os.uname().nodename)
        self.assertEqual(int(match[3]), pid)
        self.assertEqual(match[4], "cpu")
        self.assertEqual(match[5], phase, lines[0])


class Quick(Case):
    def test_first_killed_in_decode(self):
        self.check(0, signal.SIGKILL, "decode", recovery=True)

    def test_middle_killed_in_decode(self):
        self.check(1, signal.SIGKILL, "decode", recovery=False)

    def test_last_killed_in_prefill(self):
        self.check(2, signal.SIGKILL, "prefill", recovery=True)

    def test_middle_killed_while_loading(self):
        self.check(1, signal.SIGKILL, "loading", recovery=False)

    def test_a_launchers_signal_around_a_death_is_not_the_cause(self):
        for signal_first in (True, False):
            with self.subTest(signal_first=signal_first):
                # The signal waits 0.4 s for a death: not enough once a busy machine holds up who dies or who sees it.
                for attempts_left in (2, 1, 0):
                    log, victim = self.signal_and_kill(signal_first)
                    try:
                        self.check_line(log, 1, victim, "loading")
                        break
                    except AssertionError:
                        if attempts_left == 0:
                            raise

    def signal_and_kill(self, signal_first):
        """What the world said to the end, and the pid of the rank 1 that was killed."""
        with self.start("loading", 3, ("--tp", 3), recovery=True) as server:
            self.reach(server, "loading")
            ranks = server.wait_ranks()
            blows = [(ranks[0], signal.SIGTERM), (ranks[1], signal.SIGKILL)]
            for pid, how in blows if signal_first else reversed(blows):
                with contextlib.suppress(ProcessLookupError):  # the first blow has ended it already
                    os.kill(pid, how)
                time.sleep(0.05)
            server.wait_end(10)
            return server.log(), ranks[1]

    def test_last_killed_when_idle(self):
        self.check(2, signal.SIGKILL, "idle", recovery=True)

    def test_last_stopped_in_decode(self):
        self.check(2, signal.SIGSTOP, "decode", recovery=True)

    def test_first_stopped_when_idle(self):
        self.check(0, signal.SIGSTOP, "idle", recovery=False)


class Generate(Case):
    """Commands without a server have clients of their own: who reads the terminal."""

    def check_generate(self, rank, how, recovery):
        arguments = ["generate", harness.smollm(), "--prompt", "Once upon a time", "--max-tokens", 3000, "--ignore-eos",
                     *FLAGS, "--tp", 3]
        with harness.World(3, arguments, mpi_options=RECOVERY if recovery else [], record_exits=recovery) as world:
            world.wait_log("weights:")
            harness.wait_until(lambda: world.log().partition("weights:")[2].partition("\n")[2], 60, "the text begins")
            ranks = world.wait_ranks()
            took = self.strike(world, ranks, rank, how, recovery)
            lines = our_lines(world.log())
            self.assertEqual(len(lines), 1, world.log())
            self.assertRegex(lines[0], rf"^llm-dist: rank {rank} failed: .* phase (prefill|decode):")
            self.assertEqual(world.leftovers(), [])
            print(f"  generate, rank {rank} {how.name}: survivors out after {took:.2f} s", flush=True)

    def test_killed_and_the_launcher_ends_the_others(self):
        self.check_generate(1, signal.SIGKILL, recovery=False)

    def test_stopped(self):
        self.check_generate(0, signal.SIGSTOP, recovery=True)


@unittest.skipUnless(harness.FULL, "LLM_DIST_FULL is not set")
class Full(Case):
    def test_two_stages_of_two(self):
        for rank, how, phase in [(3, signal.SIGKILL, "decode"), (2, signal.SIGSTOP, "prefill"), (0, signal.SIGKILL, "idle")]:
            with self.subTest(rank=rank, how=how.name, phase=phase):
                self.check(rank, how, phase, recovery=True, np=4, layout=("--tp", 2, "--pp", 2))


def add_matrix():
    for rank, how, phase, recovery in itertools.product((0, 1, 2), LIMIT_S, PHASES, (True, False)):
        def test(self, rank=rank, how=how, phase=phase, recovery=recovery):
            self.check(rank, how, phase, recovery)
        setattr(Full, f"test_rank_{rank}_{how.name}_{phase}_{'recovery' if recovery else 'default'}", test)


add_matrix()

if __name__ == "__main__":
    harness.main()
