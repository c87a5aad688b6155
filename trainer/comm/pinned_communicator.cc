#include "trainer/comm/pinned_communicator.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "trainer/core/check.h"
#include "trainer/core/round_up.h"
#include "trainer/runtime/cuda/for_communicators.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// Where the second tensor of a piece begins.
constexpr int64_t kAlignment = 64;

class PinnedCommunicator final : public Communicator {
 public:
  PinnedCommunicator(std::unique_ptr<Communicator> over, Device& device, int64_t staging_bytes)
      : Communicator(over->group(), DeviceType::kCuda),
        over_(std::move(over)),
        staging_(device.Allocate(staging_bytes, MemoryPlace::kPinned)) {}
  ~PinnedCommunicator() override;

  void Abort(const std::string& why) override { over_->Abort(why); }

 private:
  void Enqueue(Stream& stream, Operation operation, const CollectiveCall& call) override;
  void Run(Stream& stream, const CollectiveCall& call, int64_t begin, int64_t n);
  void RunUneven(Stream& stream, const CollectiveCall& call, int64_t begin, int64_t n);
  int64_t LargestPiece(const CollectiveCall& call) const;
  static void Copy(Stream& stream, const char* name, const Rows& rows, std::byte* to,
                   const std::byte* from);

  std::unique_ptr<Communicator> over_;
  Buffer staging_;
  // Layouts of pieces, by the hash of the whole, the piece's begin and its most elements.
  std::map<std::tuple<uint64_t, int64_t, int64_t>, ExchangeLayout> pieces_;
  EventPtr last_;  // Behind all uses of the staging memory.
};

PinnedCommunicator::~PinnedCommunicator() {
  over_.reset();
  if (last_ == nullptr) return;
  for (int ms = 0; ms < 1000 && !last_->Ready(); ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!last_->Ready()) {
    new Buffer(std::move(staging_));
    return;
  }
  try {
    last_->Synchronize();
  } catch (...) {  // The stream's owner hears of it.
  }
}

// Elements, as `n` of a call. All ranks find the same.
int64_t PinnedCommunicator::LargestPiece(const CollectiveCall& call) const {
  const int64_t element = SizeOf(call.dtype);
  int64_t bytes = element;  // Bytes of an element of `n` in all tensors.
  switch (call.kind) {
    case Collective::kAllGather:
      bytes = size() * element;
      break;
    case Collective::kReduceScatter:
      bytes = size() * element + SizeOf(call.result);
      break;
    case Collective::kAllToAll:
      bytes = 2 * size() * element;
      break;
    case Collective::kAllReduce:
    case Collective::kBroadcast:
      break;
  }
  const int64_t largest = (staging_.bytes() - kAlignment) / bytes;
  FSDP_CHECK_LE(1, largest) << "staging memory of " << staging_.bytes() << " bytes";
  return largest;
}

void PinnedCommunicator::Enqueue(Stream& stream, Operation, const CollectiveCall& call) {
  over_->CountIn(call.traffic);
  const int64_t largest = LargestPiece(call);
  const int64_t all = call.kind == Collective::kAllToAll ? MostForOne(call) : call.n;
  int64_t begin = 0;
  do {
    const int64_t n = std::min(largest, all - begin);
    call.layout ? RunUneven(stream, call, begin, n) : Run(stream, call, begin, n);
    begin += n;
  } while (begin < all);
  last_ = stream.Record();
}

// Elements [begin, begin + n) of each slice of the call.
void PinnedCommunicator::Run(Stream& stream, const CollectiveCall& call, int64_t begin, int64_t n) {
  const int64_t element = SizeOf(call.dtype);
  const std::byte* const in = call.in + begin * element;
  std::byte* const out = call.out + begin * SizeOf(call.result);
  const View one(staging_.data(), call.dtype, Shape{n});
  const View all(staging_.data(), call.dtype, Shape{size() * n});
  const Rows slice{1, one.bytes()};
  const Rows gathered{size(), one.bytes(), one.bytes(), call.bytes()};   // From the call's tensor,
  const Rows scattered{size(), one.bytes(), call.bytes(), one.bytes()};  // and to it.
  const auto to_pinned = [&](const Rows& rows, const View& to) {
    Copy(stream, "to_pinned", rows, to.data, in);
  };
  const auto from_pinned = [&](const Rows& rows, const View& from) {
    Copy(stream, "from_pinned", rows, out, from.data);
  };
  switch (call.kind) {
    case Collective::kAllGather: {
      const View own = all.Slice(rank() * n, n);
      to_pinned(slice, own);
      over_->AllGather(stream, own, all, call.counts_as);
      from_pinned(scattered, all);
      break;
    }
    case Collective::kReduceScatter: {
      const bool in_place = call.result == call.dtype;
      const View sum = in_place ? all.Slice(rank() * n, n)
                                : View(staging_.data() + RoundUp(all.bytes(), kAlignment),
                                       call.result, Shape{n});
      to_pinned(gathered, all);
      over_->ReduceScatter(stream, all, sum);
      from_pinned({1, sum.bytes()}, sum);
      break;
    }
    case Collective::kAllReduce:
      to_pinned(slice, one);
      over_->AllReduce(stream, one);
      from_pinned(slice, one);
      break;
    case Collective::kAllToAll: {
      const View received(staging_.data() + RoundUp(all.bytes(), kAlignment), call.dtype,
                          all.shape);
      to_pinned(gathered, all);
      over_->AllToAll(stream, all, received, call.counts_as);
      from_pinned(scattered, received);
      break;
    }
    case Collective::kBroadcast:
      if (rank() == call.root) to_pinned(slice, one);
      over_->Broadcast(stream, one, call.root);
      if (rank() != call.root) from_pinned(slice, one);
      break;
  }
}

// Elements [begin, begin + n) of what each rank has for each other, as far as there are so many.
void PinnedCommunicator::RunUneven(Stream& stream, const CollectiveCall& call, int64_t begin,
                                   int64_t n) {
  auto piece = pieces_.find({call.layout_hash, begin, n});
  if (piece == pieces_.end()) {
    std::vector<int64_t> counts;
    for (int from = 0; from < size(); ++from) {
      for (int to = 0; to < size(); ++to) {
        counts.push_back(std::clamp<int64_t>(SentOf(call, from, to).count - begin, 0, n));
      }
    }
    piece = pieces_.try_emplace({call.layout_hash, begin, n}, size(), std::move(counts)).first;
  }
  const ExchangeLayout& layout = piece->second;
  const int64_t element = SizeOf(call.dtype);
  const View sent(staging_.data(), call.dtype, Shape{size() * n});
  const View arrived(staging_.data() + RoundUp(sent.bytes(), kAlignment), call.dtype, sent.shape);
  for (int r = 0; r < size(); ++r) {
    const Stretch part = layout.Sent(rank(), r);
    Copy(stream, "to_pinned", {1, part.count * element}, sent.data + part.begin * element,
         call.in + (SentOf(call, rank(), r).begin + begin) * element);
  }
  over_->Exchange(stream, layout, sent, arrived);
  for (int r = 0; r < size(); ++r) {
    const Stretch part = layout.Arrived(rank(), r);
    Copy(stream, "from_pinned", {1, part.count * element},
         call.out + (ArrivedOf(call, rank(), r).begin + begin) * element,
         arrived.data + part.begin * element);
  }
}

void PinnedCommunicator::Copy(Stream& stream, const char* name, const Rows& rows, std::byte* to,
                              const std::byte* from) {
  if (rows.bytes == 0) return;
  Operation operation;
  operation.name = name;
  for (int64_t row = 0; row < rows.rows; ++row) {
    operation.reads.push_back(Range(from + row * rows.from_pitch, rows.bytes));
    operation.writes.push_back(Range(to + row * rows.to_pitch, rows.bytes));
  }
  const auto bytes = static_cast<double>(rows.rows * rows.bytes);
  const Cost cost{.bytes_read = bytes, .bytes_written = bytes};
  operation.costs = {{KernelKind::kCopy, cost, {.launches = rows.rows}}};
  operation.kernels.cuda = OnCuda(CopyRowsCuda, rows, to, from);
  stream.Enqueue(std::move(operation));
}

}  // namespace

std::unique_ptr<Communicator> MakePinnedCommunicator(std::unique_ptr<Communicator> over,
                                                     Device& device, int64_t staging_bytes) {
  return std::make_unique<PinnedCommunicator>(std::move(over), device, staging_bytes);
}

}  // namespace fsdp
