// A model's embedding tables on one rank: the rank's rows, and the exchanges by which a step reads
// and updates rows of all ranks (table_actions.h says when). Tables are outside FSDP: no unit, norm
// or average includes them. FSDP gathers a parameter whole, which a table of 10^12 elements must
// never be, and a step names few of its rows.
//
// Each step asks for each row once, whatever its micro-batches name. Ids go to the ranks of their
// rows by an all-to-all, TableLayout::round_rows() from each rank to each, and rows come back by
// another; what does not fit goes in further rounds, as many as the rank that needs most. The
// number of rounds depends on data, and the schedule must not: all ranks agree on it a step ahead,
// and the host waits for it where the step begins. A rank adds up the gradients of a row in the
// order of its samples; when the backward is done they travel as ids did, and the rank that has the
// row sums them in the order of ranks and updates it (ops/row_adagrad.h). All rows of a round are
// there at once, so no rank keeps what others have sent: memory is of one round, whatever the
// world.
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
#include "trainer/fsdp/executor_callbacks.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/table_route.h"
#include "trainer/runtime/device.h"

namespace fsdp {

class TableExchange final : public TableVectors {
 public:
  // Takes persistent memory, where there are tables. `position`: this rank's in `over`, whose size
  // is layout.world; `over` is null for a world of one. Keeps the device and the communicator.
  TableExchange(Device& device, PhasedAllocator& allocator, const TableLayout& layout,
                const BatchSpec& spec, int position, Communicator* over);

  const TableLayout& layout() const { return layout_; }
  int position() const { return position_; }
  // This rank's rows, [own_rows, width], and Adagrad's sums, fp32 [own_rows]: zeros for rows of no
  // table.
  const View& rows() const { return table_; }
  const View& sums() const { return sums_; }

  // Call it before all else: `exchanges` is stream() from here on. Enqueues on `stream` the data
  // about tables that kernels read.
  void Begin(Stream& exchanges, Stream& stream);
  // Enqueues the rows' initial values.
  void Initialize(Stream& stream, const FillRows& fill);

  // The actions of a step. Each enqueues on the stream given.
  using Load = std::function<void(int micro_batch, const Batch& batch)>;
  // Without a load nothing is read, and the next step must have its route made first.
  void Route(Stream& data, const Load& load, int micro_batches);
  // The last micro-batch of the step that Route() was last called for: host bytes.
  const View& routed_batch() const { return batch_bytes_; }
  void Agree(Stream& stream);
  void Turn(Stream& stream);
  void Fetch(Stream& stream);
  void Clear(Stream& stream);
  void Send(Stream& stream);
  // `update` enqueues the update of a round, and adds the step's own values that the tables do not
  // know.
  void Update(Stream& stream, const std::function<void(const RowUpdate&)>& update);
  // The gradients' sums, [step_ids, width] in fp32.
  const View& gradient() const { return gradient_; }

  // Makes all ranks skip the step if a sum of gradients is not finite, though no norm includes it:
  // sets `sum` to NaN or, where `loss_scale` is given, counts there.
  void Check(Stream& stream, const std::optional<View>& loss_scale, const View& sum,
             const View& workspace);

  // Sets the rounds of step `index`, which is about to be enqueued. Blocks until Agree() is done.
  void TakeRounds(int64_t index);
  int64_t rounds() const { return int64_t{1} << log2_rounds_; }
  int64_t rounds_of(int64_t index) const {
    return rounds_of_[index % 2];
  }                         // One of the last two
                            // steps.
  int64_t routed_step = 0;  // The training step of the present route.

  // The stream of the exchanges: readers of the rows between steps must wait for it.
  Stream& stream() const { return *stream_; }
  // An event behind all work of stream(); null before Begin().
  EventPtr Exchanged() const { return stream_ ? stream_->Record() : nullptr; }
  // The next update waits for `copied`: for copies of the rows beside the steps.
  void Hold(const EventPtr& copied) { copied_ = copied; }
  EventPtr TakeCopied() { return std::exchange(copied_, nullptr); }

  // Pool() and AddGradient() are for micro-batch m from here on.
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
  // Where others' rows arrive; the sent bytes in a world of one.
  const View& arrived() const { return over_ ? arrived_ : sent_; }
  const View& arrived_ids() const { return over_ ? came_ids_ : asked_ids_; }

  Device& device_;
  const TableLayout layout_;
  const int position_;
  Communicator* const over_;

  View table_, sums_;
  View vectors_, gradient_;        // The step's rows, in the route's order.
  View places_;                    // int64 [W, C]: places of the round's rows in the route.
  View asked_ids_, came_ids_;      // int64 [W, C].
  View sent_, arrived_;            // Bytes: W C rows, of the table's dtype or fp32.
  View first_slot_, upload_;       // Device; host: initial values on their way.
  View route_bytes_, next_bytes_;  // Device, host.
  TableRoute route_, next_;
  size_t ids_input_ = 0;  // The batch's input of ids.
  Batch batch_;           // Host: for reading the next step's ids.
  View batch_bytes_, work_;
  View rounds_, report_;  // int32 [W]: device, host.
  EventPtr agreed_;
  int log2_rounds_ = 0;
  int64_t rounds_of_[2] = {};
  View squares_;  // [1]: of gradients; only a NaN counts.
  Stream* stream_ = nullptr;
  EventPtr copied_;
  int64_t micro_batch_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_TABLE_EXCHANGE_H_
