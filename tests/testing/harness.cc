#include "tests/testing/harness.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <utility>

#include "tests/testing/test_device.h"
#include "trainer/core/check.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

constexpr DType kAllDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                                DType::kInt32,   DType::kInt64,    DType::kUInt8};

template <typename Out>
void Store(std::byte* data, const std::vector<double>& values) {
  auto* out = reinterpret_cast<Out*>(data);
  for (const double v : values) {
    if constexpr (std::is_integral_v<Out>) {
      *out++ = static_cast<Out>(v);
    } else {
      *out++ = Out(static_cast<float>(v));
    }
  }
}

template <typename In>
std::vector<double> Load(const std::byte* data, int64_t n) {
  const auto* in = reinterpret_cast<const In*>(data);
  std::vector<double> values(n);
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_integral_v<In>) {
      values[i] = static_cast<double>(in[i]);
    } else {
      values[i] = static_cast<float>(in[i]);
    }
  }
  return values;
}

template <typename T>
struct Is {
  using type = T;
};
// f(Is<T>()) for the type T of its elements.
template <typename Function>
void ForType(DType dtype, const Function& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(Is<float>());
    case DType::kBFloat16:
      return f(Is<BFloat16>());
    case DType::kFloat16:
      return f(Is<Float16>());
    case DType::kInt32:
      return f(Is<int32_t>());
    case DType::kInt64:
      return f(Is<int64_t>());
    case DType::kUInt8:
      return f(Is<uint8_t>());
  }
}

bool Touches(const std::vector<Range>& ranges) {
  return std::any_of(ranges.begin(), ranges.end(), [](const Range& r) { return r.bytes > 0; });
}

bool SameRanges(const std::vector<Range>& a, const std::vector<Range>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].begin != b[i].begin || a[i].bytes != b[i].bytes) return false;
  }
  return true;
}

}  // namespace

void PrintTo(const OpTestCase& c, std::ostream* out) {
  *out << DeviceUnderTest().Name(c.threads) << "_" << Name(c.dtype)
       << (c.place == TensorPlace::kBegin ? "_begin" : "");
}

std::vector<OpTestCase> OpTestCases(const std::vector<DType>& supported) {
  std::vector<OpTestCase> cases;
  for (const DType dtype : supported) {
    for (const int threads : DeviceUnderTest().Threads()) {
      cases.push_back({DeviceUnderTest().type(), threads, dtype, supported});
    }
  }
  cases.push_back(cases.back());
  cases.back().place = TensorPlace::kBegin;
  return cases;
}

// Keeps what is enqueued and runs nothing.
class OpTest::Recorder final : public Stream {
 public:
  explicit Recorder(Device& device) : Stream(device, "recorder") {}
  std::vector<Operation> operations;

 private:
  void DoEnqueue(Operation operation) override { operations.push_back(std::move(operation)); }
  std::shared_ptr<Event> DoRecord(bool) override {
    throw std::logic_error("an op records no event");
  }
  void DoWait(const EventPtr&) override { throw std::logic_error("an op waits for nothing"); }
};

// A device of the type under test, for operations that are recorded and never run: the checker must
// not see them.
class OpTest::NoDevice final : public Device {
 public:
  NoDevice() : Device(nullptr) {}
  DeviceType type() const override { return DeviceUnderTest().type(); }
  std::unique_ptr<Stream> CreateStream(std::string, int, StreamPriority) override {
    return nullptr;
  }
  double Now() const override { return 0; }
  void StartTrace() override {}
  std::vector<Span> TakeTrace() override { return {}; }

 private:
  std::byte* DoAllocate(int64_t, MemoryPlace) override { return nullptr; }
  void DoFree(std::byte*, int64_t, MemoryPlace) noexcept override {}
};

OpTest::OpTest()
    : device_({.spin = false, .checker = std::make_shared<StreamChecker>()}),
      memory_(DeviceUnderTest().CreateMemory(device_)) {
  FSDP_CHECK(GetParam().device == DeviceUnderTest().type());
}

OpTest::~OpTest() = default;

std::vector<DType> OpTest::WeightDTypes() const {
  return dtype() == kF32 ? std::vector{kF32} : std::vector{dtype(), kF32};
}

View OpTest::Allocate(const Shape& shape, DType dtype) {
  const int64_t bytes = shape.NumElements() * SizeOf(dtype);
  return View(memory_->Allocate(bytes, GetParam().place), dtype, shape);
}

void OpTest::SetBytes(const View& view, uint8_t byte) {
  const TestMemory::Bytes bytes(view.bytes(), std::byte{byte});
  memory_->Write(view.data, bytes.data(), view.bytes());
}

DType OpTest::Choose(std::optional<DType> said) {
  if (substitution_) {
    substitution_->said.push_back(said);
    const int made = static_cast<int>(substitution_->said.size());
    if (made == substitution_->operand + 1) return substitution_->dtype;
  }
  return said.value_or(dtype());
}

View OpTest::Input(const Shape& shape, const std::vector<double>& values,
                   std::optional<DType> dtype) {
  const View view = Allocate(shape, Choose(dtype));
  Set(view, values);
  return view;
}

View OpTest::Output(const Shape& shape, std::optional<DType> dtype) {
  const View view = Allocate(shape, Choose(dtype));
  const DType is = view.dtype;
  if (is == DType::kInt32 || is == DType::kInt64 || is == DType::kUInt8) {
    SetBytes(view, 0x7f);
  } else {
    Set(view, std::vector<double>(view.NumElements(), std::numeric_limits<double>::quiet_NaN()));
  }
  return view;
}

View OpTest::Accumulated(const Shape& shape, double before, std::optional<DType> dtype) {
  return Input(shape, std::vector<double>(shape.NumElements(), before), dtype);
}

View OpTest::Workspace(int64_t bytes) {
  const View view = Allocate(Shape{bytes}, DType::kUInt8);
  SetBytes(view, GetParam().place == TensorPlace::kEnd ? 0xff : 0x7b);
  return view;
}

void OpTest::Set(const View& view, const std::vector<double>& values) {
  FSDP_CHECK_EQ(static_cast<int64_t>(values.size()), view.NumElements());
  device_.checker()->OnHostAccess("test writes", {}, {view});
  TestMemory::Bytes bytes(view.bytes());
  ForType(view.dtype, [&](auto is) { Store<typename decltype(is)::type>(bytes.data(), values); });
  memory_->Write(view.data, bytes.data(), view.bytes());
}

std::vector<double> OpTest::Get(const View& view) const {
  device_.checker()->OnHostAccess("test reads", {view}, {});
  const TestMemory::Bytes bytes = ReadBytes(view);
  std::vector<double> values;
  ForType(view.dtype, [&](auto is) {
    values = Load<typename decltype(is)::type>(bytes.data(), view.NumElements());
  });
  return values;
}

TestMemory::Bytes OpTest::ReadBytes(const View& view) const {
  TestMemory::Bytes bytes(view.bytes());
  memory_->Read(view.data, view.bytes(), bytes.data());
  return bytes;
}

void OpTest::Run(const Call& call, int threads) {
  // Tensors are accessible again when the test sees an exception.
  struct Restore {
    TestMemory& memory;
    ~Restore() { memory.Open(); }
  } restore{*memory_};
  memory_->Close();
  SimDevice sim_device({}, nullptr, kernel_type());
  NoDevice no_device;
  Recorder sim(sim_device), recorder(no_device);
  call(sim);
  call(recorder);

  ASSERT_FALSE(sim.operations.empty()) << "nothing was enqueued";
  ASSERT_EQ(sim.operations.size(), recorder.operations.size());
  const auto stream = device_.CreateStream("stream", threads);
  costs_.clear();
  for (size_t i = 0; i < recorder.operations.size(); ++i) {
    const Operation& operation = recorder.operations[i];
    const Operation& simulated = sim.operations[i];
    EXPECT_STRNE(operation.name, "");
    EXPECT_STREQ(operation.name, simulated.name);
    EXPECT_TRUE(SameRanges(operation.reads, simulated.reads));
    EXPECT_TRUE(SameRanges(operation.writes, simulated.writes));
    const Cost cost = Sum(operation.costs), simulated_cost = Sum(simulated.costs);
    EXPECT_EQ(cost.flops, simulated_cost.flops);
    EXPECT_EQ(cost.bytes_read, simulated_cost.bytes_read);
    EXPECT_EQ(cost.bytes_written, simulated_cost.bytes_written);
    EXPECT_GE(cost.flops, 0);
    // Work on empty tensors alone may be free.
    if (Touches(operation.reads) || Touches(operation.writes)) {
      EXPECT_GT(cost.bytes_read + cost.bytes_written, 0);
    }
    costs_.insert(costs_.end(), operation.costs.begin(), operation.costs.end());
    RunOperation(*stream, operation);
  }
}

void OpTest::RunOperation(Stream& stream, const Operation& operation) {
  const int orders = DeviceUnderTest().Orders(dtype(), GetParam().place);
  if (orders > 1) memory_->Open();
  const auto before = orders > 1 ? memory_->Save() : std::vector<TestMemory::Bytes>();
  std::vector<TestMemory::Bytes> first;
  for (int order = 0; order < orders; ++order) {
    Operation work = operation;
    work.kernels = {.cpu = DeviceUnderTest().Kernel(operation.kernels, order)};
    ASSERT_TRUE(work.kernels.cpu) << operation.name << " has no kernel for "
                                  << Name(DeviceUnderTest().type());
    if (order > 0) memory_->Restore(before);
    memory_->Begin(operation);
    stream.Enqueue(std::move(work));
    stream.Synchronize();
    for (const std::string& wrong : memory_->End(operation)) ADD_FAILURE() << wrong;
    if (const std::optional<Launches> launched = DeviceUnderTest().Launched()) {
      const Launches stated = LaunchesOf(operation.costs);
      EXPECT_EQ(launched->kernels, stated.kernels) << operation.name << ": kernels launched";
      EXPECT_EQ(launched->copies, stated.copies) << operation.name << ": copies enqueued";
    }
    if (orders == 1) return;
    memory_->Open();
    if (order == 0) {
      first = memory_->Save();
    } else {
      EXPECT_TRUE(memory_->Save() == first)
          << operation.name << " leaves other bits in another order, or run";
    }
  }
}

std::string OpTest::Refusal(const Call& call) {
  std::string message;
  for (const bool simulated : {true, false}) {
    SimDevice sim_device({}, nullptr, kernel_type());
    NoDevice no_device;
    Recorder recorder(simulated ? static_cast<Device&>(sim_device) : no_device);
    if (substitution_) substitution_->said.clear();
    try {
      call(recorder);
      ADD_FAILURE() << "accepted, want a refusal";
    } catch (const std::invalid_argument& error) {
      message = error.what();
    }
    EXPECT_TRUE(recorder.operations.empty()) << "refused after something was enqueued";
  }
  return message;
}

void OpTest::ExpectRefused(const Call& call, const std::string& message) {
  std::string want = message;
  while (want.find("$T") != std::string::npos) want.replace(want.find("$T"), 2, Name(dtype()));
  const std::string got = Refusal(call);
  EXPECT_NE(got.find(want), std::string::npos) << "got:  " << got << "\nwant: " << want;
}

void OpTest::ExpectDTypesRefused(const std::string& op, const Call& call) {
  NoDevice device;
  Recorder recorder(device);
  substitution_ = {-1, dtype()};
  EXPECT_NO_THROW(call(recorder)) << "with the dtypes that it wants";
  const std::vector<std::optional<DType>> operands = substitution_->said;
  EXPECT_FALSE(operands.empty());
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::vector<DType> good = operands[i] ? std::vector{*operands[i]} : GetParam().supported;
    for (const DType other : kAllDTypes) {
      if (std::find(good.begin(), good.end(), other) != good.end()) continue;
      substitution_ = {static_cast<int>(i), other};
      SCOPED_TRACE("operand " + std::to_string(i) + " in " + std::string(Name(other)));
      const std::string got = Refusal(call);
      // "[op] operand is fp16 ..., want ... fp32".
      const size_t begin = op.size() + 3, is = got.find(' ', begin), want = got.find(", want ", is);
      const std::string_view good_name = Name(operands[i].value_or(dtype()));
      EXPECT_TRUE(want != std::string::npos && got.starts_with("[" + op + "] ") && is > begin &&
                  got.substr(is).starts_with(" is " + std::string(Name(other))) &&
                  got.find(good_name, want) != std::string::npos)
          << "got: " << got << "\nwant: " << good_name;
    }
  }
  substitution_.reset();
}

void OpTest::ExpectSameBits(const Call& call, const std::vector<View>& results) {
  const std::vector<TestMemory::Bytes> before = memory_->Save();
  const auto run = [&](int threads) {
    memory_->Restore(before);
    Run(call, threads);
    std::vector<TestMemory::Bytes> after;
    for (const View& view : results) after.push_back(ReadBytes(view));
    return after;
  };
  const std::vector<TestMemory::Bytes> one = run(1);
  // Where a device has several orders Run() has compared them, if not for this case.
  if (DeviceUnderTest().Orders(kF32, TensorPlace::kEnd) > 1) return;
  for (const int threads : {GetParam().threads, GetParam().threads, GetParam().threads + 2}) {
    EXPECT_TRUE(run(threads) == one) << threads << " threads";
  }
}

std::map<std::string, std::vector<std::string>>& LaunchedKernels::Said() {
  static std::map<std::string, std::vector<std::string>> said;
  return said;
}

LaunchedKernels::LaunchedKernels(const char* source, const std::vector<std::string>& kernels) {
  Said()[std::filesystem::path(source).stem().string()] = kernels;
}

}  // namespace fsdp
