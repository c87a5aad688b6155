// The time of each kernel of a step on a described machine: the one price list of the simulator and
// of `bench floor`.
//
//   Product     Tiles in waves over the multiprocessors at the data sheet's FLOP/s, times the share
//               that a huge product reaches.
//   Attention   In tiles at its own rates; as a batch of products where it multiplies matrices.
//   All else    Bytes at a copy's rate.
//
// A product of groups (Product::groups) is priced by the loads of an expert layer: the busiest
// group has `expert_load` times the mean rows, all others share the rest evenly. On one device,
// which computes all groups, loads change little: a CPU's rates have the ends of each group's rows
// (op_sides, op_terms), which are the same for all divisions; a GPU's tiles are
// ProductRateInWaves()'s.
//
// A kernel takes at least the time of its bytes. An operation that the file names has its own rate
// in place of these: op_flops_per_s for one with products, op_bytes_per_s for another. The floor
// has the faster of both, and nothing more. A simulated step adds launches and bytes that are moved
// twice, and has the share `reached`.
#ifndef FSDP_TRAIN_TRAINER_SIMULATE_PRICE_LIST_H_
#define FSDP_TRAIN_TRAINER_SIMULATE_PRICE_LIST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/engine/step_resource.h"
#include "trainer/loop/multiprocessors.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/recipe/hardware.h"
#include "trainer/runtime/cost.h"
#include "trainer/runtime/sim/timeline.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// The share of a product that one more row and one more column would add: 1 / m + 1 / n. 0 for
// other kernels.
double SidesOf(const KernelCost& kernel);

class PriceList {
 public:
  // A reference to the hardware is kept. `deterministic`: run.deterministic. `dtype`: that of the
  // parameters that the run computes with. `expert_load`: at least 1. Each piece of a layer's
  // experts has such a busiest one, or one expert with all of its rows. `shared`: how collectives
  // and products share out the multiprocessors.
  PriceList(const Hardware& hardware, bool deterministic, DType dtype = DType::kFloat32,
            double expert_load = 1, const Multiprocessors& shared = {})
      : hardware_(hardware),
        deterministic_(deterministic),
        dtype_(dtype),
        expert_load_(expert_load),
        shared_(shared) {}

  // Seconds of one kernel, or of all of an op in chunks, that moves so many bytes, by its
  // operation's own rates where the file has some. Throws ConfigError where the file lacks a rate
  // that it needs, with its key.
  double FloorSeconds(const KernelCost& kernel, double bytes, const std::string& op) const;
  // Seconds of each kernel of an operation, which move so many bytes: by op_flops_per_s, or by the
  // rates that all operations share, whichever is less for all kernels together. Throws likewise.
  std::vector<double> FloorSeconds(const std::vector<KernelCost>& kernels,
                                   const std::vector<double>& bytes, const std::string& op) const;
  // The rate of a resource beside the device: kToHost and those after it. Throws likewise.
  double RateOf(StepResource resource, const std::string& op) const;
  // An operation as a simulated device takes it, collectives excepted: 0 seconds. `threads`: CPU
  // threads of its stream, on a host whose cores `ranks` share. Throws likewise.
  SimWork WorkOf(const Operation& operation, std::string_view stream, int threads,
                 int ranks = 1) const;
  // How much work slows down that runs at once.
  std::vector<SimOverlap> Overlaps() const;

 private:
  bool on_cpu() const { return hardware_.device == Hardware::Device::kCpu; }
  double Required(const std::optional<double>& rate, const char* key, const std::string& op) const;
  const std::optional<double>& DataSheetRate(DType dtype) const;
  double ProductRate(DType dtype, const std::string& op) const;
  double ProductSeconds(const Product& product, int64_t at_once, const std::string& op) const;
  double AttentionRate(int64_t head_dim, const std::string& op) const;
  // As FloorSeconds(), whatever op_flops_per_s has.
  double SharedSeconds(const KernelCost& kernel, double bytes, const std::string& op) const;
  // Whether the file has what SharedSeconds() needs for products and attention.
  bool HasSharedRates(const KernelCost& kernel, const std::string& op) const;
  double KernelSeconds(const KernelCost& kernel, const std::string& op) const;
  // The op's own rate for this run's dtype; null: the file has none.
  const double* OwnRate(const std::map<std::string, double>& rates, const std::string& op) const;

  const Hardware& hardware_;
  const bool deterministic_;
  const DType dtype_;
  const double expert_load_;
  const Multiprocessors shared_;
};

// Those of a run on this machine.
PriceList PricesOf(const ResolvedRun& run, const Hardware& hardware);

// How fast a product can be for its shape: tiles that a GPU works on at once, in waves.

// FLOP/s of this product on a GPU that reaches `rate` for huge ones, and no more than that. A
// multiprocessor has one tile at a time, of whichever size is best of 128 x 256 and smaller ones,
// which are less efficient; the last wave takes as long as the others, and a tile's begin and end
// as long as `tile_terms` terms of its sums. Where k is long up to 16 multiprocessors may share a
// tile, each with at least 256 terms; adding their sums takes as long as two begins more. Whole
// waves of 2,048 terms are as fast as any: there power is the limit.
//
// Held to what OpenXLA has measured: with the numbers of configs/hardware/ and a launch of each,
// half of 375 shapes are within 4 % on an H100, on a B200 too
// (tests/trainer/simulate/published_products_test).
// `at_once`: as many of them, which fill the waves together.
//
// Groups have tiles of our own kernel (GroupedTile(), ops/grouped_linear.h), whole sums each. A
// group of r rows has on average r / 128 + 127 / 256 of 128 rows, because its last one is as likely
// to have one row as all; at least one, and none where it has no rows. So 1,024 rows a group lose 6
// % to tiles that are not full, 128 rows half. A gradient of weights has as many tiles for each
// group that has rows; its sum is as long as the group has rows, and the busiest group's is no
// wave's part. Tiles are counted, not measured: no GPU has timed these kernels yet. `expert_load`:
// the busiest group's rows over the mean; all others share the rest evenly.
double ProductRateInWaves(const Product& product, double rate, int64_t multiprocessors,
                          int64_t tile_terms, int64_t at_once = 1, double expert_load = 1);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_PRICE_LIST_H_
