#include "tests/testing/precision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "tests/testing/json.h"
#include "trainer/core/atomic_file.h"
#include "trainer/fsdp/loss_scale.h"
#include "trainer/nn/table.h"

namespace fsdp::testing {
namespace {

void Set(const Precision& precision, int world, TinyRun& run) {
  run.world = world;
  FsdpOptions::MixedPrecision& mixed = run.options.executor.mixed_precision;
  mixed.param_dtype = precision.param;
  mixed.grad_dtype = precision.grad;
  mixed.reduce_dtype = precision.reduce;
  SpreadBatchNorms(run);
}

std::vector<Precision> PrecisionsOf(DType param) {
  return {{param, DType::kFloat32, DType::kFloat32},
          {param, param, DType::kFloat32},
          {param, param, param}};
}

// A batch norm's count of batches is none: it has no error.
bool IsStatistic(const std::string& name) {
  return name.ends_with(".running_mean") || name.ends_with(".running_var");
}

bool IsRows(const std::string& name) { return name.find("/tables.") != std::string::npos; }

Tensors StatisticsOf(const TinyResult& result) {
  Tensors statistics = result.buffers;
  std::erase_if(statistics, [](const auto& buffer) { return !IsStatistic(buffer.first); });
  return statistics;
}

// Adagrad's sum of each row of embedding tables.
Tensors RowSumsOf(const TinyResult& result) {
  Tensors sums = result.state;
  std::erase_if(sums, [](const auto& state) { return !state.first.starts_with("rows/"); });
  return sums;
}

std::string WayOf(const std::string& frame, const Precision& precision, int world) {
  return frame + "/" + std::string(Name(precision.param)) + "/" +
         std::string(Name(precision.reduce)) + "/" + std::to_string(world);
}

// PyTorch's scales and skips; ours begin `ranks` times as high, as a power of two.
void ExpectSteps(const TinyResult& got, const Json& theirs, int ranks) {
  std::vector<float> scales = theirs.at("scales");
  for (float& scale : scales) scale *= static_cast<float>(RanksToScaleBy(ranks));
  EXPECT_EQ(got.loss_scales, scales);
  std::vector<bool> skipped;
  for (const float norm : got.grad_norms) skipped.push_back(!std::isfinite(norm));
  EXPECT_EQ(skipped, theirs.at("skipped").get<std::vector<bool>>());
}

}  // namespace

std::vector<PrecisionWay> WaysOf(DType param) {
#ifdef __SANITIZE_ADDRESS__
  const std::vector<int> worlds = {2};
#else
  const std::vector<int> worlds = {1, 2};
#endif
  std::vector<PrecisionWay> ways;
  for (const Precision& precision : PrecisionsOf(param)) {
    for (const int world : worlds) ways.emplace_back(precision, world);
  }
  return ways;
}

std::string WayName(const ::testing::TestParamInfo<PrecisionWay>& info) {
  const auto& [precision, world] = info.param;
  return NameOf(precision) + "_" + std::to_string(world);
}

std::string NameOf(const Precision& precision) {
  return std::string(Name(precision.param)) + "_" + std::string(Name(precision.grad)) + "_" +
         std::string(Name(precision.reduce));
}

PrecisionReference::PrecisionReference(const Reference& reference, const std::string& folder)
    : reference_(reference),
      folder_(folder),
      file_(folder + "/precision.safetensors"),
      settings_(Json::parse(file_.Metadata().at("settings"))),
      names_(settings_.at("names")),
      scale_(settings_.at("scale")) {}

double PrecisionReference::Error(const std::string& name, const std::vector<float>& ours) const {
  const std::vector<double> exact = ReadDoubles(file_, name);
  Require(exact.size() == ours.size(), name + ": another size");
  double sum = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double difference = exact[i] - static_cast<double>(ours[i]);
    sum += difference * difference;
  }
  return std::sqrt(name.ends_with("/loss") ? sum / static_cast<double>(exact.size()) : sum);
}

TinyRun PrecisionReference::TrainRun(const std::string& name, const Precision& precision,
                                     int world) const {
  TinyRun run = reference_.TrainRun(name);
  Set(precision, world, run);
  run.options.executor.mixed_precision.scaler.init_scale = scale_;
  run.options.optimizer.table_lr_scale = settings_.value("table_lr", 0.0) / run.options.lr.lr;
  run.initial_rows = [this](const EmbeddingTable& table, int64_t begin, std::span<float> values) {
    file_.ReadFloat("initial/" + table.name, begin, values);
  };
  return run;
}

std::vector<double> PrecisionReference::Errors(const Precision& precision, int world) const {
  Tensors got;
  const auto add = [&](const std::string& prefix, const Tensors& tensors) {
    for (const auto& [name, values] : tensors) got[prefix + name] = values;
  };
  TinyRun first = TrainRun("sgd", precision, world);
  first.steps = 1;
  first.options.executor.max_norm = 0;
  const TinyResult of_step = Train(first);
  add("grad/", of_step.gradients);
  add("step1/", StatisticsOf(of_step));
  add("step1/", RowSumsOf(of_step));
  for (const std::string name : {"sgd", "adamw"}) {
    const TinyResult result = Train(TrainRun(name, precision, world));
    got[name + "/loss"] = result.losses;
    add(name + "/", result.parameters);
    add(name + "/", StatisticsOf(result));
  }
  Require(got.size() == names_.size(), "other tensors than PyTorch's");
  std::vector<double> errors;
  for (const std::string& name : names_) {
    errors.push_back(Error(std::string(Name(precision.param)) + "/" + name, got.at(name)));
  }
  return errors;
}

std::vector<double> PrecisionReference::Theirs(const std::string& frame, const Precision& precision,
                                               int world) const {
  std::vector<double> theirs = ReadDoubles(file_, "error/" + WayOf(frame, precision, world));
  Require(theirs.size() == names_.size(), "errors of " + frame + ": another size");
  return theirs;
}

void PrecisionReference::Hold(const Precision& precision, int world) const {
  const std::vector<double> ours = Errors(precision, world);
  const double coin = 2 * reference_.TrainRun("adamw").options.lr.At(1);
  for (const std::string frame : {"fsdp1", "fsdp2"}) {
    const std::string way = WayOf(frame, precision, world);
    const std::vector<double> theirs = Theirs(frame, precision, world);
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
    std::printf("%s, gradients in %s: %.2f of PyTorch's error, at most %.2f, %s\n", way.c_str(),
                Name(precision.grad).data(), std::exp(mean), worst, where.c_str());
  }
}

int64_t PrecisionReference::Size(const Precision& precision, const std::string& name) const {
  return file_.Info(std::string(Name(precision.param)) + "/" + name).NumElements();
}

void PrecisionReference::HoldTogether(const Precision& precision, int world) const {
  const auto together = [&](const std::vector<double>& errors) {
    std::map<std::string, double> numbers;
    for (size_t i = 0; i < errors.size(); ++i) {
      // One number's error is luck: a bias of one goes with its weight, which is behind it.
      const bool one = names_[i].starts_with("grad/") && Size(precision, names_[i]) == 1;
      const std::string& name = names_.at(one ? i + 1 : i);
      const std::string run = name.substr(0, name.find('/'));
      if (run == "grad" && precision.param == DType::kFloat16) continue;
      const bool alone = run == "grad" || run == "step1" || name.ends_with("/loss");
      const char* const kind = IsStatistic(name) ? " statistics"
                               : IsRows(name)    ? " rows"
                                                 : " weights";
      double& number = numbers[alone ? name : run + kind];
      number = std::hypot(number, errors[i]);
    }
    return numbers;
  };
  const std::map<std::string, double> ours = together(Errors(precision, world));
  for (const std::string frame : {"fsdp1", "fsdp2"}) {
    const std::string way = WayOf(frame, precision, world);
    double worst = 0;
    for (const auto& [name, theirs] : together(Theirs(frame, precision, world))) {
      EXPECT_LE(ours.at(name), 2 * theirs) << way << ": " << name;
      worst = std::max(worst, ours.at(name) / theirs);
      if (name.starts_with("grad/") || name.starts_with("step1/")) continue;
      std::printf("%s, gradients in %s: %.2f of PyTorch's error, %s\n", way.c_str(),
                  Name(precision.grad).data(), ours.at(name) / theirs, name.c_str());
    }
    std::printf("%s, gradients in %s: at most %.2f of PyTorch's error\n", way.c_str(),
                Name(precision.grad).data(), worst);
  }
}

void PrecisionReference::HoldMeanRows(const Precision& precision, int world) const {
  const int draws = settings_.at("draws");
  Tensors means;
  for (int draw = 0; draw < draws; ++draw) {
    TinyRun run = TrainRun("adamw", precision, world);
    run.options.optimizer.seed = static_cast<uint64_t>(draw);
    for (const auto& [name, values] : Train(run).parameters) {
      if (!IsRows("/" + name)) continue;
      std::vector<float>& mean = means[name];
      mean.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) mean[i] += values[i] / static_cast<float>(draws);
    }
  }
  const std::string way = WayOf("fsdp2", precision, world);
  const std::vector<double> theirs = ReadDoubles(file_, "mean/" + way);
  Require(theirs.size() == means.size(), "mean/" + way + ": another size");
  size_t i = 0;
  for (const auto& [name, mean] : means) {
    const double ours = Error(std::string(Name(precision.param)) + "/adamw/" + name, mean);
    EXPECT_LE(ours, 2 * theirs[i]) << way << ": " << name;
    std::printf("%s: %.2f of PyTorch's error, mean of %s\n", way.c_str(), ours / theirs[i],
                name.c_str());
    ++i;
  }
  EXPECT_GT(i, 0u);
}

void PrecisionReference::HoldScales(const Precision& precision, int world) const {
  const Json script = Json::parse(ReadWholeFile(folder_ + "/scaler.json"));
  const std::vector<int> planted = script.at("planted");
  TinyRun run = reference_.TrainRun("adamw");
  Set(precision, world, run);
  const Json& scaler = script.at("scaler");
  run.options.executor.mixed_precision.scaler = {.init_scale = scaler.at("init_scale"),
                                                 .growth_factor = scaler.at("growth_factor"),
                                                 .backoff_factor = scaler.at("backoff_factor"),
                                                 .growth_interval = scaler.at("growth_interval")};
  run.sample = [&, sample = run.sample](int64_t step, int64_t i, std::span<int32_t> tokens,
                                        std::span<float> weights) {
    sample(step, i, tokens, weights);
    const bool now = std::find(planted.begin(), planted.end(), step) != planted.end();
    if (i == 0 && now) weights[0] = script.at("overflow");
  };
  const TinyResult got = Train(run);
  ExpectSteps(got, script, world);
  // The last step is one of them.
  ASSERT_TRUE(script.at("skipped").back());
  --run.steps;
  const TinyResult before = Train(run);
  EXPECT_EQ(got.parameters, before.parameters);
  EXPECT_EQ(got.state, before.state);
}

void PrecisionReference::HoldFirstScales() const {
  const Json script = Json::parse(ReadWholeFile(folder_ + "/first_scales.json"));
  ASSERT_EQ(script.at("runs").size(), 24u);
  for (const Json& theirs : script.at("runs")) {
    const int ranks = theirs.at("ranks");
    const std::string strategy = theirs.at("strategy"), reduce = theirs.at("reduce");
    const bool same = theirs.at("data") == "same";
    SCOPED_TRACE(strategy + " of " + std::to_string(ranks) + ", " + reduce +
                 (same ? ", all ranks alike" : ""));
    TinyRun run = reference_.TrainRun("sgd");
    Set({DType::kFloat16, DType::kFloat16, reduce == "fp16" ? DType::kFloat16 : DType::kFloat32},
        ranks, run);
    ExecutorOptions& o = run.options.executor;
    o.mixed_precision.scaler.init_scale = script.at("init_scale");
    o.sharding_strategy = strategy == "full_shard" ? Strategy::kFullShard
                          : strategy == "no_shard" ? Strategy::kNoShard
                                                   : Strategy::kHybridShard;
    if (strategy == "hybrid_shard") o.shard_size = 2;
    run.options.global_batch_size = same ? ranks : script.at("sequences").get<int64_t>();
    o.micro_batch_size = run.options.global_batch_size / ranks;
    if (same) {
      run.sample = [sample = run.sample](int64_t step, int64_t, std::span<int32_t> tokens,
                                         std::span<float> weights) {
        sample(step, 0, tokens, weights);
      };
    }
    ExpectSteps(Train(run), theirs, ranks);
  }
}

}  // namespace fsdp::testing
