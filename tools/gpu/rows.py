"""The base of the parts of tools/gpu/kit: programs that end in time, recipes, and rows."""

import contextlib
import ctypes
import functools
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).absolute().parent
# In a kit it lies beside this file.
BENCH = HERE / "bench" if (HERE / "bench").exists() else HERE.parent / "bench"

DATA = "data: {train: {source: synthetic}, valid: null, seq_len: 64}\n"
MODELS = {
    "gpt2": "model: {family: gpt2, hidden_size: 128, num_hidden_layers: 2, num_attention_heads: 4,\n"
            "  vocab_size: 1021, max_position_embeddings: 64}\n" + DATA,
    "qwen2": "model: {family: llama, hidden_size: 896, intermediate_size: 1216, num_hidden_layers: 2,\n"
             "  num_attention_heads: 14, num_key_value_heads: 2, head_dim: 64, attention_bias: true,\n"
             "  vocab_size: 1021, max_position_embeddings: 64}\n" + DATA,
    "t5": "model: {family: t5, gated_mlp: true, hidden_size: 128, intermediate_size: 256,\n"
          "  num_hidden_layers: 2, num_attention_heads: 4, head_dim: 32, vocab_size: 1021}\n" + DATA,
    "vit": "model: {family: vit, image_size: 32, patch_size: 8, hidden_size: 128, intermediate_size: 256,\n"
           "  num_hidden_layers: 2, num_attention_heads: 4, num_labels: 10}\n"
           "data: {train: {source: synthetic}, valid: null}\n",
    "regnet": "model: {family: regnet, image_size: 32, num_labels: 10, embedding_size: 16,\n"
              "  hidden_sizes: [32, 64], depths: [1, 2], groups_width: 16}\n"
              "data: {train: {source: synthetic}, valid: null}\n",
    "dhen": "model: {family: dhen, dense_columns: 4, table_rows: [500, 40, 7], table_width: 16,\n"
            "  dense_vectors: 4, num_vectors: 10, num_hidden_layers: 2, num_attention_heads: 2,\n"
            "  cross_rank: 16, intermediate_size: 64}\n"
            "data: {train: {source: clicks, planted: 1000}, valid: null}\n",
}
# Those of a small run: on an emulated GPU a model is half a minute.
SMALL_MODELS = ("gpt2", "qwen2", "t5")
# Where two orders of the sums of a CPU stay within 1e-6 in 50 steps of fp32; at 3.0e-3 they are 1e-2
# apart, in "qwen2".
STEPS = "train: {steps: %d, micro_batch_size: 2, global_batch_size: 6}\nlog: {every: 1}\n" \
        "schedule: {name: constant}\noptimizer: {lr: %s}\n"
RATE = "3.0e-4"
# ReLUs in a row, of the models that have any. A value near 0 passes a ReLU on one
# device and not on the other: these models take smaller steps.
RELUS = {"regnet": 8, "dhen": 4}
RATE_OF_RELUS = "3.0e-5"
TINY_OPS = ["--batch", 1, "--seq", 8, "--hidden", 16, "--intermediate", 24, "--heads", 2, "--vocab", 40,
            "--seconds", 0]
# Micro-batches.
PRESETS = {"qwen2.5-0.5b": 16, "qwen2.5-1.5b": 16, "qwen2.5-3b": 8, "qwen2.5-7b": 4}


class OutOfTime(Exception):
    """This call's time is over: the row is for the next one."""


class TooLong(Exception):
    """`threads`: where those of the row's processes stood (stand_of)."""

    def __init__(self, text, threads):
        super().__init__(text)
        self.threads = threads


class Refused(Exception):
    """By the machine: it has not what the row asks for."""


class Ended(Exception):
    def __init__(self, code, out, err):
        said = (err.strip() or out.strip() or "no word").splitlines()
        how = f"signal {-code}" if code < 0 else f"exit {code}"
        super().__init__(f"{how}: {said[-1]}")
        self.code, self.said, self.out = code, said, out


def once(work):
    """`work` without arguments, called once: what it gives, or throws but for want of time, is for all
    rows that ask."""
    kept = []

    def ask():
        if not kept:
            try:
                kept.append((work(), None))
            except OutOfTime:
                raise
            except Exception as error:
                kept.append((None, error))
        result, error = kept[0]
        if error is not None:
            raise error
        return result
    return ask


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
LAST_WORDS_S = 5
MARK = "GPU_KIT_RUN"  # In the environment of all that a kit has started: which kit.


def end_with_kit():
    """A kit that is killed leaves nothing on the GPU."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def marked(mark):
    """The directories in /proc of what has this in its environment, in whatever session it is by now."""
    for environment in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in environment.read_bytes().split(b"\0"):
                yield environment.parent
        except OSError:
            pass  # It has ended, or is another user's.


def end_marked(mark):
    for process in marked(mark):
        with contextlib.suppress(OSError):
            os.kill(int(process.name), signal.SIGKILL)


def stand_of(process):
    """Process, thread and place in the kernel of each thread of a directory in /proc."""
    def read(path):
        try:
            return path.read_text().strip()
        except OSError:
            return "?"
    return [f"{process.name}/{thread.name} {read(process / 'comm')}/{read(thread / 'comm')}: "
            f"{read(thread / 'wchan')}, call {read(thread / 'syscall').split(' ')[0]}"
            for thread in sorted(process.glob("task/[0-9]*"))]


def nvidia_smi(query, *more):
    """The command that asks it about the first GPU."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", f"--id={gpu}", *more]


def gpu_name():
    """"" where nobody knows."""
    try:
        return subprocess.run(nvidia_smi("name"), capture_output=True, text=True, check=True,
                              timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


class Clock:
    """MHz of the GPU's multiprocessors, ten times a second, and the most it may have."""

    def __init__(self):
        self.mhz, self.most = [], 0

    def take(self, text):
        for line in text.splitlines():
            try:
                now, self.most = (int(word) for word in line.split(","))
            except ValueError:
                continue  # "[N/A]", or a line that the end cut.
            self.mhz.append(now)


class Kit:
    """The machine and the settings that parts work with; `args` are those of `kit run`."""

    def __init__(self, args):
        self.program, self.tests = str(args.program.absolute()), str(args.tests.absolute())
        self.python, self.small = args.python, args.small
        self.models = SMALL_MODELS if args.small else tuple(MODELS)
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="gpu_kit."))
        self.deadline = time.monotonic() + args.seconds
        # No row, and so no kernel that hangs, takes much of a call's time, or all of it.
        self.row_seconds = min(args.row_seconds, 0.97 * args.seconds)
        self.row_deadline = math.inf
        self.steps = 4 if args.small else 50
        self.runs = 0
        self.gpu = gpu_name()
        self.parts = {}  # All parts that have begun, by name, in this call or before.
        self.rows = []  # The rows of the part that is at work.

    def begin_row(self):
        self.row_deadline = time.monotonic() + self.row_seconds

    def call(self, *command, text=None, environment=None):
        """stdout of a program, which is ended with all that it started when time is over."""
        return self.finish(self.start(*command, text=text, environment=environment), text)

    def start(self, *command, text=None, environment=None):
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, cwd=HERE,
                                   stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
                                   env={**os.environ, MARK: str(self.scratch), **(environment or {})},
                                   start_new_session=True, preexec_fn=end_with_kit)
        process.name = os.path.basename(str(command[0]))
        return process

    def finish(self, process, text=None):
        """stdout of what start() has started. Throws Ended unless it returns 0."""
        end = min(self.deadline, self.row_deadline)
        try:
            out, err = process.communicate(text, timeout=max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            threads = [line for one in marked(self.scratch) for line in stand_of(one)]
            out, err = self.end(process)
            if end == self.deadline:
                raise OutOfTime from None
            said = f": {out.splitlines()[-1]}" if out else ""
            at = re.findall(re.escape(process.name) + r"\((\+0x\w+)\)", err)
            stood = f"; it stood at {' '.join(at)}" if at else ""
            raise TooLong(f"took longer than {self.row_seconds:.0f} s{said}{stood}", threads) from None
        if process.returncode != 0:
            raise Ended(process.returncode, out, err)
        return out

    def words_of(self, process):
        """All lines of what start() has started, when it has ended, however that is."""
        try:
            text = self.finish(process)
        except Ended as error:
            text = error.out + error.err
        return text.strip().splitlines() or ["(nothing)"]

    def end(self, process):
        """Ends it and all that it has started. Its last words: tests say on SIGTERM where they stand."""
        words = None
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            words = process.communicate(timeout=LAST_WORDS_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        end_marked(self.scratch)
        if words is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # The driver may keep it.
                words = process.communicate(timeout=LAST_WORDS_S)
        return [text.strip() for text in words or ("", "")]

    @contextlib.contextmanager
    def sm_clock(self):
        """A Clock, which has its samples behind the block: none where there is no nvidia-smi."""
        clock = Clock()
        try:
            smi = subprocess.Popen(nvidia_smi("clocks.sm,clocks.max.sm", "--loop-ms=100"),
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   env={**os.environ, MARK: str(self.scratch)}, preexec_fn=end_with_kit)
        except OSError:
            yield clock
            return
        try:
            yield clock
        finally:
            smi.kill()
            clock.take(smi.communicate()[0])

    def rows_of(self, part):
        """Those so far; none where the part has not begun."""
        return self.parts.get(part, {}).get("rows", [])

    def numbers_of(self, name, part=None):
        """Those of a row of this part, or of another one. Throws Refused unless it is fine, and of this
        GPU."""
        of = name if part is None else f"{part} {name}"
        for one in self.rows if part is None else self.rows_of(part):
            if one["name"] == name and one["status"] == "ok":
                if one["gpu"] != self.gpu:
                    raise Refused(f"{of} is of another GPU, {one['gpu']}")
                return one["numbers"]
        raise Refused(f"{of} is not fine, or not there")

    def fsdp(self, *arguments, environment=None):
        return self.call(self.program, *arguments, environment=environment)

    @functools.cache
    def torch(self):
        """Its version. Throws Refused."""
        try:
            version, gpu = self.call(self.python, "-c", "import torch; print(torch.__version__, "
                                     "torch.cuda.is_available())").split()
        except (Ended, OSError, ValueError) as error:
            raise Refused(f"no PyTorch: {error}") from None
        if gpu != "True":
            raise Refused(f"PyTorch {version} finds no GPU")
        return version

    def torch_seconds(self, tasks):
        """Seconds of each of the tasks of torch_ceilings.py."""
        self.torch()
        answers = json.loads(self.call(self.python, BENCH / "torch_ceilings.py", "--device", "cuda",
                                       text=json.dumps(tasks)))
        if len(answers) != len(tasks):
            raise RuntimeError(f"{len(answers)} answers to {len(tasks)} tasks")
        return answers

    def resolved(self, flags):
        """The recipe as the program resolves it."""
        self.torch()  # Its Python has a reader of YAML, too.
        return json.loads(self.call(self.python, "-c", "import json, sys, yaml; "
                                    "json.dump(yaml.safe_load(sys.stdin), sys.stdout)",
                                    text=self.fsdp("config", "print", *flags)))

    def recipe(self, model, steps=None):
        path = self.scratch / f"{model}.yaml"
        text = MODELS[model] + STEPS % (steps or self.steps, RATE_OF_RELUS if model in RELUS else RATE)
        if self.small:
            text = text.replace("896", "64").replace("1216", "96").replace("14,", "4,").replace(
                "head_dim: 64", "head_dim: 16").replace("seq_len: 64", "seq_len: 16").replace(
                    "hidden_size: 128", "hidden_size: 32").replace("1021", "61")
        path.write_text(text)
        return path

    def train(self, recipe, device, *settings, ranks=1, run=None, environment=None):
        """The run's directory."""
        self.runs += 1
        run = run or self.scratch / f"run{self.runs}"
        flags = ["--config", recipe, "--device", device, "--set", f"run.dir={run}"]
        for setting in settings:
            flags += ["--set", setting]
        if ranks > 1:
            flags = ["launch", "--nproc-per-node", ranks, "--"] + flags
        self.fsdp(*flags, environment=environment)
        return run

    def losses(self, *arguments, **options):
        return losses_of(self.train(*arguments, **options))


def records(run, kind="step"):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def losses_of(run):
    """The loss of each step, and the norm of its gradient."""
    return [(record["loss"], record["grad_norm"]) for record in records(run)]


# Rows have a status, a line of text and numbers; what has run is "ok" or "FAILED", what ended
# "crashed", and what the machine has not "refused".
def row(fine, text, **numbers):
    return {"status": "ok" if fine else "FAILED", "text": text, "numbers": numbers}


def fitting(work):
    """The result of `work`. A run that has too little memory here is refused."""
    try:
        return work()
    except Ended as error:
        if error.code != 3:
            raise
        raise Refused(error.said[0]) from None


def shape_of(kit, flags):
    """Flags of `bench ops`: the sizes of a recipe's micro-batch."""
    recipe = {name: int(value) for name, value in
              re.findall(r"^  (\w+): (\d+)$", kit.fsdp("config", "print", *flags), re.MULTILINE)}
    heads = recipe["num_attention_heads"]
    return ["--batch", recipe["micro_batch_size"], "--seq", recipe["seq_len"], "--heads", heads,
            "--hidden", heads * recipe["head_dim"], "--intermediate", recipe["intermediate_size"],
            "--vocab", recipe["vocab_size"]]


def settings(pairs):
    return [word for pair in pairs for word in ("--set", pair)]


def sizes(kit, most=len(PRESETS)):
    """Recipe flags of each size, of a few micro-batches a step."""
    if kit.small:
        yield "tiny", ["--config", kit.recipe("qwen2"), "--set",
                       "train={steps: 3, micro_batch_size: 1, global_batch_size: 2}"]
        return
    for preset, micro_batch in list(PRESETS.items())[:most]:
        yield preset, ["--config", BENCH / "qwen2.5.yaml", "--set", "model.preset=" + preset, "--set",
                       f"train={{steps: 6, micro_batch_size: {micro_batch}, "
                       f"global_batch_size: {4 * micro_batch}}}"]
