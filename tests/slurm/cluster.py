"""A Slurm of several slurmd on this machine, for tests: its own configuration, ports, state and munged.

It needs root, because slurmd does. Nothing of it touches a Slurm that the machine may belong to.
"""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import harness


def needs_slurm():
    """A machine that cannot is a failure, not a skip."""
    if os.geteuid() != 0:
        raise AssertionError("slurmd needs root: run this test as root")
    for program in ("slurmctld", "slurmd", "munged", "srun"):
        if shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin") is None:
            raise AssertionError(f"{program} is not installed: scripts/deps.sh --test")


CONFIGURATION = """
ClusterName=llmdisttest
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmctldPort={control_port}
SlurmdParameters=config_overrides
SlurmctldParameters=node_reg_mem_percent=1
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool.%n
TmpFS={dir}/tmp.%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.%n.log
SlurmctldTimeout=30
SlurmdTimeout=20
KillWait=15
UnkillableStepTimeout=60
MinJobAge=600
JobRequeue=1
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverTimeLimit=0
"""


class Cluster:
    def __init__(self, nodes=4, cpus=4):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="llm-dist-slurm-"))
        self.dir.chmod(0o755)
        self.processes = {}
        self.names = [f"n{i + 1}" for i in range(nodes)]
        control_port, *node_ports = harness.free_ports(nodes + 1)
        lines = [f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} "
                 f"RealMemory=1000 State=UNKNOWN" for name, port in zip(self.names, node_ports)]
        self.conf = self.dir / "slurm.conf"
        self.conf.write_text(CONFIGURATION.format(dir=self.dir, control_port=control_port, nodes="\n".join(lines)))
        (self.dir / "state").mkdir()
        for name in self.names:
            (self.dir / f"spool.{name}").mkdir()
            (self.dir / f"tmp.{name}").mkdir()
        self.env = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}

    def __enter__(self):
        try:
            self.start_munge()
            self.start("slurmctld", ["slurmctld", "-D", "-f", str(self.conf)])
            for name in self.names:
                self.start_node(name)
            self.wait(lambda: self.run(["sinfo", "-h", "-N", "-o", "%N %T"]).stdout.count("idle") == len(self.names), 60,
                      "every node is idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.run(["scancel", "--full", "-u", "root"], check=False)
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(15)
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self, name, command):
        log = open(self.dir / f"{name}.out", "ab")
        self.processes[name] = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                start_new_session=True)

    def start_munge(self):
        key = self.dir / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        self.start("munged", ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.dir}/munge.socket",
                              f"--pid-file={self.dir}/munged.pid", f"--log-file={self.dir}/munged.log",
                              f"--seed-file={self.dir}/munged.seed"])
        self.wait((self.dir / "munge.socket").exists, 20, "munged listens")

    def start_node(self, name):
        self.start(name, ["slurmd", "-D", "-N", name, "-f", str(self.conf)])

    def kill_node(self, name):
        """As a node that loses its power: its slurmd and everything that it started."""
        spool = str(self.dir / f"spool.{name}")
        self.processes[name].kill()
        self.processes.pop(name).wait(10)
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:
                continue
            on_node = f"SLURMD_NODENAME={name}".encode() in environment
            if (on_node and f"SLURM_CONF={self.conf}".encode() in environment) or spool in command:
                os.kill(int(pid), signal.SIGKILL)

    def run(self, command, check=True, timeout=60, **more):
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=timeout, **more)
        if check and done.returncode != 0:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}\n{self.logs()}")
        return done

    def submit(self, *arguments, cwd=None, env=None):
        """sbatch; the job's id."""
        done = subprocess.run(["sbatch", "--parsable", *map(str, arguments)], env={**self.env, **(env or {})}, cwd=cwd,
                              capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise AssertionError(f"sbatch: {done.stdout}{done.stderr}")
        return done.stdout.strip().split(";")[0]

    def job(self, job_id):
        """{field: value} of scontrol show job."""
        text = self.run(["scontrol", "-o", "show", "job", job_id]).stdout
        return dict(field.split("=", 1) for field in text.split() if "=" in field)

    def wait_state(self, job_id, states, limit_s):
        return self.wait(lambda: self.job(job_id)["JobState"] in states and self.job(job_id), limit_s,
                         lambda: f"job {job_id} is one of {states}, not {self.job(job_id)}")

    def wait(self, condition, limit_s, what):
        deadline = time.monotonic() + limit_s
        while not (result := condition()):
            if time.monotonic() > deadline:
                said = what() if callable(what) else what
                raise AssertionError(f"not within {limit_s} s: {said}\n{self.logs()}")
            time.sleep(0.05)
        return result

    def logs(self):
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}"
                         for path in sorted(self.dir.glob("*.log")) + sorted(self.dir.glob("*.out")))
