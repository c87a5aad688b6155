// The work that actions of embedding tables enqueue.
// Tests: tests/trainer/engine/tables_test.cc
#include <optional>

#include "trainer/core/check.h"
#include "trainer/fsdp/action.h"
#include "trainer/fsdp/executor.h"

namespace fsdp {

void Executor::PrepareTables() {
  if (!tables_) return;
  const bool train = step_->mode == Mode::kTrain;
  if (!train || tables_->routed_step != step_->number) {
    Stream& data = stream(StreamId::kData);
    data.Wait(tables_->stream().Record());  // It reads the route that is there.
    tables_->Route(data, step_->load, running_->options.micro_batches);
    tables_->stream().Wait(data.Record());
    tables_->Agree(tables_->stream());
  }
  tables_->TakeRounds(steps_);
  tables_->routed_step = train && step_->load_next ? step_->number + 1 : 0;
}

void Executor::RunTables(const Action& action) {
  Stream& stream = this->stream(action.stream);
  switch (action.kind) {
    case ActionKind::kTableTurn:
      return tables_->Turn(stream);
    case ActionKind::kTableFetch:
      return tables_->Fetch(stream);
    case ActionKind::kTableRoute:
      return tables_->Route(stream, step_->load_next, running_->options.micro_batches);
    case ActionKind::kTableAgree:
      return tables_->Agree(stream);
    case ActionKind::kTableClear:
      return tables_->Clear(stream);
    case ActionKind::kTableCheck:
      return tables_->Check(
          stream, scales_loss() ? std::optional(memory_.scaler.Slice(0, 1)) : std::nullopt,
          scalar(scales_loss() ? kFound : kLoss), memory_.squares);
    case ActionKind::kTableSend:
      return tables_->Send(stream);
    default:
      FSDP_CHECK(action.kind == ActionKind::kTableUpdate) << ToString(action);
      stream.Wait(tables_->TakeCopied());
      tables_->Update(stream, [&](RowUpdate update) {
        update.coefficient = scalar(kCoefficient);
        update.mean_scale = scalar(kMeanScale);
        if (scales_loss()) update.loss_scale = scalar(kLossScale);
        step_->update_rows(stream, update);
      });
  }
}

}  // namespace fsdp
