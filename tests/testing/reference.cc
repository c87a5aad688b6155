#include "tests/testing/reference.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <utility>

#include "tests/testing/everything.h"
#include "tests/testing/json.h"
#include "trainer/core/atomic_file.h"
#include "trainer/nn/buffer.h"

namespace fsdp::testing {
namespace {

Json ReadJson(const std::string& path) { return Json::parse(ReadWholeFile(path)); }

double Norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

}  // namespace

std::vector<double> ReadDoubles(const SafetensorsReader& file, const std::string& name) {
  const SafetensorsInfo& info = file.Info(name);
  if (info.type == SafetensorsType::kF64) {
    std::vector<double> values(info.NumElements());
    file.ReadBytes(name, 0, std::as_writable_bytes(std::span(values)));
    return values;
  }
  std::vector<float> floats(info.NumElements());
  file.ReadFloat(name, 0, floats);
  return {floats.begin(), floats.end()};
}

Reference::Reference(const std::string& folder, SetShape set_shape, RowsOf rows_of,
                     const std::string& adapters)
    : weights_(folder + "/model.safetensors"),
      results_(folder + "/reference.safetensors"),
      adapters_(adapters.empty() ? std::nullopt : std::optional<SafetensorsReader>(adapters)),
      settings_(Json::parse((adapters_ ? *adapters_ : results_).Metadata().at("settings"))),
      config_(ReadJson(folder + "/config.json")),
      set_shape_(std::move(set_shape)),
      rows_of_(std::move(rows_of)) {
  config_["case"] = settings_.at("case");
  batch_tokens_ = Ints("batch/tokens");
  train_tokens_ = Ints("train/tokens");
  batch_weights_.resize(results_.Info("batch/weights").NumElements());
  results_.ReadFloat("batch/weights", 0, batch_weights_);
}

const SafetensorsReader& Reference::FileOf(const std::string& name,
                                           const SafetensorsReader& other) const {
  return adapters_ && adapters_->Contains(name) ? *adapters_ : other;
}

bool Reference::Has(const std::string& name) const { return FileOf(name, results_).Contains(name); }

std::vector<double> Reference::Doubles(const std::string& name) const {
  return ReadDoubles(FileOf(name, results_), name);
}

std::vector<std::string> Reference::Trainings() const {
  std::vector<std::string> names;
  for (const auto& run : settings_.at("runs").items()) names.push_back(run.key());
  return names;
}

std::vector<int32_t> Reference::Ints(const std::string& name) const {
  const SafetensorsReader& file = FileOf(name, results_);
  std::vector<int32_t> values(file.Info(name).NumElements());
  file.ReadBytes(name, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

// Starts from the file's weights.
TinyRun Reference::Run(int64_t global_batch_size, const std::string& positions) const {
  TinyRun run;
  run.options.global_batch_size = global_batch_size;
  run.options.executor.sample_length = config_.at("case").value("inputs", seq_len());
  run.options.executor.micro_batch_size = 2;
  set_shape_(config_, run);
  run.initial = [this](const Parameter& p, int64_t begin, std::span<float> values) {
    for (const SlicePiece& piece : SlicePieces(p, begin, static_cast<int64_t>(values.size()))) {
      const std::string& name = piece.slice->name;
      const SafetensorsReader& file = FileOf(name, weights_);
      Require(file.Info(name).NumElements() == piece.slice->shape.NumElements(), name);
      file.ReadFloat(name, piece.begin, values.subspan(piece.at, piece.count));
    }
  };
  run.initial_buffers = [this](const ModelBuffer& buffer, int64_t begin, const View& values) {
    const auto n = static_cast<size_t>(values.NumElements());
    if (buffer.kind() == ModelBuffer::Kind::kBias) {
      weights_.ReadFloat(buffer.name(), begin, {values.As<float>(), n});
    } else if (values.dtype == DType::kInt64) {
      std::fill_n(values.As<int64_t>(), n, static_cast<int64_t>(buffer.initial()));
    } else {
      std::fill_n(values.As<float>(), n, static_cast<float>(buffer.initial()));
    }
  };
  if (Has(positions)) {
    run.positions = [all = Ints(positions)](int64_t, int64_t sample, std::span<int32_t> out) {
      std::copy_n(all.begin() + sample * static_cast<int64_t>(out.size()), out.size(), out.begin());
    };
  }
  return run;
}

TinyRun Reference::BatchRun() const {
  TinyRun run = Run(results_.Info("batch/tokens").shape[0], "batch/positions");
  run.steps = 1;
  run.eval_step = 1;
  run.options.executor.max_norm = 0;
  run.options.lr = {LrShape::kConstant, 0.0, 0, 1, 1.0};
  run.sample = [this](int64_t, int64_t sample, std::span<int32_t> tokens,
                      std::span<float> weights) {
    std::copy_n(batch_tokens_.begin() + sample * tokens.size(), tokens.size(), tokens.begin());
    std::copy_n(batch_weights_.begin() + sample * weights.size(), weights.size(), weights.begin());
  };
  if (rows_of_) run.rows = rows_of_(config_, batch_tokens_, batch_weights_);
  for (const int32_t row : Ints("batch/logits_rows")) {
    run.logits.emplace_back(row / seq_len(), row % seq_len());
  }
  return run;
}

TinyRun Reference::TrainRun(const std::string& name) const {
  TinyRun run = Run(settings_.at("global_batch_size"), "train/positions");
  run.steps = settings_.at("steps");
  run.eval_step = 1;
  run.options.executor.max_norm = settings_.at("grad_clip");
  const Json& schedule = settings_.at("schedule");
  const Json& s = settings_.at("runs").at(name);
  run.options.lr = {LrShape::kCosine, s.at("lr"), schedule.at("warmup_steps"), run.steps,
                    schedule.at("min_lr_ratio")};
  OptimizerOptions& optimizer = run.options.optimizer;
  optimizer.weight_decay = s.at("weight_decay");
  if (s.at("name") == "adamw") {
    optimizer.kind = OptimizerOptions::Kind::kAdamW;
    optimizer.beta1 = s.at("betas").at(0);
    optimizer.beta2 = s.at("betas").at(1);
    optimizer.eps = s.at("eps");
  } else {
    optimizer.kind = OptimizerOptions::Kind::kSgd;
    optimizer.momentum = s.at("momentum");
  }
  run.sample = [this](int64_t step, int64_t sample, std::span<int32_t> tokens,
                      std::span<float> weights) {
    const int64_t row = (step - 1) * settings_.at("global_batch_size").get<int64_t>() + sample;
    std::copy_n(train_tokens_.begin() + row * tokens.size(), tokens.size(), tokens.begin());
    std::fill(weights.begin(), weights.end(), 1.0f);
  };
  if (rows_of_) run.rows = rows_of_(config_, train_tokens_, {});
  return run;
}

void SpreadBatchNorms(TinyRun& run) {
  ExecutorOptions& executor = run.options.executor;
  if (!executor.batch_norm_sync) return;
  executor.micro_batch_size = (run.options.global_batch_size + run.world - 1) / run.world;
}

void Judge::Batch(const TinyResult& ours) {
  const double norm = reference_.Doubles("batch/grad_norm")[0];
  Tensor("batch/logits", ours.logits, Norm(reference_.Doubles("batch/logits")));
  const double loss = reference_.Doubles("batch/loss")[0];
  Tensor("batch/loss", ours.losses, loss);
  // The forward-only step: where running statistics are behind it, of another loss.
  const bool apart = reference_.Has("batch/eval_loss");
  Tensor(apart ? "batch/eval_loss" : "batch/loss", {ours.eval_loss}, loss);
  Tensor("batch/grad_norm", ours.grad_norms, norm);
  const std::vector<std::string>& names = reference_.Names();
  EXPECT_EQ(static_cast<int64_t>(ours.gradients.size()),
            std::count_if(names.begin(), names.end(), [](const std::string& name) {
              return name.starts_with("grad/") && !name.ends_with(".fp32_error");
            }));
  for (const auto& [name, gradient] : ours.gradients) Tensor("grad/" + name, gradient, norm);
}

void Judge::Trainings(const std::function<TinyResult(const TinyRun&)>& train) {
  for (const std::string& name : reference_.Trainings()) {
    const TinyRun run = reference_.TrainRun(name);
    Training(name, run, train(run));
  }
}

void Judge::Training(const std::string& name, const TinyRun& run, const TinyResult& ours) {
  const std::vector<double> rates = reference_.Doubles(name + "/lr");
  for (size_t s = 0; s < rates.size(); ++s) {
    EXPECT_NEAR(run.options.lr.At(static_cast<int64_t>(s) + 1), rates[s], 1e-15);
  }
  const double error = Steps(name + "/loss", ours.losses);
  Steps(name + "/grad_norm", ours.grad_norms);
  Number(name + "/final_loss", ours.eval_loss, reference_.Doubles(name + "/final_loss")[0],
         std::max(error, reference_.Doubles(name + "/final_loss.fp32_error")[0]));
}

void Judge::Tensor(const std::string& name, const std::vector<float>& ours, double norm) {
  std::vector<double> difference = reference_.Doubles(name);
  ASSERT_EQ(difference.size(), ours.size()) << name;
  for (size_t i = 0; i < ours.size(); ++i) difference[i] -= static_cast<double>(ours[i]);
  Check(name, Norm(difference), 4 * reference_.Doubles(name + ".fp32_error")[0] + 1e-7 * norm);
}

void Judge::Number(const std::string& name, double ours, double theirs, double error) {
  Check(name, std::abs(ours - theirs), 4 * error + 1e-7 * std::abs(theirs));
}

double Judge::Steps(const std::string& name, const std::vector<float>& ours) {
  const std::vector<double> theirs = reference_.Doubles(name);
  const std::vector<double> errors = reference_.Doubles(name + ".fp32_error");
  EXPECT_EQ(theirs.size(), ours.size()) << name;
  double error = 0;
  for (size_t s = 0; s < std::min(ours.size(), theirs.size()); ++s) {
    error = std::max(error, errors[s]);
    Number(name + " of step " + std::to_string(s + 1), ours[s], theirs[s], error);
  }
  return error;
}

Judge::~Judge() {
  std::printf("worst: %.3f of what is accepted, %s, of %d\n", worst_, where_.c_str(), checks_);
  ::testing::Test::RecordProperty("worst_ratio", std::to_string(worst_));
}

void Judge::Check(const std::string& name, double difference, double accepted) {
  ++checks_;
  const double ratio = difference / accepted;
  EXPECT_LE(ratio, 1) << name << ": " << difference << " of " << accepted;
  if (!(ratio <= worst_)) {
    worst_ = ratio;
    where_ = name;
  }
}

std::vector<ReferenceCase> ReferenceCases(std::span<const char* const> models,
                                          const ReferenceWorlds& worlds, ReferenceRanks ranks) {
  const bool processes = ranks == ReferenceRanks::kProcesses;
#ifdef __SANITIZE_ADDRESS__
  const std::vector<int> sizes = {processes ? 2 : 3};
#else
  const std::vector<int>& sizes = processes ? worlds.processes : worlds.threads;
#endif
  std::vector<ReferenceCase> cases;
  int row = 0;
  for (const char* model : models) {
    ++row;
    if (ranks == ReferenceRanks::kAlone) {  // There the strategies are one.
      cases.emplace_back(model, 1, Strategy::kFullShard, false);
      continue;
    }
    for (const int world : sizes) {
      const bool all = AllCases() || (!processes && world == worlds.with_every_strategy);
      int column = 0;
      for (const Strategy strategy :
           {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
        ++column;
        const bool chosen = (row + world) % 2 == static_cast<int>(Part(2)) &&
                            (row + world + column) % 3 == static_cast<int>(Part(3));
        if (chosen || all) cases.emplace_back(model, world, strategy, processes);
      }
    }
  }
  return cases;
}

std::string ReferenceCaseName(const ::testing::TestParamInfo<ReferenceCase>& info) {
  const auto [model, world, strategy, processes] = info.param;
  constexpr const char* kStrategies[] = {"FullShard", "ShardGradOp", "HybridShard",
                                         "HybridShardGradOp", "NoShard"};
  return std::string(model) + "_" + std::to_string(world) + kStrategies[static_cast<int>(strategy)];
}

ReferenceSuite::ReferenceSuite(const std::string& family, Reference::SetShape set_shape,
                               Reference::RowsOf rows_of)
    : reference_("tests/fixtures/" + family + "/" + std::get<0>(GetParam()), std::move(set_shape),
                 std::move(rows_of)) {}

TinyResult ReferenceSuite::Run(TinyRun run) const {
  const auto [model, world, strategy, processes] = GetParam();
  run.world = world;
  run.options.executor.sharding_strategy = strategy;
  SpreadBatchNorms(run);
  run.ranks = processes ? RunProcessRanks : RunThreadRanks;
  return Train(run);
}

}  // namespace fsdp::testing
