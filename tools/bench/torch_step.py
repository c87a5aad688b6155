"""One rank of a training run in PyTorch that takes steps when told: the peer in step.py.

Started by step.py, or by tools/gpu/kit, with the torchrun environment. Reads `NUMBER` or `check NUMBER`
from a line of standard input, takes that many steps, and rank 0 answers with one line of JSON on standard
output. `check` also sums up the gradient norms in float64: PyTorch's own, in float32, is 6e-4 off for the
38 million elements of GPT-2's token table. On a GPU steps are enqueued without waiting for them, and
times are of its own clock; `peak_bytes` is what PyTorch took of its memory, on a CPU the process of the
host's.
"""

import argparse
import contextlib
import json
import os
import pathlib
import resource
import sys
import time

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist

import torch_models


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", required=True)  # JSON: the sections of `config print`.
    parser.add_argument("--initial", required=True)  # Directory with model.safetensors.
    parser.add_argument("--tokens", required=True)  # .npy
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--wrapper", choices=["none", "fsdp2", "ddp"], default="none")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--channels-last", action="store_true", help="of images and convolutions")
    parser.add_argument("--bf16", choices=["autocast", "casts", "policy"],
                        help="compute in bf16 on fp32 parameters, which are updated")
    parser.add_argument("--experts", choices=["eager", "grouped_mm"], default="eager",
                        help="of a mixture: in a loop, or all in one call")
    parser.add_argument("--peft", help="LoRA over a base in this form (torch_lora.py)")
    return parser.parse_args()


def load(model, directory):
    """The Hugging Face file's weights, turned where it keeps them the other way round."""
    if hasattr(model, "load"):
        model.load(directory)
        return
    file = safetensors.torch.load_file(pathlib.Path(directory) / "model.safetensors")
    state = {}
    for name, _ in model.named_parameters():
        tensor = file[model.file_name(name)].float()
        state[name] = tensor.t().contiguous() if name.endswith(model.TRANSPOSED) else tensor
    model.load_state_dict(state)


def make_optimizer(model, settings):
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if p.dim() > 1],
               "weight_decay": settings["weight_decay"]},
              {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0}]
    keywords = dict(lr=settings["lr"], betas=tuple(settings["betas"]), eps=settings["eps"])
    return torch.optim.AdamW([g for g in groups if g["params"]], fused=True, **keywords)


class Casts(torch.nn.Module):
    """A model whose parameters are cast to bf16 in every forward pass, where torch.compile sees it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        cast = {name: p.to(torch.bfloat16) for name, p in self.model.named_parameters()}
        return torch.func.functional_call(self.model, cast, inputs)


def main():
    args = arguments()
    recipe = json.loads(pathlib.Path(args.recipe).read_text())
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Keeps what libraries print out of the answers.

    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("highest")  # fp32, not bf16 or TF32 behind our back.
    device = torch.device(args.device)
    if args.peft:
        import torch_lora  # Needs more than torch.
        model = torch_lora.Lora(args.initial, args.peft, **recipe["model"]["lora"])
    else:
        with device:
            model = torch_models.make(recipe["model"], args.experts)
        load(model, args.initial)
    if args.channels_last:
        model.to(memory_format=torch.channels_last)
    parameters = sum(p.numel() for p in model.parameters())

    if args.wrapper != "none":
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    if args.wrapper == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        mesh = init_device_mesh(args.device, (world,))
        policy = MixedPrecisionPolicy()
        if args.bf16 == "policy":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks():
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    step_model = Casts(model) if args.bf16 == "casts" else model
    if args.compile:
        if args.wrapper == "fsdp2":  # FSDP2's authors advise a graph for each block.
            for block in model.blocks():
                block.compile()
        else:
            step_model.compile()
    if args.wrapper == "ddp":
        from torch.nn.parallel import DistributedDataParallel
        step_model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = make_optimizer(model, recipe["optimizer"])

    # Samples in order, as ours reads them with data.shuffle: false. Rank r of a global batch has the
    # sequences of ours: which rank computes what does not change the mean.
    length = recipe["data"]["seq_len"]
    micro, total = recipe["train"]["micro_batch_size"], recipe["train"]["global_batch_size"]
    rounds = total // (micro * world)
    if rounds * micro * world != total:
        raise SystemExit(f"global_batch_size {total} is no multiple of {micro} x {world}")
    if hasattr(model, "read_data"):
        tensors = [t.to(device) for t in model.read_data(args.initial, args.channels_last)]
        samples = len(tensors[0])
    else:
        tokens = torch.from_numpy(np.load(args.tokens).astype(np.int64))
        samples = (len(tokens) - 1) // length
    clip = recipe["train"]["grad_clip"]

    def batch(step, micro_step):
        first = step * total + (micro_step * world + rank) * micro
        rows = [(first + i) % samples for i in range(micro)]
        if hasattr(model, "read_data"):
            return [t[rows] for t in tensors]
        window = torch.stack([tokens[row * length : (row + 1) * length + 1] for row in rows])
        window = window.to(device)
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()

    def exact_norm():
        total = torch.zeros((), dtype=torch.float64, device=device)
        for p in model.parameters():
            if p.grad is None:
                continue  # Frozen.
            grad = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
            total += grad.double().square().sum()
        if args.wrapper == "fsdp2":
            dist.all_reduce(total)
        return total.sqrt().item()

    def train_step(step, check):
        optimizer.zero_grad(set_to_none=True)
        loss_sum = torch.zeros((), device=device)
        for m in range(rounds):
            last = m == rounds - 1
            hold = (step_model.no_sync() if args.wrapper == "ddp" and not last
                    else contextlib.nullcontext())
            with hold:
                with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16 == "autocast"):
                    loss = step_model(*batch(step, m)) / rounds
                loss.backward()
            loss_sum += loss.detach()
        norm = exact_norm() if check else None
        if clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip, foreach=True)
        optimizer.step()
        if hasattr(model, "update_tables"):
            model.update_tables(recipe["optimizer"]["lr"])
        if world > 1:
            dist.all_reduce(loss_sum)
        return loss_sum / world, norm

    def now():
        if args.device == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(begin, end):
        return end - begin if args.device == "cpu" else begin.elapsed_time(end) * 1e-3

    def answer(record):
        if rank == 0:
            answers.write(json.dumps(record) + "\n")

    answer({"parameters": parameters, "torch": torch.__version__})
    step = 0
    for line in sys.stdin:
        *check, count = line.split()
        times, losses, norms = [now()], [], []
        for _ in range(int(count)):
            loss, norm = train_step(step, bool(check))
            times.append(now())
            losses.append(loss)
            norms.append(norm)
            step += 1
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if args.device == "cuda":
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_reserved()
        answer({"seconds": [between(a, b) for a, b in zip(times, times[1:])],
                "losses": [loss.item() for loss in losses], "grad_norms": norms,
                "peak_bytes": peak})
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
