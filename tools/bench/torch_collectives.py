"""One rank of torch.distributed over Gloo whose collectives are timed: the peer in comm.py.

    torch_collectives.py BATCHES SIZE ...      with the torchrun environment

Reads a number of rounds a line from standard input; rank 0 answers each round with a line of JSON.
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist


def measure(batches, size, world):
    n = size // 4 // world
    a, b = torch.zeros(n * world), torch.zeros(n * world)
    calls = {
        "all_gather": lambda: dist.all_gather_into_tensor(a, b[:n]),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(b[:n], a),
        "all_reduce": lambda: dist.all_reduce(a),
        "all_to_all": lambda: dist.all_to_all_single(b, a),
        "broadcast": lambda: dist.broadcast(a, 0),
    }
    times = []
    for name, call in calls.items():
        count = min(1000, max(1, (16 << 20) // (4 * n * world)))
        seconds = []
        for batch in range(batches + 1):
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            seconds.append((time.perf_counter() - begin) / count)
        times.append({"collective": name, "bytes": 4 * n * world,
                      "seconds": statistics.median(seconds[1:])})  # The first warms up.
    return times


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    batches, sizes = int(sys.argv[1]), [int(size) for size in sys.argv[2:]]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for line in sys.stdin:
        for _ in range(int(line)):
            times = [t for size in sizes for t in measure(batches, size, dist.get_world_size())]
            if dist.get_rank() == 0:
                answers.write(json.dumps({"collectives": times, "torch": torch.__version__}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
