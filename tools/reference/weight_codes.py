#!/usr/bin/env python3
"""Writes tests/fixtures/weight_codes/nf4.txt: bitsandbytes' codes of weights, on the CPU.

    pip install torch bitsandbytes==0.50.2
    tools/reference/weight_codes.py > tests/fixtures/weight_codes/nf4.txt

A line is a name and numbers in base 16; floats are bits of fp32, and four bytes of codes are a number,
the first byte its lowest. `values` are the sixteen values of nf4. Tensor I has the lines I.tensor (its
elements, its seed, 1 for bf16), I.x (its values, or none: value(i, seed)), I.codes and I.scales
(quantize_4bit with blocks of 64), I.decoded (dequantize_4bit; of some). Nested tensors have N.tensor,
N.codes (of their scales), N.maxima, N.mean and N.decoded, the scales that dequantize_4bit uses (of some).
"""

import numpy
import torch
from bitsandbytes import functional

BLOCK = 64
SIZES = (1, 2, 31, 63, 64, 65, 127, 129, 192, 255, 256, 257, 320, 511, 641, 1000)
NESTED = (300, 16384, 16385, 40001, 131072)  # Elements.


def mixed(index, seed):
    """A number of [-1, 1) for each index, exact in fp32."""
    word = (index * 2654435761 + numpy.uint64(seed * 40503 + 12345)) % (1 << 32)
    word = (word ^ (word >> numpy.uint64(15))) * 2246822519 % (1 << 32)
    return ((word >> numpy.uint64(16)).astype(numpy.float32) - numpy.float32(32768)) / numpy.float32(32768)


def formula(n, seed):
    """value(i, seed): products of two numbers, a power of two smaller from block to block."""
    index = numpy.arange(n, dtype=numpy.uint64)
    shift = (index // numpy.uint64(BLOCK) % numpy.uint64(5)).astype(numpy.int32)
    return numpy.ldexp(mixed(index, seed) * mixed(index, seed + 1), -shift)


def near(values, scale):
    """Each value times the scale, with the floats below and above it."""
    at = (values * numpy.float32(scale)).astype(numpy.float32)
    return numpy.concatenate([numpy.nextafter(at, numpy.float32(-9)), at,
                              numpy.nextafter(at, numpy.float32(9))])


def special():
    """Tensors of what a formula does not meet."""
    values = functional.get_4bit_type("nf4", device="cpu").numpy()
    ties = (values[1:] + values[:-1]) / numpy.float32(2)
    yield [0.0] * 70
    yield [0.5] * 64 + [0.0] * 64 + [-0.0, 0.25]
    yield [-3.0] * 65
    for scale in (1.0, 0.37, 2.9e-5, 711.0):
        short = [scale, *near(ties, scale)]
        yield short  # Divided by its maximum; whole blocks are multiplied by its reciprocal.
        yield [*short, *[-scale / 3] * (BLOCK - len(short))]
    for scale in (3.3e38, 1.1e-38, 9e-39, 2e-40, 1.4e-45):
        yield [scale * (i % 9 - 4) / 4 for i in range(BLOCK + 5)]
    yield [0.0] * 40 + [1e-30] + [0.0] * 60


def bits(values):
    return numpy.asarray(values, dtype=numpy.float32).view(numpy.uint32)


def line(name, numbers):
    print(name, *(f"{number:x}" for number in numbers))


def code_words(codes):
    codes = codes.numpy().reshape(-1).astype(numpy.uint8)
    return numpy.pad(codes, (0, -len(codes) % 4)).view("<u4")


def quantize(x, **options):
    return functional.quantize_4bit(x, blocksize=BLOCK, quant_type="nf4", **options)


def tensor(number, x, seed):
    codes, state = quantize(x)
    bf16 = x.dtype == torch.bfloat16
    line(f"{number}.tensor", (len(x), seed, bf16))
    if seed == 0:
        line(f"{number}.x", bits(x.float().numpy()))
    line(f"{number}.codes", code_words(codes))
    line(f"{number}.scales", bits(state.absmax.numpy()))
    state.dtype = torch.float32
    if len(x) < 200:
        line(f"{number}.decoded", bits(functional.dequantize_4bit(codes, state).numpy().reshape(-1)))


def nested(name, x, seed):
    _, state = quantize(x, compress_statistics=True)
    line(f"{name}.tensor", (len(x), seed, x.dtype == torch.bfloat16))
    line(f"{name}.codes", code_words(state.absmax))
    line(f"{name}.maxima", bits(state.state2.absmax.numpy()))
    line(f"{name}.mean", bits([float(state.offset)]))
    if len(x) < 20000:
        scales = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
        line(f"{name}.decoded", bits(scales.numpy()))


def main():
    line("values", bits(functional.get_4bit_type("nf4", device="cpu").numpy()))
    number = 0
    for seed, n in enumerate(SIZES, start=1):
        for dtype in (torch.float32, torch.bfloat16):
            tensor(number, torch.tensor(formula(n, seed)).to(dtype), seed)
            number += 1
    for x in special():
        for dtype in (torch.float32, torch.bfloat16)[:2 if number % 2 else 1]:
            tensor(number, torch.tensor(x, dtype=torch.float32).to(dtype), 0)
            number += 1
    for seed, n in enumerate(NESTED, start=100):
        dtype = torch.bfloat16 if seed % 2 else torch.float32
        nested(f"nested{seed - 100}", torch.tensor(formula(n, seed)).to(dtype), seed)


if __name__ == "__main__":
    main()
