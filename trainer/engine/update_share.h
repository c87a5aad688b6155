// fsdp.cpu_offload.optimizer_share: auto. Which share of the updates stays on the device.
//   Of n elements the device updates s n at rate d, and beside it the host (1 - s) n at rate h. The
//   step ends with the slower side, so soonest where both end together:
//     s n / d = (1 - s) n / h,   s = d / (d + h)
// That is the balance of Deep Optimizer States (Maurya et al. 2024, arXiv:2410.21316) without its
// terms for moving the state of what the device updates: here that never leaves the device. So it
// takes memory there, and less of it is chosen where there is no room.
#ifndef FSDP_TRAIN_TRAINER_ENGINE_UPDATE_SHARE_H_
#define FSDP_TRAIN_TRAINER_ENGINE_UPDATE_SHARE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/engine/session.h"
#include "trainer/engine/update_rates.h"
#include "trainer/nn/model.h"
#include "trainer/runtime/device.h"

namespace fsdp {

// The number for `stay` of `units` units, with up to four decimals where these do: UnitsOnHost()
// leaves so many on the device. 0 <= stay <= units.
double ShareOf(int stay, int units);

// By the number of units that stay on the device, from 0 to all that train: the elements that a
// rank updates there. The same on all ranks. `options` of a rank of `world`.
std::vector<int64_t> ElementsOnDevice(const ExecutorOptions& options, const Model& model,
                                      int world);

// The share of units after which the slower side ends first, for `on_device` as above: s where
// units are equal and small, and otherwise what is best of what the schedule can do. `fits`:
// whether the device has room with that share. It is asked about few, and what it holds to be too
// much is never chosen; 0 is not asked about. A share with fewer elements than a smaller one has
// is passed over: so the smaller of two shares always takes no more memory. rates.device may be
// infinite; throws std::invalid_argument for other rates that are not above 0 and finite.
double ChooseShare(const UpdateRates& rates, const std::vector<int64_t>& on_device,
                   const std::function<bool(double share)>& fits);

// Times the options' update, in their dtypes, on the device's compute stream and then on the
// host's threads, on buffers of its own that are free again when it returns: the best of a few
// passes over `elements`, or over fewer, which are beyond the caches, where those would take long;
// some 0.1 s a side. Blocks. Throws DeviceError, MemoryError.
UpdateRates MeasureUpdates(Device& device, const SessionOptions& options, int64_t elements);

// Of the larger side's memory that takes, for an element.
int64_t MeasuredBytes(const SessionOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_UPDATE_SHARE_H_
