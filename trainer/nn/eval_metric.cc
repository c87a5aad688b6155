#include "trainer/nn/eval_metric.h"

#include <cmath>

namespace fsdp {
namespace {

std::optional<double> Perplexity(double loss, double) { return std::exp(loss); }

std::optional<double> Accuracy(double, double correct) { return correct; }

std::optional<double> NormalizedEntropy(double loss, double p) {
  if (!(p > 0 && p < 1)) return std::nullopt;
  return loss / -(p * std::log(p) + (1 - p) * std::log1p(-p));
}

}  // namespace

constinit const EvalMetric kPerplexity{"perplexity", false, Perplexity};
constinit const EvalMetric kAccuracy{"accuracy", true, Accuracy};
constinit const EvalMetric kNormalizedEntropy{"normalized_entropy", true, NormalizedEntropy};

}  // namespace fsdp
