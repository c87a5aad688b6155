// Data that queued work reads outlives it on every way out of a run (runtime/stream.h, "Lifetime").
// A run fails at each of its operations in turn, from the executor's constructor to an evaluation:
// the host throws there, or the work. Work runs only while the host waits, or when a stream ends:
// as late as it can, so that AddressSanitizer sees all that is gone by then.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "models/dhen/config.h"
#include "models/regnet/config.h"
#include "models/shape.h"
#include "tests/testing/everything.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/tiny_run.h"
#include "trainer/comm/store/together.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/nn/model.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

using testing::FreshDirectory;
using testing::TinyRun;

constexpr const char* kPlanted = "planted";

// Lets work run while it is open.
class Gate {
 public:
  void Pass() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return open_ > 0; });
  }
  void Open() { Add(1); }
  void Close() { Add(-1); }

 private:
  void Add(int n) {
    const std::lock_guard lock(mutex_);
    open_ += n;
    opened_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable opened_;
  int open_ = 0;
};

// A rank's mistake: in operation `at`, counted from 0 over all streams, or in none.
struct Mistake {
  int64_t at = -1;
  bool of_host = true;  // Enqueue() throws; otherwise the work does.
};

// A CPU behind a gate. A wait for its events opens the gate for as long.
class GatedDevice final : public Device {
 public:
  explicit GatedDevice(const Mistake& mistake) : Device(nullptr), mistake_(mistake) {}

  DeviceType type() const override { return DeviceType::kCpu; }
  std::unique_ptr<Stream> CreateStream(std::string name, int threads, StreamPriority) override {
    return std::make_unique<GatedStream>(*this, name, cpu_.CreateStream(name, threads));
  }
  std::optional<View> OnHost(const View& view) const override { return cpu_.OnHost(view); }
  double Now() const override { return cpu_.Now(); }
  void StartTrace() override {}
  std::vector<Span> TakeTrace() override { return {}; }
  int64_t operations() const { return operations_; }

 private:
  struct GatedEvent final : Event {
    GatedEvent(EventPtr of, Gate& by) : inner(std::move(of)), gate(by) {}
    bool Ready() const override { return inner->Ready(); }
    void Block() const override {
      gate.Open();
      const struct Closes {
        Gate& gate;
        ~Closes() { gate.Close(); }
      } closes{gate};
      inner->Block();
    }
    double DoTime() const override { return inner->Time(); }
    const EventPtr inner;
    Gate& gate;
  };

  class GatedStream final : public Stream {
   public:
    GatedStream(GatedDevice& device, const std::string& name, std::unique_ptr<Stream> inner)
        : Stream(device, name), device_(device), inner_(std::move(inner)) {}
    ~GatedStream() override { device_.gate_.Open(); }

   private:
    void DoEnqueue(Operation operation) override {
      const bool wrong = device_.operations_++ == device_.mistake_.at;
      if (wrong && device_.mistake_.of_host) throw std::runtime_error(kPlanted);
      CpuKernel& kernel = operation.kernels.cpu ? operation.kernels.cpu : operation.kernels.host;
      kernel = [&gate = device_.gate_, wrong, kernel = std::move(kernel)](ThreadPool& pool) {
        gate.Pass();
        if (wrong) throw std::runtime_error(kPlanted);
        kernel(pool);
      };
      inner_->Enqueue(std::move(operation));
    }
    std::shared_ptr<Event> DoRecord(bool timed) override {
      return std::make_shared<GatedEvent>(timed ? inner_->RecordTime() : inner_->Record(),
                                          device_.gate_);
    }
    void DoWait(const EventPtr& event) override {
      inner_->Wait(dynamic_cast<const GatedEvent&>(*event).inner);
    }

    GatedDevice& device_;
    const std::unique_ptr<Stream> inner_;
  };

  std::byte* DoAllocate(int64_t bytes, MemoryPlace place) override {
    Buffer buffer = cpu_.Allocate(bytes, place);
    std::byte* const data = buffer.data();
    buffers_.emplace(data, std::move(buffer));
    return data;
  }
  void DoFree(std::byte* data, int64_t, MemoryPlace) noexcept override { buffers_.erase(data); }

  const Mistake mistake_;
  Gate gate_;
  CpuDevice cpu_;
  std::map<std::byte*, Buffer> buffers_;
  int64_t operations_ = 0;
};

struct Case {
  std::string name;
  ModelShape shape;
  SessionOptions options;
};

Case OfDhen() {
  const DhenConfig config{.dense_columns = 1,
                          .table_rows = {20, 5},
                          .table_width = 8,
                          .dense_vectors = 2,
                          .num_vectors = 4,
                          .num_hidden_layers = 1,
                          .num_attention_heads = 2,
                          .cross_rank = 4,
                          .intermediate_size = 16};
  Case c{"dhen", config, TinyRun::TinyOptions()};
  c.options.snapshot = true;
  return c;
}

Case OfRegNet() {
  const RegNetConfig config{.image_size = 8,
                            .num_channels = 2,
                            .num_labels = 3,
                            .embedding_size = 4,
                            .hidden_sizes = {4},
                            .depths = {1},
                            .groups_width = 4};
  Case c{"regnet", config, TinyRun::TinyOptions()};
  c.options.executor.batch_norm_sync = true;
  c.options.executor.recompute = Recompute::kFull;
  c.options.snapshot = true;
  return c;
}

Gpt2Config SmallGpt2() {
  Gpt2Config config = TinyRun::TinyConfig();
  config.num_hidden_layers = 2;
  return config;
}

// Updates on the host, state and activations on the disk, averages that are evaluated.
Case OfOffload() {
  Case c{"gpt2_offload", SmallGpt2(), TinyRun::TinyOptions()};
  ExecutorOptions& executor = c.options.executor;
  executor.cpu_offload.optimizer = executor.cpu_offload.params = true;
  executor.cpu_offload.spill = FreshDirectory("spill");
  executor.activation_offload = ActivationOffload::kSpill;
  executor.micro_batches = 2;
  c.options.optimizer.kind = OptimizerOptions::Kind::kAdamW;
  c.options.optimizer.ema = 0.9;
  c.options.eval_ema = true;
  c.options.snapshot = true;
  return c;
}

// Memory at the time of use, in fp16, with reductions in blocks.
Case OfCaching() {
  Case c{"gpt2_caching", SmallGpt2(), TinyRun::TinyOptions()};
  ExecutorOptions& executor = c.options.executor;
  executor.buffers = FsdpOptions::Buffers::kCaching;
  executor.limiter = FsdpOptions::Limiter::kHost;
  executor.mixed_precision.param_dtype = DType::kFloat16;
  executor.quantize = {.gather = FsdpOptions::Quantize::Gather::kInt8,
                       .reduce = FsdpOptions::Quantize::Reduce::kInt8,
                       .min_size = 1};
  executor.activation_offload = ActivationOffload::kHost;
  executor.poison = false;
  return c;
}

// A batch that every model takes: zeros, and what is derived of them. The data is the function's
// own, and of the heap.
Session::Load Zeros(const BatchSpec& spec) {
  return [spec](int, const Batch& batch) {
    for (size_t i = 0; i < batch.inputs.size(); ++i) {
      const View& input = batch.inputs[i];
      std::memset(input.data, 0, input.bytes());
      if (!spec.inputs[i].counts && spec.inputs[i].order_of.empty()) continue;
      int32_t* const values = input.As<int32_t>();
      std::iota(values, values + input.NumElements(), 0);
      const int64_t row = input.NumElements() / batch.rows();
      for (int64_t v = 0; spec.inputs[i].counts && v < input.NumElements(); ++v) {
        values[v] = static_cast<int32_t>(v % row);
      }
    }
    std::memset(batch.sample_keys.data, 0, batch.sample_keys.bytes());
  };
}

// A run of `c` on a rank; the number of its operations. Ends as the trainer does: communicators are
// aborted, then all is destroyed.
std::string RunRank(const Case& c, const MemoryPlan& plan, const Mistake& mistake,
                    testing::Rank& rank) {
  const std::shared_ptr<Model> model = MakeModel(c.shape);
  const ExecutorOptions& executor = c.options.executor;
  GatedDevice device(mistake);
  const MeshCommunicators communicators(MeshFor(executor, rank.rank, rank.size),
                                        executor.communicators,
                                        [&](const std::string& name, const RankGroup& group) {
                                          return rank.join_group(name, group, {.timeout_s = 60});
                                        });
  const std::unique_ptr<PhasedAllocator> allocator = MakeAllocator(device, executor, plan);
  std::optional<Session> session;
  try {
    session.emplace(device, *allocator, *model, c.options, communicators);
    const auto fill = [value = std::make_shared<float>(0.01f)](const auto&, int64_t,
                                                               std::span<float> values) {
      std::ranges::fill(values, *value);
    };
    session->executor().Initialize(fill, nullptr, fill);
    session->InitializeEma();
    const Session::Load load = Zeros(model->Inputs(executor.sample_length));
    session->Train(1, session->FullTargets(), {}, load, load);
    if (c.options.snapshot) session->TakeSnapshot();
    session->Train(2, session->FullTargets(), {}, load);
    session->executor().Result(0);
    session->Eval(1, load);
    session->ToHost();
    session->executor().Synchronize();
  } catch (const std::exception& error) {
    for (Communicator* communicator : communicators.all()) communicator->Abort(error.what());
    throw;
  }
  Barrier(*rank.store, "done", rank.rank, rank.size);
  return std::to_string(device.operations());
}

class FailingRun : public ::testing::TestWithParam<int> {};

TEST_P(FailingRun, NothingThatItsWorkReadsIsGone) {
  const struct FillsWhatIsFreed {  // For programs without AddressSanitizer.
    FillsWhatIsFreed() { mallopt(M_PERTURB, 0xa5); }
    ~FillsWhatIsFreed() { mallopt(M_PERTURB, 0); }
  } fills;
  const int world = GetParam();
  for (Case c : {OfDhen(), OfRegNet(), OfOffload(), OfCaching()}) {
    SCOPED_TRACE(c.name);
    c.options.global_batch_size =
        world * c.options.executor.micro_batch_size * c.options.executor.micro_batches;
    const MemoryPlan plan = PlanMemory(*MakeModel(c.shape), c.options, world);
    const int wrong = world - 1;
    const auto run = [&](const Mistake& mistake) {
      return testing::RunThreadRanks(world, [&](testing::Rank& rank) {
        return RunRank(c, plan, rank.rank == wrong ? mistake : Mistake(), rank);
      });
    };
    const std::vector<testing::Outcome> whole = run({});
    for (const testing::Outcome& outcome : whole) ASSERT_EQ(outcome.error, "");
    const int64_t operations = std::stoll(whole[wrong].result);
    ASSERT_GT(operations, 100);
    std::printf("%s: %lld operations\n", c.name.c_str(), static_cast<long long>(operations));
    const int64_t one_in = testing::Everything() ? 1 : world == 1 ? 12 : 60;
    for (int64_t at = static_cast<int64_t>(testing::Part(one_in)); at < operations; at += one_in) {
      for (const bool of_host : {true, false}) {
        const std::vector<testing::Outcome> outcomes = run({at, of_host});
        ASSERT_EQ(outcomes[wrong].error, kPlanted)
            << "operation " << at << (of_host ? ", enqueued" : ", executed");
        for (const testing::Outcome& outcome : outcomes) {  // The others hear of it, or are done.
          ASSERT_TRUE(outcome.error.empty() || outcome.error.find(kPlanted) != std::string::npos)
              << outcome.error;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, FailingRun, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace fsdp
