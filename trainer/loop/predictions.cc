#include "trainer/loop/predictions.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <sstream>

#include "trainer/core/check.h"
#include "trainer/core/json.h"
#include "trainer/fsdp/executor.h"

namespace fsdp {
namespace {

size_t TargetOf(const BatchSpec& inputs) {
  const auto is_target = [](const BatchInput& input) {
    return input.role == BatchInput::Role::kTarget;
  };
  const auto at = std::find_if(inputs.inputs.begin(), inputs.inputs.end(), is_target);
  FSDP_CHECK(at != inputs.inputs.end());
  return static_cast<size_t>(at - inputs.inputs.begin());
}

// Each class has one. A click has that of label 1 alone.
std::vector<double> Probabilities(std::span<const float> logits, bool is_click) {
  if (is_click) return {1 / (1 + std::exp(-static_cast<double>(logits[0])))};
  const double most = *std::max_element(logits.begin(), logits.end());
  std::vector<double> all;
  double sum = 0;
  for (const float logit : logits) sum += all.emplace_back(std::exp(logit - most));
  for (double& p : all) p /= sum;
  return all;
}

}  // namespace

std::optional<double> AreaUnderCurve(std::vector<std::pair<double, bool>> scored) {
  std::sort(scored.begin(), scored.end());
  double ones = 0, ranks = 0;  // ranks: of the labels 1, counted from 1; equal scores share one.
  for (size_t begin = 0, end = 0; begin < scored.size(); begin = end) {
    double ones_here = 0;
    for (end = begin; end < scored.size() && scored[end].first == scored[begin].first; ++end) {
      ones_here += scored[end].second ? 1 : 0;
    }
    ranks += ones_here * (static_cast<double>(begin + end) + 1) / 2;
    ones += ones_here;
  }
  const double zeros = static_cast<double>(scored.size()) - ones;
  if (ones == 0 || zeros == 0) return std::nullopt;
  return (ranks - ones * (ones + 1) / 2) / (ones * zeros);
}

Predictions::Predictions(Session& session, const BatchSpec& inputs,
                         const std::vector<std::string>& classes, Store& store, AtomicFile* file)
    : session_(session),
      target_(TargetOf(inputs)),
      is_click_(inputs.inputs[target_].dtype == DType::kFloat32),
      classes_(classes),
      store_(store),
      file_(file) {}

std::string Predictions::LineOf(const std::string& set, int64_t sample, double label,
                                const std::vector<double>& probabilities) const {
  JsonObject line = JsonObject().Add("set", set).Add("sample", sample);
  line.Add("label", static_cast<int64_t>(label));
  if (is_click_) return line.Add("probability", probabilities[0]).Text() + "\n";
  const auto most = std::max_element(probabilities.begin(), probabilities.end());
  const auto which = static_cast<size_t>(most - probabilities.begin());
  line.Add("class", which);
  if (which < classes_.size()) line.Add("name", classes_[which]);
  std::vector<std::string> texts;
  for (const double p : probabilities) texts.push_back(JsonNumber(p));
  return line.AddRaw("probabilities", JsonArray(texts)).Text() + "\n";
}

std::vector<Predictions::Judged> Predictions::Judge(const std::string& set,
                                                    const EvalLoader& loader, int64_t batch) {
  const int rank = session_.executor().mesh().data_coordinate();
  const auto width = static_cast<size_t>(session_.predictions());
  std::vector<Judged> judged;
  for (int64_t m = 0; m < loader.MicroBatches(); ++m) {
    std::vector<double> labels;  // By row. The stream's thread writes, and has ended its work then.
    const auto load = [&](int, const Batch& into) {
      loader.MicroBatch(batch, m, rank, into);
      const View& target = into.inputs[target_];
      for (int64_t row = 0; row < into.rows(); ++row) {
        labels.push_back(is_click_ ? target.As<float>()[row] : target.As<int32_t>()[row]);
      }
    };
    const std::span<const float> scores = session_.Predict(load);
    for (size_t row = 0; row < labels.size(); ++row) {
      const int64_t sample = loader.SampleOf(batch, m, rank, static_cast<int64_t>(row));
      if (sample == kNoSample) continue;
      const std::vector<double> p = Probabilities(scores.subspan(row * width, width), is_click_);
      judged.push_back({sample, labels[row], p[0], LineOf(set, sample, labels[row], p)});
    }
  }
  return judged;
}

std::optional<double> Predictions::Write(const std::string& set, const EvalLoader& loader,
                                         const std::function<void(int64_t batch)>& progress) {
  const int rank = session_.executor().mesh().data_coordinate();
  const int64_t ranks = session_.executor().mesh().data_size();
  std::vector<std::pair<double, bool>> scored;
  for (int64_t b = 0; b < loader.Batches(); ++b) {
    progress(b);
    std::vector<Judged> judged = Judge(set, loader, b);
    const std::string key = "predictions/" + std::to_string(batches_++) + "/";
    if (file_ == nullptr) {
      std::ostringstream text;
      text.precision(17);
      for (const Judged& j : judged) {
        text << j.sample << " " << j.label << " " << j.score << " " << j.line;
      }
      store_.Set(key + std::to_string(rank), text.str());
      continue;
    }
    for (int64_t other = 0; other < ranks; ++other) {
      if (other == rank) continue;
      std::istringstream text(store_.Get(key + std::to_string(other)));
      for (Judged j; text >> j.sample >> j.label >> j.score && text.get() == ' ' &&
                     std::getline(text, j.line);) {
        j.line += "\n";
        judged.push_back(j);
      }
    }
    store_.Forget(key);
    std::sort(judged.begin(), judged.end(),
              [](const Judged& a, const Judged& c) { return a.sample < c.sample; });
    for (const Judged& j : judged) {
      file_->Append(j.line);
      if (is_click_) scored.emplace_back(j.score, j.label == 1);
    }
    samples_ += std::ssize(judged);
  }
  return AreaUnderCurve(std::move(scored));
}

}  // namespace fsdp
