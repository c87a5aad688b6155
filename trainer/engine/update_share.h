// fsdp.cpu_offload.optimizer_share: auto. Chooses the share of the updates that stays on the
// device.
//   The device updates s n of n elements at rate d, and beside it the host (1 - s) n at rate h. The
//   step ends with the slower side, so soonest where both end together:
//     s n / d = (1 - s) n / h,   s = d / (d + h)
// That is the balance of Deep Optimizer States (Maurya et al. 2024, arXiv:2410.21316) without its
// terms for moving the state that the device updates: here that state never leaves the device. The
// state takes memory there, so a smaller share is chosen where there is no room.
#ifndef FSDP_TRAIN_TRAINER_ENGINE_UPDATE_SHARE_H_
#define FSDP_TRAIN_TRAINER_ENGINE_UPDATE_SHARE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/engine/session.h"
#include "trainer/engine/update_rates.h"
#include "trainer/runtime/device.h"

namespace fsdp {

class Model;

// The share, to four decimals if these suffice, by which UnitsOnHost() leaves `stay` of `units`
// units on the device. 0 <= stay <= units.
double ShareOf(int stay, int units);

// Element i: the elements that a rank of `world` updates on the device when i units stay there,
// from 0 to all that train. The same on all ranks.
std::vector<int64_t> ElementsOnDevice(const ExecutorOptions& options, const Model& model,
                                      int world);

// The share of units with which the slower side ends first, for `on_device` as above: s where units
// are equal and small, otherwise the best that the schedule can do. `fits`: whether the device has
// room with a share. It is called for few shares, never for 0; a share that does not fit is never
// chosen. A share with fewer elements than a smaller share is skipped, so the smaller of two shares
// never takes more memory. rates.device may be infinite; throws std::invalid_argument for other
// rates that are not above 0 and finite.
double ChooseShare(const UpdateRates& rates, const std::vector<int64_t>& on_device,
                   const std::function<bool(double share)>& fits);

// Times the options' update, in their dtypes, on the device's compute stream and then on the host's
// threads, on buffers of its own that it frees. Takes the best of a few passes over `elements`, or
// over fewer, still beyond the caches, where those would take long; some 0.1 s a side. Blocks.
// Throws DeviceError, MemoryError.
UpdateRates MeasureUpdates(Device& device, const SessionOptions& options, int64_t elements);

// Bytes an element that MeasureUpdates() takes of the larger side's memory.
int64_t MeasuredBytes(const SessionOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_UPDATE_SHARE_H_
