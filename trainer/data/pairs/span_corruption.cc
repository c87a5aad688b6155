#include "trainer/data/pairs/span_corruption.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "trainer/core/check.h"
#include "trainer/core/philox.h"

namespace fsdp {

SpanLengths SpansOf(const SpanOptions& options, int64_t length) {
  const auto noise =
      static_cast<int64_t>(std::nearbyint(static_cast<double>(length) * options.noise_density));
  SpanLengths lengths{.length = length, .noise = std::clamp<int64_t>(noise, 1, length - 1)};
  const double spans = static_cast<double>(lengths.noise) / options.mean_span;
  lengths.spans = std::max<int64_t>(1, static_cast<int64_t>(std::nearbyint(spans)));
  // The tokens that stay have as many parts.
  lengths.spans = std::min({lengths.spans, lengths.noise, length - lengths.noise});
  return lengths;
}

std::optional<SpanLengths> LongestText(const SpanOptions& options, int64_t input) {
  const auto fits = [&](int64_t length) { return SpansOf(options, length).input() <= input; };
  if (!fits(2)) return std::nullopt;
  // An input grows by at most a token with each of its text, and by at least one with each 1 / (1 -
  // density) of them.
  int64_t length = 2;
  while (fits(length + 1)) ++length;
  return SpansOf(options, length);
}

void CorruptSpans(std::span<const int32_t> text, const SpanLengths& lengths,
                  std::span<const int32_t> sentinels, int32_t eot, uint64_t seed, int64_t sample,
                  const PairRow& row) {
  FSDP_CHECK_EQ(std::ssize(text), lengths.length);
  FSDP_CHECK_LE(lengths.spans, std::ssize(sentinels));
  const auto salt = static_cast<uint64_t>(sample);
  const RandomStream of_noise(seed, "data.spans.noise", salt),
      of_rest(seed, "data.spans.rest", salt);
  RandomParts noise(lengths.noise, lengths.spans);
  RandomParts rest(lengths.length - lengths.noise, lengths.spans);
  auto from = text.begin();
  auto input = row.input.begin(), target = row.target.begin();
  for (int64_t i = 0; i < lengths.spans; ++i) {
    const int32_t sentinel = sentinels[static_cast<size_t>(i)];
    const int64_t stays =
        rest.Next([&](uint64_t draw, uint64_t n) { return of_rest.Below(draw, n); });
    input = std::copy_n(from, stays, input);
    from += stays;
    *input++ = *target++ = sentinel;
    const int64_t goes =
        noise.Next([&](uint64_t draw, uint64_t n) { return of_noise.Below(draw, n); });
    target = std::copy_n(from, goes, target);
    from += goes;
  }
  *input++ = *target++ = eot;
  FinishRow(row, input - row.input.begin(), target - row.target.begin());
}

}  // namespace fsdp
