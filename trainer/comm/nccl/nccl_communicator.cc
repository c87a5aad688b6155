#include "trainer/comm/nccl/nccl_communicator.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/comm/nccl/group_news.h"
#include "trainer/comm/nccl/nccl_collectives.h"
#include "trainer/comm/nccl/nccl_link.h"
#include "trainer/comm/nccl/sum_in_order.h"
#include "trainer/comm/patience.h"
#include "trainer/comm/rendezvous.h"
#include "trainer/comm/shm/shared_memory.h"
#include "trainer/comm/traffic.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/start_thread.h"
#include "trainer/runtime/cuda/for_communicators.h"
#include "trainer/runtime/gpu_libraries.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr std::chrono::milliseconds kLook{5};
// A call that takes longer is held against those of the others, for ranks that disagree wait for
// each other: by one rank, whom all answer, and by a second one, should the first not be in it.
constexpr double kCompareAfter_s = 5;
constexpr int kWhoCompare = 2;
constexpr double kAnswer_s = 2;  // A rank's, where it is.
// A call that all have made ends, though one of them is gone; if not, nobody comes any more.
constexpr double kEndedPatience_s = 3;
constexpr int64_t kMeetingBytes = 512;
constexpr uint64_t kNobody = std::numeric_limits<uint64_t>::max();

Patience PatienceOf(double seconds) {
  return Patience(std::chrono::duration_cast<Patience::Clock::duration>(
      std::chrono::duration<double>(seconds)));
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Device& device, std::unique_ptr<NcclLink> link, Buffer meeting, Store& store,
                   const std::string& key, const std::string& what, const RankGroup& group,
                   const NcclOptions& options)
      : Communicator(group, DeviceType::kCuda),
        store_(store),
        key_(key),
        what_(what),
        group_(group),
        timeout_s_(options.comm.timeout_s),
        device_(device),
        options_(options),
        link_(std::move(link)),
        meeting_(std::move(meeting)),
        collectives_(*link_, group.rank(), group.size(), options,
                     meeting_.As(DType::kUInt8, Shape{meeting_.bytes()})),
        news_(store, key, group,
              {.ended = [this](uint64_t calls, const std::string& why) { PeerEnded(calls, why); },
               .lost = [this](const std::string& why) { Fail(why, /*tell=*/false); },
               .position = [this] { return Position(); }}) {
    (void)cudaGetDevice(&gpu_);
    watch_ = StartThread("the thread that watches NCCL", [this] { Watch(); });
  }
  ~NcclCommunicator() override;

  void Try(Device& device, const std::vector<Size>& sizes) override;

  void Abort(const std::string& why) override { Fail(Me() + " aborted: " + why, /*tell=*/true); }

 private:
  struct InFlight {
    CallPosition::Call call;
    EventPtr before, after;  // `after` is null while it is being enqueued.
    FailHere fail;
    bool begun = false;

    bool over() const { return after != nullptr && after->Ready(); }
  };

  std::string Me() const { return "rank " + std::to_string(group_.NameOf(rank())); }

  void Rehearse(Device& device, const std::vector<Size>& sizes);
  // Calls in the memory, one behind the other, in place where they may be. Forgotten afterwards:
  // the first call that counts is #0.
  void Rehearse(Device& device, const View& memory, const std::vector<Size>& sizes);
  // Takes the staging memory, if it is to be used for the first time.
  void Stage(Device& device, Collective kind, DType dtype, DType result);
  void Enqueue(Stream& stream, Operation operation, const CollectiveCall& call) override;
  std::string Begin(InFlight call);  // Why it fails at once; empty: it does not.
  void Launch(CudaStreamHandle stream, const CollectiveCall& call);

  void Fail(const std::string& why, bool tell);
  void PeerEnded(uint64_t calls, const std::string& why);
  std::string Position();

  void Watch();
  // With the lock, which Compare() opens.
  void Look(std::unique_lock<std::mutex>& lock);
  void Advance();
  void ArmPatience();
  void FailAll(const std::string& why, bool tell);
  void Compare(std::unique_lock<std::mutex>& lock, const CallPosition::Call& call,
               const std::string& otherwise, bool late);
  std::string Cause(const CallPosition::Call& call, const std::string& otherwise, bool late);

  Store& store_;
  const std::string key_, what_;  // In the store; for errors.
  int tries_ = 0;
  const RankGroup group_;
  const double timeout_s_;
  int gpu_ = 0;
  Device& device_;
  const NcclOptions options_;
  const std::unique_ptr<NcclLink> link_;
  Buffer meeting_, staging_;  // The latter is empty until a sum needs it.
  NcclCollectives collectives_;
  // Used by the calling thread.
  EventPtr last_;  // Behind all uses of the staging memory.
  const Stream* last_stream_ = nullptr;

  std::mutex mutex_;  // Guards what follows, down to the news.
  std::condition_variable wake_;
  std::deque<InFlight> calls_;
  CallPosition begun_;
  uint64_t done_ = 0;    // Calls.
  std::string failure_;  // Empty: none.
  bool tell_ = false;    // The others have yet to hear of it.
  // A rank that has failed or left had done so many calls, and why the first of them did.
  uint64_t ended_at_ = kNobody;
  std::string why_ended_;
  Patience patience_{{}}, compare_{{}};  // With the oldest call, since it has begun.
  bool compared_ = false;
  bool stop_ = false;

  GroupNews news_;
  std::thread watch_;
};

NcclCommunicator::~NcclCommunicator() {
  const std::string why = Me() + " has left the group";
  std::string failure;  // To be told.
  uint64_t done = 0;
  bool well = false;
  {
    std::lock_guard lock(mutex_);
    Advance();
    well = failure_.empty() && calls_.empty();
    if (!well) FailAll(why, /*tell=*/false);
    if (std::exchange(tell_, false)) failure = failure_;
    done = done_;
    stop_ = true;
  }
  wake_.notify_all();
  // Before this rank waits for an abort: the others wait for it.
  if (!failure.empty()) news_.Fail(done, failure);
  news_.Leave(done, why);
  watch_.join();
  well ? link_->Finish() : link_->Abort();
  if (last_ == nullptr) return;
  for (int ms = 0; ms < 1000 && !last_->Ready(); ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (last_->Ready()) return;
  for (Buffer* buffer : {&meeting_, &staging_}) {  // Work that still goes on may write to them.
    new Buffer(std::move(*buffer));
  }
}

void NcclCommunicator::Try(Device& device, const std::vector<Size>& sizes) {
  if (sizes.empty()) return;
  Card tried;
  tried.error = ErrorOf([&] { Rehearse(device, sizes); });
  // So nobody hears that a rank has left, and after how many calls, while it still tries.
  ExchangeCards(store_, key_ + "/tried " + std::to_string(tries_++), what_, group_, tried);
}

// NCCL has algorithms by kind and size, and connections for each: the smallest call of a kind is
// tried beside the largest.
void NcclCommunicator::Rehearse(Device& device, const std::vector<Size>& sizes) {
  std::vector<Size> all;
  int64_t most = 0;
  for (const Size& s : sizes) {
    Stage(device, s.kind, s.dtype, s.kind == Collective::kReduceScatter ? s.result : s.dtype);
    Size smallest = s;
    smallest.n = 1;
    if (!s.layout && s.n > 1) all.push_back(smallest);
    all.push_back(s);
    most = std::max(most, RehearsalBytes(s, rank(), size()));
  }
  if (most == 0) return;
  const Buffer data = device.Allocate(most);
  Rehearse(device, data.As(DType::kUInt8, Shape{most}), all);
}

void NcclCommunicator::Stage(Device& device, Collective kind, DType dtype, DType result) {
  if (staging_.bytes() > 0 || !SumsHere(options_, kind, dtype, result)) return;
  staging_ = device.Allocate(options_.staging_bytes);
  collectives_.SetStaging(staging_.As(DType::kUInt8, Shape{staging_.bytes()}));
}

void NcclCommunicator::Rehearse(Device& device, const View& memory,
                                const std::vector<Size>& sizes) {
  const std::unique_ptr<Stream> stream = device.CreateStream("nccl");
  CollectiveCall call;
  for (const Size& s : sizes) {
    const uint64_t sequence = call.sequence;
    call = RehearsalOf(s, rank(), size(), memory.data);
    call.sequence = sequence;
    Operation operation;
    operation.name = Name(s.kind);
    operation.writes = {Range(memory.data, memory.bytes())};
    Enqueue(*stream, std::move(operation), call);
    ++call.sequence;
  }
  stream->Synchronize();
  std::lock_guard lock(mutex_);
  Advance();
  last_ = nullptr;
  last_stream_ = nullptr;
  begun_ = {};
  done_ = 0;
}

void NcclCommunicator::Enqueue(Stream& stream, Operation operation, const CollectiveCall& call) {
  if (last_stream_ != &stream) stream.Wait(last_);
  Stage(device_, call.kind, call.dtype, call.result);
  InFlight in_flight;
  in_flight.call = {call.sequence, ToString(call)};
  in_flight.before = stream.Record();
  in_flight.fail = MayFailHere(stream, operation.name);
  const std::string failure = Begin(std::move(in_flight));
  wake_.notify_all();
  for (const Buffer* buffer : {&meeting_, &staging_}) {
    if (buffer->bytes() > 0) operation.writes.push_back(Range(buffer->data(), buffer->bytes()));
  }
  if (collectives_.OverwritesInput(call)) {
    operation.writes.push_back(Range(call.in, size() * call.bytes()));
  }
  operation.kernels.cuda = [&](CudaStreamHandle handle) {
    if (!failure.empty()) throw CommError(failure);
    Launch(handle, call);
  };
  stream.Enqueue(std::move(operation));
  last_ = stream.Record();
  last_stream_ = &stream;
  {
    std::lock_guard lock(mutex_);
    if (!calls_.empty() && calls_.back().call.sequence == call.sequence)
      calls_.back().after = last_;
  }
  wake_.notify_all();
}

std::string NcclCommunicator::Begin(InFlight call) {
  std::lock_guard lock(mutex_);
  if (!failure_.empty()) return failure_;
  if (call.call.sequence >= ended_at_) return why_ended_;
  calls_.push_back(std::move(call));
  return "";
}

void NcclCommunicator::Launch(CudaStreamHandle stream, const CollectiveCall& call) {
  try {
    collectives_.Run(stream, call);
    CountTaken(call, BytesTaken(call, rank(), size()));
  } catch (const CommError& error) {
    const CallPosition::Call mine{call.sequence, ToString(call)};
    bool first = false;
    {
      std::lock_guard lock(mutex_);
      first = failure_.empty();
    }
    if (first) {
      const std::string why = Me() + ": " + error.what() + ", in " + mine.text;
      Fail(Cause(mine, why, /*late=*/false), /*tell=*/true);
    }
    std::lock_guard lock(mutex_);
    throw CommError(failure_);
  }
}

void NcclCommunicator::Fail(const std::string& why, bool tell) {
  {
    std::lock_guard lock(mutex_);
    FailAll(why, tell);
  }
  wake_.notify_all();
}

// Before they are ended on the GPU: an event that passes then must be a failed one.
void NcclCommunicator::FailAll(const std::string& why, bool tell) {
  if (!failure_.empty()) return;
  Advance();
  const bool ended = !calls_.empty() && calls_.front().call.sequence >= ended_at_;
  failure_ = ended ? why_ended_ : why;
  tell_ = tell && !ended;
  const std::exception_ptr error = std::make_exception_ptr(CommError(failure_));
  for (const InFlight& call : calls_) call.fail(error);
  calls_.clear();
}

// Calls that the rank has done end here by themselves.
void NcclCommunicator::PeerEnded(uint64_t calls, const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    ended_at_ = std::min(ended_at_, calls);
    if (why_ended_.empty()) why_ended_ = why;
    ArmPatience();
  }
  wake_.notify_all();
}

std::string NcclCommunicator::Position() {
  std::lock_guard lock(mutex_);
  Advance();
  return begun_.ToString();
}

void NcclCommunicator::Watch() {
  (void)cudaSetDevice(gpu_);
  std::unique_lock lock(mutex_);
  while (!stop_ && failure_.empty()) {
    if (calls_.empty()) {
      wake_.wait(lock);
    } else {
      wake_.wait_for(lock, kLook);
    }
    if (failure_.empty()) Look(lock);
  }
  if (stop_) return;  // The rest is the destructor's.
  const std::string failure = failure_;
  const uint64_t done = done_;
  const bool tell = std::exchange(tell_, false);
  lock.unlock();
  // NCCL's abort is for all ranks: first they hear of it.
  if (tell) news_.Fail(done, failure);
  link_->Abort();
}

void NcclCommunicator::Look(std::unique_lock<std::mutex>& lock) {
  Advance();
  if (calls_.empty()) return;
  const InFlight& oldest = calls_.front();
  const CallPosition::Call call = oldest.call;
  if (call.sequence >= ended_at_) return FailAll(why_ended_, /*tell=*/false);
  if (oldest.begun && patience_.over()) {
    if (ended_at_ != kNobody) return FailAll(why_ended_, /*tell=*/true);
    std::ostringstream why;
    why << call.text << " timed out after " << timeout_s_ << " s";
    return Compare(lock, call, why.str(), /*late=*/true);
  }
  if (const std::string error = link_->AsyncError(); !error.empty()) {
    return Compare(lock, call, Me() + ": NCCL: " + error + ", in " + call.text, /*late=*/true);
  }
  if (oldest.begun && !compared_ && compare_.over()) {
    compared_ = true;
    Compare(lock, call, "", /*late=*/false);
  }
}

void NcclCommunicator::Advance() {
  bool next = false;
  for (; !calls_.empty() && calls_.front().over(); calls_.pop_front()) {
    if (!calls_.front().begun) begun_.Begin(calls_.front().call);
    done_ = calls_.front().call.sequence + 1;
    next = true;
  }
  if (calls_.empty()) return;
  InFlight& oldest = calls_.front();
  if (!oldest.begun && oldest.before->Ready()) {
    oldest.begun = next = true;
    begun_.Begin(oldest.call);
  }
  if (!next) return;
  ArmPatience();
  const int turn = rank() + 1;
  compare_ = PatienceOf(std::min(turn * kCompareAfter_s, timeout_s_ * turn / (turn + 1)));
  compared_ = rank() >= kWhoCompare;
}

void NcclCommunicator::ArmPatience() {
  patience_ =
      PatienceOf(ended_at_ == kNobody ? timeout_s_ : std::min(kEndedPatience_s, timeout_s_));
}

void NcclCommunicator::Compare(std::unique_lock<std::mutex>& lock, const CallPosition::Call& call,
                               const std::string& otherwise, bool late) {
  lock.unlock();
  const std::string why = Cause(call, otherwise, late);
  lock.lock();
  Advance();
  const bool there = !calls_.empty() && calls_.front().call.sequence == call.sequence;
  if (!why.empty() && (there || !link_->AsyncError().empty())) FailAll(why, /*tell=*/true);
}

// The mistake in a call where ranks disagree. Where they agree: `otherwise`, if any, and with
// `late` the ranks that are late.
std::string NcclCommunicator::Cause(const CallPosition::Call& call, const std::string& otherwise,
                                    bool late) {
  CallPositions positions;
  for (const auto& text : news_.Positions(kAnswer_s)) {
    positions.push_back(text ? std::optional(CallPosition::Parse(*text)) : std::nullopt);
  }
  std::string why = Disagreement(call.sequence, group_, positions);
  if (!why.empty()) return why;
  const std::string who = late ? WhoIsLate(call.sequence, group_, positions) : "";
  return otherwise + (otherwise.empty() || who.empty() ? "" : ": " + who);
}

// A card has one line.
std::string Hex(const ncclUniqueId& id) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : id.internal) {
    const auto byte = static_cast<unsigned char>(c);
    text += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  return text;
}

ncclUniqueId IdOf(const std::string& hex) {
  ncclUniqueId id = {};
  if (hex.size() != 2 * sizeof(id.internal)) throw CommError("NCCL's unique id is cut off");
  for (size_t i = 0; i < sizeof(id.internal); ++i) {
    id.internal[i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

}  // namespace

std::shared_ptr<const NcclLibrary> FindNccl() { return std::make_shared<const NcclLibrary>(); }

std::string VersionText(const NcclLibrary& nccl) { return GpuLibraryVersionText(nccl.version); }

int VersionOf(const NcclLibrary& nccl) { return nccl.version; }

std::unique_ptr<Communicator> CreateNcclCommunicator(std::shared_ptr<const NcclLibrary> nccl,
                                                     Device& device, Store& store,
                                                     const std::string& name,
                                                     const RankGroup& group,
                                                     const NcclOptions& options) {
  FSDP_CHECK(SumInOrderCuda != nullptr) << "nobody links ops/cuda/sum_in_order_cuda.cu";
  const std::string key = "nccl/" + name, what = "[nccl] " + name, failed = key + "/not connected";
  // This also makes the device's GPU the thread's, which NCCL takes.
  Buffer meeting = device.Allocate(kMeetingBytes);
  Card mine = MyCard();
  mine.error = ErrorOf([&] {
    if (group.rank() == 0) mine.words = Hex(MakeNcclId(*nccl));
  });
  const std::vector<Card> cards = ExchangeCards(store, key + "/id", what, group, mine);
  std::unique_ptr<NcclLink> link;
  bool in_vain = false;  // Another rank cannot, and says why.
  Card connected;
  connected.error = ErrorOf([&] {
    Patience patience = PatienceOf(options.comm.timeout_s), ask = PatienceOf(0.1);
    link = std::make_unique<NcclLink>(std::move(nccl), what, IdOf(cards[0].words), group.rank(),
                                      group.size(), options.max_blocks, options.end_patience_s);
    link->Connect([&] {
      if (patience.over()) {
        std::ostringstream why;
        const char* const interface = std::getenv("NCCL_SOCKET_IFNAME");
        why << "not connected within " << options.comm.timeout_s << " s, over "
            << (interface != nullptr
                    ? "NCCL_SOCKET_IFNAME=" + std::string(interface)
                    : "an interface of NCCL's choice (NCCL_SOCKET_IFNAME names one)")
            << "; InfiniBand's adapters are NCCL_IB_HCA's; NCCL_DEBUG=INFO says what it tries";
        throw CommError(why.str());
      }
      if (!ask.over()) return;
      ask = PatienceOf(0.1);
      in_vain = store.Fetch({failed}, 0)[0].has_value();
      if (in_vain) throw CommError("another rank cannot");
    });
  });
  if (in_vain) {
    connected.error.clear();
  } else if (!connected.error.empty()) {
    store.Set(failed, "");
  }
  if (in_vain || !connected.error.empty()) link.reset();
  ExchangeCards(store, key + "/connected", what, group, connected);
  return std::make_unique<NcclCommunicator>(device, std::move(link), std::move(meeting), store, key,
                                            what, group, options);
}

}  // namespace fsdp
