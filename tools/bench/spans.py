"""Span corruption as ours draws it (trainer/data/pairs/span_corruption.cc), so that PyTorch reads the same
samples."""

MASK64 = (1 << 64) - 1


def mix(h):
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9 & MASK64
    h = (h ^ (h >> 27)) * 0x94D049BB133111EB & MASK64
    return h ^ (h >> 31)


def hash_bytes(text, seed):
    """HashBytes of trainer/core/philox.h."""
    h = 0xCBF29CE484222325 ^ mix(seed)
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK64
    return mix(h)


def first_words(seed, name, salt, count):
    """The first 64 bits of each of a RandomStream's first `count` blocks, from Philox4x32-10."""
    import numpy as np  # Here, so that the rest needs no packages.
    stream = hash_bytes(name, salt)
    c = [np.arange(count, dtype=np.uint64), np.zeros(count, np.uint64),
         np.full(count, stream & 0xFFFFFFFF, np.uint64), np.full(count, stream >> 32, np.uint64)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [p1 >> shift ^ c[1] ^ np.uint64(key[0]), p1 & low,
             p0 >> shift ^ c[3] ^ np.uint64(key[1]), p0 & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return (c[0] << shift | c[1]).tolist()


def lengths_of(length, density, mean):
    """(noise, spans) of a text of `length` tokens. round() is to even, as std::nearbyint."""
    noise = min(max(round(length * density), 1), length - 1)
    spans = max(1, round(noise / mean))
    return noise, min(spans, noise, length - noise)


def longest_text(input_length, density, mean):
    def fits(length):
        noise, spans = lengths_of(length, density, mean)
        return length - noise + spans + 1 <= input_length

    length = 2
    while fits(length + 1):
        length += 1
    return length


def parts(n, k, words):
    """Lengths of k parts of n elements, each at least one."""
    found, draw = [], 0
    left = n
    while k > 0:
        length = 1
        left -= 1
        while left > 0:
            cut = words[draw] * left >> 64
            draw += 1
            if cut < k - 1:
                break
            left -= 1
            length += 1
        found.append(length)
        k -= 1
    return found


def corrupt(text, sample, seed, density, mean, vocabulary, eot):
    """(input, target) of one text; sentinels are the last ids of the vocabulary, from its end."""
    noise, spans = lengths_of(len(text), density, mean)
    goes = parts(noise, spans, first_words(seed, "data.spans.noise", sample, noise))
    stays = parts(len(text) - noise, spans,
                  first_words(seed, "data.spans.rest", sample, len(text) - noise))
    inputs, targets, at = [], [], 0
    for i, (stay, go) in enumerate(zip(stays, goes)):
        inputs += [*text[at : at + stay], vocabulary - 1 - i]
        targets += [vocabulary - 1 - i, *text[at + stay : at + stay + go]]
        at += stay + go
    return inputs + [eot], targets + [eot]
