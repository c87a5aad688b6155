#include "trainer/fsdp/table_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/fsdp/unit_memory.h"
#include "trainer/ops/bags.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/reductions.h"
#include "trainer/ops/table_rows.h"
#include "trainer/runtime/operation.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {
namespace {

const MemoryUse kPinned{MemoryKind::kActivations, MemoryPlace::kPinned};
constexpr int64_t kUploadElements = int64_t{1} << 20;

// `function` writes `part`, in the host's memory.
template <typename Function>
void InitializePart(Stream& stream, const View& part, Function function) {
  Operation operation{"initialize", {}, {part}, {}};
  operation.costs = {Cost{.bytes_written = static_cast<double>(part.bytes())}};
  operation.kernels.host = OnCpu(std::move(function), part);
  stream.Enqueue(std::move(operation));
}

View Matrix(const View& flat, int64_t cols) {
  return flat.Reshape(Shape{flat.NumElements() / cols, cols});
}

}  // namespace

TableExchange::TableExchange(Device& device, PhasedAllocator& allocator, const TableLayout& layout,
                             const BatchSpec& spec, int position, Communicator* over)
    : device_(device), layout_(layout), position_(position), over_(over) {
  CheckTables(layout.tables, spec);
  TakeMemory(allocator, spec);
  if (device.type() == DeviceType::kSim) return;
  std::memset(batch_bytes_.data, 0, batch_bytes_.bytes());
  std::memset(next_bytes_.data, 0, next_bytes_.bytes());
}

void TableExchange::TakeMemory(PhasedAllocator& allocator, const BatchSpec& spec) {
  const int64_t width = layout_.width(), ids = layout_.step_ids(), rows = layout_.own_rows();
  const int64_t ranks = layout_.world, round = ranks * layout_.round_rows();
  const auto persistent = [&](int64_t elements, DType dtype, MemoryUse use) {
    return NewPersistent(allocator, elements, use, dtype);
  };
  constexpr MemoryKind kActivations = MemoryKind::kActivations;
  table_ = Matrix(persistent(rows * width, layout_.dtype(), MemoryKind::kParameters), width);
  sums_ = persistent(rows, DType::kFloat32, MemoryKind::kOptimizer);
  vectors_ = Matrix(persistent(ids * width, layout_.dtype(), kActivations), width);
  gradient_ = Matrix(persistent(ids * width, DType::kFloat32, MemoryKind::kGradients), width);
  const auto in_round = [&] {
    return persistent(round, DType::kInt64, kActivations).Reshape(Shape{ranks, round / ranks});
  };
  places_ = in_round();
  asked_ids_ = in_round();
  const int64_t bytes = round * width * SizeOf(DType::kFloat32);
  sent_ = NewBytes(allocator, bytes, kActivations);
  if (over_) {
    came_ids_ = in_round();
    arrived_ = NewBytes(allocator, bytes, kActivations);
  }
  first_slot_ = persistent(std::ssize(layout_.first_slot), DType::kInt32, kActivations);
  const int64_t upload = std::min(rows, std::max<int64_t>(kUploadElements / width, 1)) * width;
  upload_ = persistent(std::max(upload, first_slot_.NumElements()), DType::kFloat32, kPinned);
  route_bytes_ = NewBytes(allocator, TableRouteBytes(layout_), kActivations);
  next_bytes_ = NewBytes(allocator, TableRouteBytes(layout_), kPinned);
  route_ = CarveTableRoute(layout_, route_bytes_);
  next_ = CarveTableRoute(layout_, next_bytes_);
  work_ = NewBytes(allocator, TableRouteWorkBytes(layout_), kPinned);
  batch_bytes_ = NewBytes(allocator, BatchBytes(spec, layout_.batch_rows), kPinned);
  batch_ = CarveBatch(spec, layout_.batch_rows, batch_bytes_.data);
  rounds_ = persistent(ranks, DType::kInt32, kActivations);
  report_ = persistent(ranks, DType::kInt32, kPinned);
  squares_ = persistent(1, DType::kFloat32, kActivations);
  ids_input_ = spec.IndexOf(kTableIds);
}

View TableExchange::Typed(const View& bytes, DType dtype) const {
  const int64_t rows = layout_.world * layout_.round_rows();
  return {bytes.data, dtype, Shape{rows, layout_.width()}};
}

void TableExchange::Begin(Stream& exchanges, Stream& stream) {
  stream_ = &exchanges;
  const View slots(upload_.data, DType::kInt32, first_slot_.shape);
  InitializePart(stream, slots, [this](ThreadPool&, const View& host) {
    std::ranges::copy(layout_.first_slot, host.As<int32_t>());
  });
  Copy(stream, slots, first_slot_);
}

void TableExchange::Initialize(Stream& stream, const FillRows& fill) {
  const int64_t width = layout_.width();
  const View rows = table_.Reshape(Shape{table_.NumElements()});
  const int64_t most = upload_.NumElements() / width;
  for (int64_t at = 0; at < layout_.own_rows(); at += most) {
    const View part = upload_.Slice(0, std::min(most, layout_.own_rows() - at) * width);
    InitializePart(stream, part, [this, at, width, fill](ThreadPool& pool, const View& host) {
      pool.ParallelFor(host.NumElements() / width, 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const std::span<float> values(host.As<float>() + i * width, static_cast<size_t>(width));
          const auto row = layout_.At(position_, at + i);
          std::fill(values.begin(), values.end(), 0.0f);
          if (row) fill(layout_.tables[row->table], row->row * width, values);
        }
      });
    });
    Cast(stream, part, rows.Slice(at * width, part.NumElements()));
  }
  fsdp::Fill(stream, 0, sums_);
}

void TableExchange::Route(Stream& data, const Load& load, int micro_batches) {
  if (!load) return;
  Operation operation{"route", {}, {batch_bytes_, work_, next_bytes_}, {}};
  operation.costs = {Cost{.bytes_written = static_cast<double>(next_bytes_.bytes())}};
  const auto route = [this, load, micro_batches](ThreadPool&, const Batch& batch, const View& bytes,
                                                 const View& work, const View& ids) {
    TableRouteMaker maker(layout_, CarveTableRoute(layout_, bytes), work);
    for (int m = 0; m < micro_batches; ++m) {
      load(m, batch);
      maker.Add(ids);
    }
    maker.Finish();
  };
  operation.kernels.host = OnCpu(route, batch_, next_bytes_, work_, batch_.inputs[ids_input_]);
  data.Enqueue(std::move(operation));
}

void TableExchange::Agree(Stream& stream) {
  const View own = rounds_.Slice(position_, 1);
  Copy(stream, next_.log2_rounds, own);
  if (over_) over_->AllGather(stream, own, rounds_);
  Copy(stream, rounds_, report_);
  agreed_ = stream.Record();
}

void TableExchange::TakeRounds(int64_t index) {
  FSDP_CHECK(agreed_ != nullptr);
  std::exchange(agreed_, nullptr)->Synchronize();
  log2_rounds_ = 0;
  rounds_of_[index % 2] = 1;
  if (device_.type() == DeviceType::kSim) return;
  if (device_.checker()) device_.checker()->OnHostAccess("rounds", {report_}, {});
  const int32_t* const rounds = report_.As<int32_t>();
  log2_rounds_ = *std::max_element(rounds, rounds + layout_.world);
  rounds_of_[index % 2] = this->rounds();
}

void TableExchange::Turn(Stream& stream) { Copy(stream, next_bytes_, route_bytes_); }

void TableExchange::AskFor(Stream& stream, int64_t round) {
  PlacesOfRound(stream, {round, log2_rounds_}, route_.rows, route_.owners, places_, asked_ids_);
  if (over_) over_->AllToAll(stream, asked_ids_, came_ids_);
}

void TableExchange::Fetch(Stream& stream) {
  const View sent = Typed(sent_, layout_.dtype()), arrived = Typed(this->arrived(), sent.dtype);
  const auto flat = [](const View& ids) { return ids.Reshape(Shape{ids.NumElements()}); };
  for (int64_t round = 0; round < rounds(); ++round) {
    AskFor(stream, round);
    TakeRows(stream, table_, flat(arrived_ids()), sent);
    if (over_) over_->AllToAll(stream, sent, arrived);
    PutRows(stream, arrived, flat(places_), vectors_);
  }
}

void TableExchange::Clear(Stream& stream) { fsdp::Fill(stream, 0, gradient_); }

void TableExchange::SendRound(Stream& stream, int64_t round) {
  AskFor(stream, round);
  const View sent = Typed(sent_, DType::kFloat32);
  TakeRows(stream, gradient_, places_.Reshape(Shape{places_.NumElements()}), sent);
  if (over_) over_->AllToAll(stream, sent, Typed(arrived_, DType::kFloat32));
}

void TableExchange::Send(Stream& stream) { SendRound(stream, 0); }

void TableExchange::Update(Stream& stream, const std::function<void(const RowUpdate&)>& update) {
  const View gradients = Typed(arrived(), DType::kFloat32)
                             .Reshape(Shape{layout_.world, layout_.round_rows(), width()});
  for (int64_t round = 0; round < rounds(); ++round) {
    if (round > 0) SendRound(stream, round);
    update({.ids = arrived_ids(),
            .gradients = gradients,
            .table = table_,
            .sums = sums_,
            .position = position_,
            .world = layout_.world});
  }
}

void TableExchange::Check(Stream& stream, const std::optional<View>& loss_scale, const View& sum,
                          const View& workspace) {
  const View all = gradient_.Reshape(Shape{gradient_.NumElements()});
  fsdp::Fill(stream, 0, squares_);
  if (loss_scale) {
    return UnscaledSumOfSquares(stream, all, *loss_scale, squares_, sum, workspace);
  }
  SumOfSquares(stream, all, squares_, workspace);
  Scale(stream, 0, squares_);
  Accumulate(stream, squares_, sum);
}

void TableExchange::Pool(Stream& stream, View out) {
  PoolBags(stream, vectors_, route_.PlacesOf(layout_, micro_batch_), first_slot_, out);
}

void TableExchange::AddGradient(Stream& stream, ConstView d) {
  PoolBagsBackward(stream, d, route_.PlacesOf(layout_, micro_batch_),
                   route_.OrderOf(layout_, micro_batch_), first_slot_, gradient_);
}

}  // namespace fsdp
