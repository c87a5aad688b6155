// A model's embedding tables on one rank: its rows of them, and the exchanges by which a step reads
// and updates rows of all ranks (table_actions.h says when). Outside FSDP: no unit, norm or average
// knows of them.
//
// Each step asks for each row once, whatever its micro-batches name. Ids go to the ranks of their
// rows by an all-to-all, TableLayout::round_rows() from each rank to each, and rows come back by
// another; what does not fit goes in further rounds, as many as the rank that needs most, which all
// agree on a step ahead. A rank adds up the gradients of a row in the order of its samples; when
// the backward is done they travel as ids did, and the rank that has the row sums them in the order
// of ranks and updates it (ops/row_adagrad.h). All rows of a round are there at once, so no rank
// keeps what others have sent: memory is of one round, whatever the world.
// Tests: tests/trainer/engine/tables_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_TABLE_EXCHANGE_H_
#define FSDP_TRAIN_TRAINER_FSDP_TABLE_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "trainer/autograd/table_vectors.h"
#include "trainer/comm/communicator.h"
#include "trainer/core/batch.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/shard_update.h"
#include "trainer/fsdp/table_layout.h"
#include "trainer/fsdp/table_route.h"
#include "trainer/runtime/device.h"

namespace fsdp {

class TableExchange final : public TableVectors {
 public:
  // Takes persistent memory, where there are tables. `position`: of this rank in `over`, a world of
  // layout.world; null where it is one. Keeps the device and the communicator.
  TableExchange(Device& device, PhasedAllocator& allocator, const TableLayout& layout,
                const BatchSpec& spec, int position, Communicator* over);

  const TableLayout& layout() const { return layout_; }
  int position() const { return position_; }
  // This rank's rows, [own_rows, width], and Adagrad's sums, fp32 [own_rows]: of rows that are
  // nobody's zeros.
  const View& rows() const { return table_; }
  const View& sums() const { return sums_; }

  // Before all else: `exchanges` is stream() from here on, and what kernels know of the tables is
  // enqueued on `stream`.
  void Begin(Stream& exchanges, Stream& stream);
  // Enqueues the rows' initial values: `fill` gives elements [begin, begin + values.size()) of a
  // table, on the host, on any thread.
  using Fill = std::function<void(const EmbeddingTable&, int64_t begin, std::span<float> values)>;
  void Initialize(Stream& stream, const Fill& fill);

  // The actions of a step. Each enqueues on the stream given.
  using Load = std::function<void(int micro_batch, const Batch& batch)>;
  // Without a load nothing is read, and who goes on has a route made first.
  void Route(Stream& data, const Load& load, int micro_batches);
  // Of the step that Route() was called for last, its last micro-batch: bytes of the host.
  const View& routed_batch() const { return batch_bytes_; }
  void Agree(Stream& stream);
  void Turn(Stream& stream);
  void Fetch(Stream& stream);
  void Clear(Stream& stream);
  void Send(Stream& stream);
  // `update` enqueues that of a round; what is of the step and not of the tables is left to it.
  void Update(Stream& stream, const std::function<void(const RowUpdate&)>& update);
  // The gradients' sums, [step_ids, width] in fp32.
  const View& gradient() const { return gradient_; }

  // A sum of gradients that is not finite counts in no norm, but skips the step on all ranks: it
  // makes a NaN of `sum`, or, where `loss_scale` is given, is counted there.
  void Check(Stream& stream, const std::optional<View>& loss_scale, const View& sum,
             const View& workspace);

  // Step `index`, which is about to be enqueued, has so many rounds: blocks until Agree() is done.
  void TakeRounds(int64_t index);
  int64_t rounds() const { return int64_t{1} << log2_rounds_; }
  int64_t rounds_of(int64_t index) const { return rounds_of_[index % 2]; }  // Of the last two.
  int64_t routed_step = 0;  // The training step whose route there is.

  // The stream of the exchanges: who reads the rows between steps waits for it.
  Stream& stream() const { return *stream_; }
  // Behind all that it has; null before Begin().
  EventPtr Exchanged() const { return stream_ ? stream_->Record() : nullptr; }
  // The next update waits for it: for who copies the rows beside the steps.
  void Hold(const EventPtr& copied) { copied_ = copied; }
  EventPtr TakeCopied() { return std::exchange(copied_, nullptr); }

  // Of micro-batch m, from here on.
  void Bind(int64_t m) { micro_batch_ = m; }
  int64_t tables() const override { return std::ssize(layout_.tables); }
  int64_t width() const override { return layout_.width(); }
  void Pool(Stream& stream, View out) override;
  void AddGradient(Stream& stream, ConstView d) override;

 private:
  void TakeMemory(PhasedAllocator& allocator, const BatchSpec& spec);
  void AskFor(Stream& stream, int64_t round);  // Makes places_ and came_ids_.
  void SendRound(Stream& stream, int64_t round);
  View Typed(const View& bytes, DType dtype) const;
  // Where others' rows come: what was sent, where there are none.
  const View& arrived() const { return over_ ? arrived_ : sent_; }
  const View& arrived_ids() const { return over_ ? came_ids_ : asked_ids_; }

  Device& device_;
  const TableLayout layout_;
  const int position_;
  Communicator* const over_;

  View table_, sums_;
  View vectors_, gradient_;        // Of the step's rows, in the route's order.
  View places_;                    // int64 [W, C]: of the round's rows in the route.
  View asked_ids_, came_ids_;      // int64 [W, C].
  View sent_, arrived_;            // Bytes: W C rows, of the table's dtype or fp32.
  View first_slot_, upload_;       // Device; host: initial values on their way.
  View route_bytes_, next_bytes_;  // Device, host.
  TableRoute route_, next_;
  size_t ids_input_ = 0;  // Of the batch.
  Batch batch_;           // Host: what the next step's ids are read with.
  View batch_bytes_, work_;
  View rounds_, report_;  // int32 [W]: device, host.
  EventPtr agreed_;
  int log2_rounds_ = 0;
  int64_t rounds_of_[2] = {};
  View squares_;  // [1]: of gradients, where nothing but NaN counts.
  Stream* stream_ = nullptr;
  EventPtr copied_;
  int64_t micro_batch_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_TABLE_EXCHANGE_H_
