"""Measuring programs against each other by turns: what step.py and comm.py share.

All participants are started once and stay warm. One works at a time, for a short turn, while the
others block or are stopped; the order is reversed every round, so that a drift of the machine's
speed falls on all alike. A participant is compared with the first one of the same round.
"""

import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

FIRST_ANSWER_S = 900  # torch.compile and the first step of the slowest participant.


def raise_priority():
    """Puts this program before everything else on the machine, and what it starts just below."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(6))
    except PermissionError:
        sys.exit("--priority needs the right to use real-time scheduling (root, or CAP_SYS_NICE)")


def run_in_directory(args, run):
    """Calls run(args, a new directory that ends with it), with the priority that was asked for."""
    if args.priority:
        raise_priority()
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as directory:
        run(args, pathlib.Path(directory))


def start(command, priority, environment=None, **keywords):
    if priority:
        command = ["chrt", "-r", "5", *command]
    command = ["setpriv", "--pdeathsig", "KILL", *command]  # Nothing stays behind, stopped or not.
    return subprocess.Popen([str(part) for part in command], env={**os.environ, **(environment or {})},
                            start_new_session=True, **keywords)


def peak_bytes(process):
    """The largest resident size the process has had (VmHWM)."""
    with open(f"/proc/{process.pid}/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {process.pid} has ended")


def log_tail(path, lines=15):
    try:
        with open(path, errors="replace") as log:
            return "".join(log.readlines()[-lines:])
    except OSError:
        return ""


class Participant:
    """`name`, and `tokens` of a step, or any unit of work: rates are in it."""

    def start(self):
        raise NotImplementedError

    def warm_up(self):
        raise NotImplementedError

    def turn(self):
        """Seconds of each step of a turn."""
        raise NotImplementedError

    def peak(self):
        """Bytes: the sum over its processes."""
        raise NotImplementedError

    def stop(self):
        raise NotImplementedError


class LineProcesses:
    """Processes that read a line, work, and answer with a line of JSON: all, or the first alone."""

    def __init__(self, commands, priority, log, environments=None):
        self.log = log
        self.processes = []
        with open(log, "wb") as errors:
            for i, command in enumerate(commands):
                self.processes.append(start(
                    command, priority, environments[i] if environments else None,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors))

    def tell(self, line):
        for process in self.processes:
            try:
                process.stdin.write(f"{line}\n".encode())
                process.stdin.flush()
            except BrokenPipeError:
                self.fail()

    def ask(self, line):
        """Sends the line to all; returns the answer of the first."""
        self.tell(line)
        return self.answer()

    def ask_all(self, line):
        self.tell(line)
        return [self.answer(i) for i in range(len(self.processes))]

    def answer(self, index=0):
        line = self.processes[index].stdout.readline()
        if not line:
            self.fail()
        return json.loads(line)

    def fail(self):
        for process in self.processes:
            process.kill()
        sys.exit(f"a participant has ended; its log {self.log} ends with\n{log_tail(self.log)}")

    def peak(self):
        return sum(peak_bytes(process) for process in self.processes)

    def stop(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Stoppable:
    """Processes that work on by themselves, and stand still between turns."""

    def __init__(self, processes):
        self.processes = processes

    def go(self):
        for process in self.processes:
            process.send_signal(signal.SIGCONT)

    def hold(self):
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)

    def kill(self):
        for process in self.processes:
            process.kill()  # Also while it is stopped.
            process.wait()


def spread(values):
    """Median, quartiles, smallest and largest."""
    ordered = sorted(values)
    if len(ordered) == 1:
        quartiles = [ordered[0]] * 3
    else:
        quartiles = statistics.quantiles(ordered, n=4, method="inclusive")
    return {"median": statistics.median(ordered), "q1": quartiles[0], "q3": quartiles[2],
            "min": ordered[0], "max": ordered[-1], "n": len(ordered)}


def alternate(participants, rounds, progress=True):
    """rounds lists, one for each participant, of the seconds of its steps in each turn."""
    times = [[] for _ in participants]
    for r in range(rounds):
        order = range(len(participants)) if r % 2 == 0 else reversed(range(len(participants)))
        for i in order:
            times[i].append(participants[i].turn())
        if progress:
            shown = "  ".join(f"{p.name} {statistics.median(t[-1]):.4g}"
                              for p, t in zip(participants, times))
            print(f"round {r + 1}/{rounds}, s: {shown}", file=sys.stderr, flush=True)
    return times


def wait_for(condition, timeout_s, what, poll_s=0.002):
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{what}: nothing in {timeout_s} s")
        time.sleep(poll_s)
