#include "tests/testing/precision.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace fsdp::testing {

PrecisionReference::PrecisionReference(const Reference& reference, const std::string& folder)
    : reference_(reference),
      file_(folder + "/precision.safetensors"),
      names_(nlohmann::json::parse(file_.Metadata().at("settings")).at("names")) {}

double PrecisionReference::Error(const std::string& name, const std::vector<float>& ours) const {
  std::vector<double> exact(file_.Info(name).NumElements());
  file_.ReadDouble(name, 0, exact);
  Require(exact.size() == ours.size(), name + ": another size");
  double sum = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double difference = exact[i] - static_cast<double>(ours[i]);
    sum += difference * difference;
  }
  return std::sqrt(name.ends_with("/loss") ? sum / static_cast<double>(exact.size()) : sum);
}

std::vector<double> PrecisionReference::Errors(const Precision& precision, int world) const {
  Tensors got;
  const auto add = [&](const std::string& prefix, const Tensors& tensors) {
    for (const auto& [name, values] : tensors) got[prefix + name] = values;
  };
  const auto train = [&](TinyRun run) {
    run.world = world;
    FsdpOptions::MixedPrecision& mixed = run.options.executor.mixed_precision;
    mixed.param_dtype = precision.param;
    mixed.reduce_dtype = precision.reduce;
    return Train(run);
  };
  TinyRun first = reference_.TrainRun("sgd");
  first.steps = 1;
  first.options.executor.max_norm = 0;
  add("grad/", train(first).gradients);
  for (const std::string name : {"sgd", "adamw"}) {
    const TinyResult result = train(reference_.TrainRun(name));
    got[name + "/loss"] = result.losses;
    add(name + "/", result.parameters);
  }
  Require(got.size() == names_.size(), "other tensors than PyTorch's");
  std::vector<double> errors;
  for (const std::string& name : names_) {
    errors.push_back(Error(std::string(Name(precision.param)) + "/" + name, got.at(name)));
  }
  return errors;
}

void PrecisionReference::Hold(const Precision& precision, int world) const {
  const std::vector<double> ours = Errors(precision, world);
  const double coin = 2 * reference_.TrainRun("adamw").options.lr.At(1);
  for (const std::string frame : {"fsdp1", "fsdp2"}) {
    const std::string way = frame + "/" + std::string(Name(precision.param)) + "/" +
                            std::string(Name(precision.reduce)) + "/" + std::to_string(world);
    std::vector<double> theirs(names_.size());
    file_.ReadDouble("error/" + way, 0, theirs);
    double worst = 0, mean = 0;
    std::string where;
    for (size_t i = 0; i < names_.size(); ++i) {
      const bool adam = names_[i].starts_with("adamw/") && !names_[i].ends_with("/loss");
      EXPECT_LE(ours[i], std::hypot(2 * theirs[i], adam ? coin : 0)) << way << ": " << names_[i];
      const double ratio = ours[i] / theirs[i];
      mean += std::log(ratio) / static_cast<double>(names_.size());
      if (!(ratio <= worst)) {
        worst = ratio;
        where = names_[i];
      }
    }
    EXPECT_LE(mean, 0) << way;
    std::printf("%s: %.2f of PyTorch's error, at most %.2f, %s\n", way.c_str(), std::exp(mean),
                worst, where.c_str());
  }
}

}  // namespace fsdp::testing
